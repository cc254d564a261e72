"""An app whose handlers wait at gates, until a test opens them."""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import dataclass
from datetime import timedelta

from engram import App, Command, Context, Entity, Query

# By name, for handlers on other threads of this process.
GATES: defaultdict[str, threading.Event] = defaultdict(threading.Event)


@dataclass(slots=True, kw_only=True)
class Walker(Entity, name="walker"):
    passed: int = 0


class Pass(Command[Walker, int], name="pass"):
    """Goes through at once."""

    def handle(self, walker: Walker, ctx: Context) -> int:
        walker.passed += 1
        return walker.passed


class Wait(Command[Walker, int], name="wait"):
    """Blocks until the gate is open."""

    gate: str

    def handle(self, walker: Walker, ctx: Context) -> int:
        GATES[self.gate].wait()
        walker.passed += 1
        return walker.passed


class Spin(Command[Walker, int], name="spin"):
    """Runs in circles until the gate is open, some calls deep."""

    gate: str

    def handle(self, walker: Walker, ctx: Context) -> int:
        run_in_circles(GATES[self.gate])
        walker.passed += 1
        return walker.passed


class WaitLater(Command[Walker, None], name="wait_later"):
    """Has the same entity wait, a little later."""

    gate: str

    def handle(self, walker: Walker, ctx: Context) -> None:
        ctx.schedule(timedelta(milliseconds=1), Wait(gate=self.gate))


class Passed(Query[Walker, int], name="passed"):
    def answer(self, walker: Walker) -> int:
        return walker.passed


def run_in_circles(gate: threading.Event) -> None:
    while not gate.is_set():
        pass


app = App("gates", commands=[Pass, Wait, Spin, WaitLater], queries=[Passed])
