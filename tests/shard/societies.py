"""Generated apps: entity types that send, schedule, broadcast and emit whatever the commands that they get tell them.

A command holds a program: a list of steps, each a list that begins with a word. A step that brings something about
holds the program of what comes of it, so that a command of a client is a whole tree of commands, and ends.
"""

from __future__ import annotations

import json
import types
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from typing import Any

from engram import App, Broadcast, Command, Context, Entity, Event, Part, Position, Query, Rejected, Shared, Unavailable
from engram.codec.codec import Messages
from engram.codec.record import Kind
from engram.image.image import Handled, Image
from engram.image.outcome import Verdict
from engram.log.base import Entry
from engram.model.effects import Message, OutEvent
from engram.model.entity import EVERYWHERE
from engram.model.limits import Limits
from engram.shard.replay import replay_until
from engram.testing.simulator.log import SimulatedLog
from hypothesis import strategies as st

from tests.shard.network import Network, Owner

PARTITIONS = 4
KEYS = [f"key{number}" for number in range(6)]
_MILLISECOND = timedelta(milliseconds=1)

Program = list[Any]


# Apps


@dataclass(slots=True, kw_only=True)
class Box(Part):
    size: int = 0
    labels: list[str] = field(default_factory=list)


class Told(Event, name="told"):
    number: int


# What a type may hold besides what all hold.
FIELDS: dict[str, tuple[Any, Any]] = {
    "lines": (list[str], list),
    "table": (dict[str, int], dict),
    "box": (Box, Box),
    "boxes": (dict[str, Box], dict),
    "groups": (dict[str, list[int]], dict),
}


@dataclass(frozen=True)
class Design:
    """An app in short: the fields of its entity types and of its shared types, and its limits."""

    entities: tuple[tuple[str, ...], ...]
    shared: tuple[tuple[str, ...], ...]
    limits: Limits


class Society:
    """The app of a design. Each entity type has three commands and each shared type one, told apart by `form`."""

    def __init__(self, design: Design) -> None:
        self.entities = [self._type(f"Entity{n}", Entity, fields) for n, fields in enumerate(design.entities)]
        self.shared = [self._type(f"Shared{n}", Shared, fields) for n, fields in enumerate(design.shared)]
        self._forms = [[_does(cls, self), _says(cls, self), _counts(cls)] for cls in self.entities]
        self._broadcasts = [_broadcasts(cls, self) for cls in self.shared]
        commands = [*(command for forms in self._forms for command in forms), *self._broadcasts]
        queries = [_shows(cls) for cls in self.shared]
        self.app = App("society", commands=commands, queries=queries, events=[Told], limits=design.limits)

    def _type(self, name: str, base: type[Entity], fields: Sequence[str]) -> Any:
        annotations = {"count": int, "seen": list[str], "handles": list[str]}
        defaults = {"count": 0, "seen": field(default_factory=list), "handles": field(default_factory=list)}
        for each in fields:
            annotations[each], default = FIELDS[each]
            defaults[each] = field(default_factory=default)
        body = {"__annotations__": annotations, "__module__": __name__, **defaults}
        made = types.new_class(name, (base,), {"name": name.lower()}, lambda namespace: namespace.update(body))
        return dataclass(slots=True, kw_only=True)(made)

    def command(self, number: int, form: int, program: Program) -> Command[Any, Any]:
        """One for an entity type."""
        forms = self._forms[number % len(self._forms)]
        return forms[form % len(forms)].of(program)  # type: ignore[attr-defined]

    def broadcast(self, number: int, program: Program) -> Broadcast[Any, Any] | None:
        """None for an app that shares nothing."""
        return self._broadcasts[number % len(self._broadcasts)].of(program) if self._broadcasts else None  # type: ignore[attr-defined]

    def _for_later(self, it: Any, number: int, form: int, program: Program) -> Command[Any, Any]:
        """What is for the type of what schedules it; one in eight is not."""
        shared = isinstance(it, Shared) is (form != 7)
        return (self.broadcast(number, program) if shared else None) or self.command(number, form, program)

    def run(self, program: Program, it: Any, ctx: Context) -> int:
        """What all handlers do."""
        for step in program:
            self._bring_about(step, it, ctx)
            match step:
                case ["change", number]:
                    _change(it, number)
                case ["look", what]:
                    it.seen.append(_seen(what, ctx))
                case ["read" | "meddle" as how, number] if self.shared:
                    others = [cls for cls in self.shared if not isinstance(it, cls)] or self.shared
                    lent: Any = ctx.shared(others[number % len(others)])
                    it.seen.append(f"{lent.count} {lent.seen[-1:]}")
                    if how == "meddle":
                        _change(lent, number)
                case ["reject"]:
                    raise Rejected("no", "It is not wanted.")
                case ["fail"]:
                    raise RuntimeError("something broke")
        it.seen += [str(ctx.position), ctx.new_id()]  # so that the order in which commands came can be seen
        it.count += 1
        return int(it.count)

    def _bring_about(self, step: Any, it: Any, ctx: Context) -> None:
        match step:
            case ["send", number, form, key, inner]:
                ctx.send(KEYS[key % len(KEYS)], self.command(number, form, inner))
            case ["schedule", number, form, milliseconds, inner]:
                when = milliseconds * _MILLISECOND
                at = ctx.now + when if form % 2 else when
                it.handles.append(ctx.schedule(at, self._for_later(it, number, form, inner)))
            case ["cancel", 7]:
                ctx.cancel("--7.0.0")  # no timer's
            case ["cancel", number] if it.handles:
                ctx.cancel(it.handles[number % len(it.handles)])
            case ["broadcast", number, inner] if self.shared:
                ctx.broadcast(self.broadcast(number, inner))
            case ["emit", number]:
                ctx.emit(Told(number=number))
            case ["many", times, inner]:
                for _ in range(times):
                    self.run(inner, it, ctx)


