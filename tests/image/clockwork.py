"""An app of clockworks, which ring when their time has come."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from engram import App, Command, Context, Entity, Event, Rejected


@dataclass(slots=True, kw_only=True)
class Clockwork(Entity, name="clockwork"):
    rang: list[str] = field(default_factory=list)
    handles: dict[str, str] = field(default_factory=dict)


class Rang(Event, name="rang"):
    what: str


class Ring(Command[Clockwork, None], name="ring"):
    what: str
    again_ms: int | None = None

    def handle(self, it: Clockwork, ctx: Context) -> None:
        if self.what == "broken":
            raise RuntimeError("a spring has snapped")
        it.rang.append(f"{self.what} at {ctx.now:%H:%M:%S.%f}"[:-3])
        ctx.emit(Rang(what=self.what))
        if self.again_ms is not None:
            ctx.schedule(timedelta(milliseconds=self.again_ms), Ring(what=f"{self.what}+"))


class Wind(Command[Clockwork, str], name="wind"):
    what: str
    ms: int
    again_ms: int | None = None
    refuse: bool = False

    def handle(self, it: Clockwork, ctx: Context) -> str:
        handle = ctx.schedule(timedelta(milliseconds=self.ms), Ring(what=self.what, again_ms=self.again_ms))
        it.handles[self.what] = handle
        if self.refuse:
            raise Rejected("no", "It is not wound.")
        return handle


class WindUntil(Command[Clockwork, None], name="wind_until"):
    at: datetime

    def handle(self, it: Clockwork, ctx: Context) -> None:
        ctx.schedule(self.at, Ring(what="until"))


class Stop(Command[Clockwork, None], name="stop"):
    what: str

    def handle(self, it: Clockwork, ctx: Context) -> None:
        ctx.cancel(it.handles.get(self.what, "nonsense"))


app = App("clockwork", commands=[Ring, Wind, WindUntil, Stop], events=[Rang])
