"""How the command line speaks: tables for people, JSON for programs, one sentence for a refusal."""

from __future__ import annotations

import functools
import json as json_module
import signal
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

REFUSED = 2  # exit code: a person must change something
UNAVAILABLE = 3  # exit code: try again later
# A signal that comes just before a wait does not end that wait: a command that ends by signals waits no longer at once.
SIGNAL_S = 1.0

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def refuse_nicely(command: Callable[P, T]) -> Callable[P, T]:
    """Turns Engram's own errors into one sentence on stderr and an exit code. Others are bugs, and show."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        from engram.errors import EngramError, Unavailable

        try:
            return command(*args, **kwargs)
        except EngramError as problem:
            show_progress("")
            print(f"engram: {problem}", file=sys.stderr)
            raise SystemExit(UNAVAILABLE if isinstance(problem, Unavailable) else REFUSED) from None

    return run


def leave_on_signals() -> None:
    """From now on SIGINT and SIGTERM end the command with exit code 0, once what it has open is closed."""
    for number in _SIGNALS:
        signal.signal(number, _leave)


def _leave(_number: int, _frame: FrameType | None) -> None:
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # a second Ctrl-C must not cut the cleaning short
    sys.exit(0)


def say(text: str) -> None:
    print(text, flush=True)


def say_json(value: Any) -> None:
    say(json_module.dumps(value, ensure_ascii=False))


def show_progress(text: str) -> None:
    """On a terminal, in place of what it said before; an empty text takes that away."""
    if sys.stderr.isatty():
        print(f"\r{text}\x1b[K", end="", file=sys.stderr, flush=True)


def show_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*map(str, row))
    Console(markup=False, emoji=False).print(table)  # cells are what others wrote, not markup
