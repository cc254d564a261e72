"""The app of the storms: keys that keep a list of what was added, in order, say so outside, and tell a tally."""

from __future__ import annotations

from dataclasses import dataclass, field

from engram import App, Command, Context, Entity, Event, Query

TALLIES = 16


@dataclass(slots=True, kw_only=True)
class Ledger(Entity, name="ledger"):
    entries: list[int] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Tally(Entity, name="tally"):
    count: int = 0


class Added(Event, name="added"):
    number: int


class Count(Command[Tally, None], name="count"):
    def handle(self, tally: Tally, ctx: Context) -> None:
        tally.count += 1


class Add(Command[Ledger, int], name="add"):
    """Adds a number, emits it, and has every tenth counted elsewhere; the reply is how many there are now."""

    number: int

    def handle(self, ledger: Ledger, ctx: Context) -> int:
        ledger.entries.append(self.number)
        ctx.emit(Added(number=self.number))
        if self.number % 10 == 0:
            ctx.send(f"tally{ctx.random.randrange(TALLIES)}", Count())
        return len(ledger.entries)


class Entries(Query[Ledger, list[int]], name="entries"):
    def answer(self, ledger: Ledger) -> list[int]:
        return list(ledger.entries)


class Counted(Query[Tally, int], name="counted"):
    def answer(self, tally: Tally) -> int:
        return tally.count


app = App("storm", commands=[Add, Count], queries=[Entries, Counted], events=[Added])