def _change(it: Any, number: int) -> None:
    """Another place of the state for each number."""
    names = ["count", *(name for name in FIELDS if hasattr(it, name))]
    match names[number % len(names)]:
        case "count":
            it.count += number
        case "lines" if number % 3:
            it.lines.append(str(number))
        case "lines":
            it.lines = [*it.lines[1:], "anew"]
        case "table" if number % 3:
            it.table[str(number)] = it.table.get(str(number), 0) + 1
        case "table":
            it.table.clear()
        case "box" if number % 3:
            it.box.size += 1
            it.box.labels.append(str(number))
        case "box":
            it.box = Box(size=number)
        case "boxes":
            it.boxes.setdefault(str(number % 3), Box()).labels.insert(0, "first")
        case "groups":
            it.groups.setdefault(str(number % 3), []).append(number)


def _seen(what: str, ctx: Context) -> str:
    match what:
        case "now":
            return ctx.now.isoformat()
        case "id":
            return ctx.new_id()
        case "random":
            return str(ctx.random.random())
    return str(ctx.position)


def _does(cls: Any, society: Society) -> type[Command[Any, Any]]:
    class Do(Command[cls, int], name=f"do_{cls.__engram__.name}"):
        steps: list[Any]

        @classmethod
        def of(cls, program: Program) -> Do:
            return cls(steps=program)

        def handle(self, it: Any, ctx: Context) -> int:
            return society.run(self.steps, it, ctx)

    return Do


def _says(cls: Any, society: Society) -> type[Command[Any, Any]]:
    class Say(Command[cls, None], name=f"say_{cls.__engram__.name}"):
        """The same with nothing but plain fields, which are encoded without being read back, and without a reply."""

        text: str

        @classmethod
        def of(cls, program: Program) -> Say:
            return cls(text=json.dumps(program))

        def handle(self, it: Any, ctx: Context) -> None:
            society.run(json.loads(self.text), it, ctx)

    return Say


