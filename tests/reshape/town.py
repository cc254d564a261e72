"""An app whose final state does not depend on the order in which messages of different senders arrive: people count
what they are told, by its name. So two histories that differ only in where entities live come to the same."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from engram import App, Broadcast, Command, Context, Entity, Event, Lookup, Rejected, Shared
from hypothesis import strategies as st

KEYS = [f"key{number}" for number in range(12)]

Steps = list[Any]


class Heard(Event, name="heard"):
    what: str


@dataclass(slots=True, kw_only=True)
class Person(Entity, name="person"):
    heard: dict[str, int] = field(default_factory=dict)
    alarms: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Rules(Shared, name="rules"):
    made: list[str] = field(default_factory=list)


class Tell(Command[Person, int], name="tell"):
    what: str
    steps: list[Any]

    def handle(self, person: Person, ctx: Context) -> int:
        person.heard[self.what] = person.heard.get(self.what, 0) + 1
        for number, step in enumerate(self.steps):
            name = f"{self.what}/{number}"
            match step:
                case ["send", key, inner]:
                    ctx.send(KEYS[key % len(KEYS)], Tell(what=name, steps=inner))
                case ["wait", milliseconds, inner]:
                    at = ctx.now + timedelta(milliseconds=milliseconds)
                    person.alarms[name] = ctx.schedule(at, Tell(what=name, steps=inner))
                case ["rule", _]:
                    ctx.broadcast(Rule(what=name))
                case ["emit"]:
                    ctx.emit(Heard(what=name))
                case ["fail"]:
                    raise RuntimeError("something broke")
                case ["reject"]:
                    raise Rejected("no", "Not wanted.")
        return len(person.heard)


class Hush(Command[Person, None], name="hush"):
    """Cancels what a client's own command has scheduled; the first alarm of `what`."""

    what: str

    def handle(self, person: Person, ctx: Context) -> None:
        if (handle := person.alarms.pop(f"{self.what}/0", None)) is not None:
            ctx.cancel(handle)


class Rule(Broadcast[Rules, None], name="rule"):
    what: str

    def handle(self, rules: Rules, ctx: Context) -> None:
        rules.made.append(self.what)


class Hearers(Lookup[Person, str], name="hearers"):
    def rows(self, person: Person) -> Any:
        for what in person.heard:
            yield what, person.key


app = App("town", commands=[Tell, Hush, Rule], events=[Heard], read_models=[Hearers])

_key = st.integers(0, len(KEYS) - 1)
_end = st.sampled_from([["emit"], ["rule", 0], ["emit"], ["fail"], ["reject"]])


def steps(depth: int = 2) -> st.SearchStrategy[Steps]:
    """What a command leads to. One that fails or is refused does so last, after what must leave no trace."""
    if depth == 0:
        return st.lists(_end, max_size=1)
    inner = steps(depth - 1)
    one = st.one_of(
        st.tuples(st.just("send"), _key, inner).map(list),
        st.tuples(st.just("wait"), st.sampled_from([0, 40, 3000]), inner).map(list),
    )
    return st.tuples(st.lists(one, min_size=1, max_size=3), st.lists(_end, max_size=1)).map(lambda two: two[0] + two[1])
