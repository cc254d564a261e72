"""How the command line speaks: tables for people, JSON for programs, one sentence for a refusal."""

from __future__ import annotations

import functools
import json as json_module
import sys
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

REFUSED = 2  # exit code: a person must change something
UNAVAILABLE = 3  # exit code: try again later


def refuse_nicely(command: Callable[P, T]) -> Callable[P, T]:
    """Turns Engram's own errors into one sentence on stderr and an exit code. Others are bugs, and show."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        from engram.errors import EngramError, Unavailable

        try:
            return command(*args, **kwargs)
        except EngramError as problem:
            print(f"engram: {problem}", file=sys.stderr)
            raise SystemExit(UNAVAILABLE if isinstance(problem, Unavailable) else REFUSED) from None

    return run


def say(text: str) -> None:
    print(text, flush=True)


def say_json(value: Any) -> None:
    say(json_module.dumps(value, ensure_ascii=False))


def show_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*map(str, row))
    Console().print(table)
