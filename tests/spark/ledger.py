"""The app of the process tests: keys that keep a list of what was added, in order."""

from __future__ import annotations

from dataclasses import dataclass, field

from engram import App, Command, Context, Entity, Query, allow


@dataclass(slots=True, kw_only=True)
class Ledger(Entity, name="ledger"):
    entries: list[int] = field(default_factory=list)


class Add(Command[Ledger, int], name="add", authorize=allow.owner):
    """Adds a number; the reply is how many there are now."""

    number: int

    def handle(self, ledger: Ledger, ctx: Context) -> int:
        ledger.entries.append(self.number)
        return len(ledger.entries)


class Entries(Query[Ledger, list[int]], name="entries", authorize=allow.anyone):
    def answer(self, ledger: Ledger) -> list[int]:
        return list(ledger.entries)


app = App("ledger", commands=[Add], queries=[Entries])
