"""How tests speak to the command line, and what it says when it refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from click.testing import Result

Engram = Callable[..., Result]
Java = Callable[[str], Path]


def sentence(result: Result, code: int) -> str:
    """What a refusal says, after what holds for all of them: one line on stderr, the exit code, nothing else."""
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("engram: ")
    return line.removeprefix("engram: ")