def _counts(cls: Any) -> type[Command[Any, Any]]:
    class Count(Command[cls, None], name=f"count_{cls.__engram__.name}"):
        """A handler whose source says what it assigns. Some fail afterwards."""

        by: int

        @classmethod
        def of(cls, program: Program) -> Count:
            return cls(by=len(program))

        def handle(self, it: Any, ctx: Context) -> None:
            it.count += self.by
            it.seen.append("counted")
            if self.by == 4:
                raise RuntimeError("four is too many")

    return Count


def _broadcasts(cls: Any, society: Society) -> type[Broadcast[Any, Any]]:
    class Rule(Broadcast[cls, int], name=f"rule_{cls.__engram__.name}"):
        steps: list[Any]

        @classmethod
        def of(cls, program: Program) -> Rule:
            return cls(steps=program)

        def handle(self, it: Any, ctx: Context) -> int:
            return society.run(self.steps, it, ctx)

    return Rule


def _shows(cls: Any) -> type[Query[Any, Any]]:
    class Show(Query[cls, str], name=f"show_{cls.__engram__.name}"):
        def answer(self, it: Any) -> str:
            return repr(it)

    return Show


# Made once per design: classes are dear, and what is known of them is kept as long as the process lives.
@cache
def society_of(design: Design) -> Society:
    return Society(design)


_some = st.integers(0, 7)
_delays = st.sampled_from([0, 1, 50, 400, 3000, -5])
_fields = st.sampled_from([("lines", "table"), ("box",), ("boxes", "groups")])
designs = st.builds(
    Design,
    entities=st.lists(_fields, min_size=1, max_size=3).map(tuple),
    shared=st.lists(_fields, max_size=2).map(tuple),
    limits=st.sampled_from([Limits()] * 5 + [Limits(sends=3), Limits(depth=2), Limits(sent_bytes=200)]),
)
_inside = st.one_of(
    st.tuples(st.just("change"), _some),
    st.tuples(st.just("look"), st.sampled_from(["now", "id", "random", "position"])),
    st.tuples(st.just("emit"), _some),
    st.tuples(st.just("cancel"), _some),
    st.tuples(st.just("read"), _some),
)
_endings = st.sampled_from([[]] * 9 + [[["reject"]], [["fail"]], [["meddle", 1]]])


@st.composite
def _steps(draw: st.DrawFn, depth: int) -> Any:
    if depth == 0:
        return draw(_inside)
    inner = programs(draw(st.integers(0, depth - 1)))
    return draw(
        st.one_of(
            st.tuples(st.just("send"), _some, _some, _some, inner),
            st.tuples(st.just("schedule"), _some, _some, _delays, inner),
            st.tuples(st.just("broadcast"), _some, inner),
            st.tuples(st.just("many"), st.integers(2, 3), inner),
            _inside,
        )
    )


@st.composite
def programs(draw: st.DrawFn, depth: int = 3) -> Program:
    """Few fail, and most of those at the end: after they have done something that must leave no trace."""
    return [*draw(st.lists(_steps(depth), min_size=1, max_size=3)), *draw(_endings)]


# The log


class CutLog(SimulatedLog):
    """A log of independent partitions that may be cut off while effects are appended.

    With `cuts`, only the first so many entries of each partition get there, and so many events, and the caller is
    told that nobody knows.
    """

    cuts: Sequence[int] | None = None

    def __init__(self, app: str, partitions: int) -> None:
        super().__init__(app, partitions, independent=True)

    def append(self, entries: Sequence[Entry], events: Sequence[OutEvent] = ()) -> list[int]:
        effects = bool(events or any(e.kind in (Kind.MESSAGES, Kind.TICK) for e in entries))
        offsets = self.land(entries, events, self.cuts if effects else None)
        if effects and self.cuts is not None:
            raise Unavailable("Whether the records were appended is not known.")
        return offsets

    def without_effects(self) -> CutLog:
        """The same records, in a log that does not know what has left and what has come."""
        log = CutLog(self.app, self.partitions)
        log._records = [list(records) for records in self._records]
        return log


