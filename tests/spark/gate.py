"""An app with a handler that does not return until a file is there: the way into another process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from engram import App, Command, Context, Entity


@dataclass(slots=True, kw_only=True)
class Walker(Entity, name="walker"):
    passed: int = 0


class Wait(Command[Walker, int], name="wait"):
    gate: str

    def handle(self, walker: Walker, ctx: Context) -> int:
        while not Path(self.gate).exists():
            pass
        walker.passed += 1
        return walker.passed


app = App("gate", commands=[Wait])