# What is to be equal


class Sent:
    """A message as both ends know it."""

    def __init__(self, message: Message, command: Command[Any, Any]) -> None:
        self.everywhere = message.everywhere is not None
        self.key = message.key
        self.told = message.origin, message.key, command, message.cause, message.everywhere


class Replay:
    """A partition replayed from zero, with everything that came of it on the way."""

    def __init__(self, network: Network, partition: int) -> None:
        self.partition = partition
        self.messages: list[Sent] = []
        self.events: list[OutEvent] = []
        self.refused: set[tuple[int, int]] = set()
        self.image = Image(partition, network.codec)
        replay_until(self.image, network.log, network.log.end(partition), effects=self._note, progress=lambda: None)

    def _note(self, handled: Handled) -> None:
        decode = self.image.codec.decode_command
        self.messages += [Sent(m, decode(m.name, m.version, m.body)) for m in handled.messages]
        self.events += handled.events
        offset = self.image.offset - 1
        refused = [index for index, outcome in enumerate(handled.outcomes) if outcome.verdict is not Verdict.REPLY]
        self.refused |= {(offset, index) for index in (*refused, *handled.failures)}

    def left_by_refused(self) -> list[Any]:
        """What there is of commands that were refused or have failed: nothing, if all is well."""
        positions = {str(Position(self.partition, *place)) for place in self.refused}
        entities = [entity for entities in self.image.entities.values() for entity in entities.values()]
        return [
            *(message.told for message in self.messages if message.told[0][:2] in self.refused),
            *(event for event in self.events if event[1:3] in self.refused),
            *(timer for timer in self.image.timers.all() if timer[1:3] in self.refused),
            *(entity for entity in entities if positions & set(entity.seen)),  # type: ignore[attr-defined]
        ]

    def sent_to(self, partition: int, network: Network) -> list[Any]:
        """The messages for a partition, in the order of their sending."""
        return [
            message.told
            for message in self.messages
            if (partition != self.partition if message.everywhere else network.home(message.key) == partition)
        ]


def received(network: Network, partition: int) -> dict[int, list[Any]]:
    """The messages in a partition's log by where they are from, without those that had come before."""
    found: dict[int, list[Any]] = {}
    for record in network.log.read(partition, 0, limit=1_000_000):
        content = network.codec.decode_record(record) if record.kind is Kind.MESSAGES else None
        if isinstance(content, Messages):
            header = content.header
            so_far = found.setdefault(header.origin_partition, [])
            columns = zip(header.origins, header.keys, content.commands, strict=True)
            for index, (origin, key, command) in enumerate(columns):
                if not so_far or tuple(origin) > so_far[-1][0]:
                    so_far.append((tuple(origin), key, command, header.causes.get(index), header.times.get(index)))
    return found


def events_out(network: Network, partition: int) -> list[OutEvent]:
    return network.log.events(partition, after=(-1, 0, 0), limit=1_000_000)


def shared_state(image: Image) -> dict[str, bytes]:
    """What is shared, as this partition has it."""
    return {name: image.ask(query(), EVERYWHERE) for name, query in image.app.queries.items()}


def come_to_rest(network: Network, owners: Sequence[Owner]) -> dict[int, Image]:
    """Steps until everything that is logged or due is handled; returns the images."""
    while True:
        network.settle(*owners)
        images = {partition: owner.image(partition) for owner in owners for partition in owner.shard.owned}
        # Time may have gone back since: what is due by the images' own time waits for a record.
        network.clock.now = max(network.clock.now, *(image.time for image in images.values()))
        moments = [image.timers.next_due() for image in images.values()]
        if all(due is None or due > network.clock.now for due in moments):
            return images
