"""Given, when, then: tests of an app in memory, on the image, codec and outbox that production runs."""

from __future__ import annotations

import heapq
import sys
from datetime import UTC, datetime, timedelta
from typing import Any, Self, TypeVar

from engram.codec.codec import Codec
from engram.codec.record import Envelope, Kind, Record, encode_commands
from engram.errors import Misuse, Rejected
from engram.image.found import Found, merge_rows, merge_totals
from engram.image.image import Handled, Image
from engram.image.row_index import Index, TalliedRows
from engram.log.base import Entry
from engram.log.memory import MemoryLog
from engram.log.partitioner import partition_of
from engram.model.app import App
from engram.model.command import Broadcast, Command
from engram.model.context import check_key
from engram.model.entity import EVERYWHERE, Entity, Shared
from engram.model.event import Event
from engram.model.query import Query
from engram.model.read_model import Lookup, Ranked, Ranking, ReadModel, Search, Tally, Totals
from engram.shard.outbox import Outbox, flush
from engram.testing.checked import CheckedImage, check_boundary, check_result, tell
from engram.testing.recoveries import Kept, check_replays, check_shards, check_upgrade, snapshot_of
from engram.testing.then import Asked, Step, Then

E = TypeVar("E", bound=Entity)
S = TypeVar("S", bound=Shared)
R = TypeVar("R")
A = TypeVar("A")

START = datetime(2024, 1, 1, tzinfo=UTC)
# Messages that lead to messages: beyond this many rounds they most likely go in a circle.
_ROUNDS = 1000
_MS = timedelta(milliseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def scenario(app: App, *, partitions: int = 8, start: datetime = START) -> Scenario:
    """A new, empty application in memory.

        s = scenario(app)
        s.given("ada", Register(name="Ada"))
        s.when("ada", Follow(whom="bob")).replies(None).sends("bob", GainFollower(by="ada"))
        assert s.state("bob", User).followers == {"ada": None}

    Messages are delivered before `given` or `when` returns. Time stands still until the test moves it. After each
    command everything it touched is checked: see `engram.testing.checked`. What is wrong is an `AssertionError`.
    Not found: handlers that depend on the order of a set, which is the same within one process.
    """
    return Scenario(app, partitions=partitions, start=start)


class Scenario:
    """See `scenario`. Used on one thread. `codec` is the app's, if there is one already: it takes a while to make."""

    def __init__(self, app: App, *, partitions: int, start: datetime, codec: Codec | None = None) -> None:
        self._app = app
        self._codec = codec or Codec(app)
        self._log = MemoryLog(app.name, partitions)
        self._images = [CheckedImage(partition, self._codec) for partition in range(partitions)]
        self._outboxes = [Outbox(partition, self._log, self._clock) for partition in range(partitions)]
        self._kept: list[list[Kept]] = []
        self._now = _EPOCH
        self._sequence = 0
        self._last: Then[Any] | None = None
        self.at(start)

    @property
    def now(self) -> datetime:
        """What `ctx.now` is for the next command, in UTC."""
        return self._now

    def at(self, now: datetime) -> Self:
        """Moves time to `now`, and it never goes back. Timers that are due on the way fire, each at its time."""
        __tracebackhide__ = True
        if now.tzinfo is None:
            raise Misuse(f"{now} has no time zone: write datetime(..., tzinfo=UTC).")
        if now < self._now:
            raise Misuse(f"Time does not go back: it is {self._now}, and {now} was asked for.")
        wanted = _EPOCH + (now - _EPOCH) // _MS * _MS  # as exact as records are
        while (due := self._next_due()) is not None and due <= wanted:
            self._now = max(self._now, due)
            self._deliver("A timer")
        self._now = wanted
        return self

    def _next_due(self) -> datetime | None:
        due = [moment for checked in self._images if (moment := checked.image.timers.next_due()) is not None]
        return _EPOCH + min(due) * _MS if due else None

    def pass_time(self, duration: timedelta) -> Self:
        return self.at(self._now + duration)

    def given(self, key: str, command: Command[Any, R]) -> R:
        """Handles a command that must succeed, and returns its reply."""
        __tracebackhide__ = True
        return self._handle(key, command).reply

    def when(self, key: str, command: Command[Any, R]) -> Then[R]:
        """Handles a command; say of what is returned what should have become of it.

        A quarantine that the test does not expect fails the next step.
        """
        __tracebackhide__ = True
        self._last = self._handle(key, command)
        return self._last

    def broadcast(self, command: Broadcast[Any, R]) -> Then[R]:
        """Handles a command for a shared object, in every partition, as `when` does for an entity."""
        __tracebackhide__ = True
        return self.when(EVERYWHERE, command)

    def ask(self, key: str, query: Query[Any, A]) -> A:
        """The answer from live state. Raises `Rejected` when the query does."""
        __tracebackhide__ = True
        self._settle()
        check_key(key)
        self._check_known("query", self._app.queries, query)
        check_boundary(self._codec.encode_body(query), query, self._codec.decode_query, repr(query))
        try:
            body = self._image(key).ask(query, key)
        except ValueError as problem:
            raise AssertionError(f"The answer of {query!r} for {key!r} cannot be encoded: {problem}") from problem
        answer: A = check_result(self._codec, type(query), body, f"The answer of {query!r} for {key!r}")
        return answer

    def asks(self, key: str, query: Query[Any, A]) -> Asked[A]:
        """Asks a query; say of what is returned what the answer should have been, or the refusal."""
        __tracebackhide__ = True
        try:
            return Asked(f"{query!r} for {key!r}", self.ask(key, query))
        except Rejected as refused:
            return Asked(f"{query!r} for {key!r}", refused)

    def look_up(self, model: type[Lookup[Any, A]], key: str) -> list[A]:
        """All rows of a key, as the read model of live state has them."""
        __tracebackhide__ = True
        return [row for _, row in self._found(model, key)]

    def top(self, model: type[Ranking[Any, A]], board: str, limit: int = 10) -> list[Ranked[A]]:
        """The rows with the highest scores, and their scores."""
        __tracebackhide__ = True
        return [Ranked(-found.order, row) for found, row in self._found(model, board)[:limit]]

    def search(self, model: type[Search[Any, A]], words: str) -> list[A]:
        """All rows whose texts have the words, the most relevant first."""
        __tracebackhide__ = True
        return [row for _, row in self._found(model, words)]

    def tally(self, model: type[Tally[Any]], group: str) -> Totals:
        """Count, sum, least and greatest of a group."""
        __tracebackhide__ = True
        return merge_totals(index.find(group) for index in self._indices(model) if isinstance(index, TalliedRows))

    def _found(self, model: type[ReadModel], place: str) -> list[tuple[Found, Any]]:
        __tracebackhide__ = True
        finds = [i.find(place, None, sys.maxsize) for i in self._indices(model) if not isinstance(i, TalliedRows)]
        codec = self._codec.rows[model.__engram__.name or ""]
        return [(found, codec.row(found.text)) for found in merge_rows(finds, sys.maxsize - 1)[0]]

    def _indices(self, model: type[ReadModel]) -> list[Index]:
        __tracebackhide__ = True
        self._settle()
        name = model.__engram__.name or ""
        if self._app.read_models.get(name) is not model:
            raise Misuse(f"{model.__name__} is no read model of app {self._app.name}: list it in App(...).")
        return [checked.image.read_models.index(name) for checked in self._images if checked.image.read_models]

    def state(self, key: str, entity: type[E]) -> E:
        """A copy of an entity, which some command must have brought into being."""
        __tracebackhide__ = True
        found = self.entities(entity)
        if key not in found:
            raise AssertionError(f"There is no {entity.__name__} {key!r}; there are: {', '.join(found) or 'none'}.")
        return found[key]

    def shared(self, of: type[S]) -> S:
        """A copy of a shared object, which must be the same in every partition."""
        __tracebackhide__ = True
        self._settle()
        name, version = of.__engram__.name or "", self._codec.version_of(of)
        states = {
            self._codec.encode_entity(checked.image.entities[name].get(EVERYWHERE) or of(key=EVERYWHERE))
            for checked in self._images
        }
        if len(states) > 1:
            raise AssertionError(f"{of.__name__} is not the same in all partitions: {sorted(states)}.")
        copy: Any = self._codec.decode_entity(name, version, states.pop())
        return copy  # type: ignore[no-any-return]  # of the entity's own type

    def entities(self, entity: type[E]) -> dict[str, E]:
        """Copies of all entities of a type, by key, sorted."""
        __tracebackhide__ = True
        self._settle()
        name = entity.__engram__.name or ""
        if self._app.entities.get(name) is not entity:
            raise Misuse(f"{entity.__name__} is no entity of app {self._app.name}: no command or query names it.")
        version = self._codec.version_of(entity)
        copies: dict[str, Any] = {}
        for checked in self._images:
            for key, live in checked.image.entities[name].items():
                copies[key] = self._codec.decode_entity(name, version, self._codec.encode_entity(live))
        return dict(sorted(copies.items()))

    def events(self) -> list[Event]:
        """All events so far, those of messages and timers too: a partition's in their order, others by their times."""
        __tracebackhide__ = True
        self._settle()
        found = [self._log.events(p, after=(-1, 0, 0), limit=sys.maxsize) for p in range(self._log.partitions)]
        merged = heapq.merge(*found, key=lambda event: event.time)
        return [self._codec.decode_event(event.name, event.version, event.body) for event in merged]

    def check(self) -> None:
        """Recovers every partition from the log alone, and from every snapshot: all must come to the same digest, and
        to the same rows of read models.

        Each step has compared with a twin already. This goes from zero once more, and so also finds what has
        changed around the handlers meanwhile, such as a module's variable. Good as a test's last line.
        """
        __tracebackhide__ = True
        self._settle()
        for partition, checked in enumerate(self._images):
            kept = [snapshots[partition] for snapshots in self._kept]
            check_replays(checked.image, self._log, self._codec, kept, checked.places)

    def snapshot(self) -> None:
        """Keeps a snapshot of every partition as it is now: `check` recovers from it and the records after it."""
        __tracebackhide__ = True
        self._settle()
        self._kept.append([snapshot_of(checked.image) for checked in self._images])

    def check_shards(self, *counts: int) -> None:
        """Has real shards recover everything, so many at a time, and compares; one, and one for each partition, if
        nothing is said."""
        __tracebackhide__ = True
        self._settle()
        live = [checked.image for checked in self._images]
        check_shards(self._codec, self._log, live, self._clock, counts or (1, self._log.partitions))

    def check_upgrade(self, new: App | None = None) -> None:
        """Ends the app cleanly in a copy of the log, and starts its next version from the snapshots: what it finds must
        be all there, and the same if the version is all that is new. `new` is that version; without it, the same code
        with the next number."""
        __tracebackhide__ = True
        self._settle()
        live = [checked.image for checked in self._images]
        check_upgrade(self._codec, self._log, live, self._clock, None if new is None else Codec(new))

    # Running

    def _handle(self, key: str, command: Command[Any, R]) -> Then[R]:
        __tracebackhide__ = True
        self._settle()
        check_key(key)
        self._check_known("command", self._app.commands, command)
        body = self._codec.encode_body(command)
        check_boundary(body, command, self._codec.decode_command, repr(command))
        self._sequence += 1
        name, version = command.__engram__.name or "", self._codec.version_of(type(command))
        envelope = Envelope(name, version, key, body, "scenario", self._sequence)
        partition = partition_of(key, self._log.partitions)
        payload = encode_commands([envelope], "scenario")
        self._log.append([Entry(partition, Kind.COMMANDS, self._clock(), payload)])
        handled = self._next(partition)
        self._deliver(tell(command, key))
        return Then(self._step(key, command, handled))

    def _step(self, key: str, command: Command[Any, Any], handled: Handled) -> Step:
        outcome = handled.outcomes[0]
        decode = self._codec.decode_command
        return Step(
            told=tell(command, key),
            outcome=outcome,
            reply=None if outcome.error else self._codec.decode_result(type(command), outcome.body),
            failure=handled.failures.get(0),
            sent=[(m.key, decode(m.name, m.version, m.body)) for m in handled.messages if m.everywhere is None],
            emitted=[self._codec.decode_event(e.name, e.version, e.body) for e in handled.events],
        )

    def _next(self, partition: int) -> Handled:
        __tracebackhide__ = True
        checked = self._images[partition]
        handled = checked.handle(self._record(checked.image))
        self._outboxes[partition].add(handled)
        return handled

    def _deliver(self, cause: str) -> None:
        """Handles messages until none is on its way, in rounds, as a shard does."""
        __tracebackhide__ = True
        for _ in range(_ROUNDS):
            for checked, outbox in zip(self._images, self._outboxes, strict=True):
                due = checked.image.timers.next_due()
                if due is not None and due <= self._clock():
                    outbox.tick(self._clock())
            flush(self._outboxes, self._log)
            waiting = [p for p, checked in enumerate(self._images) if self._log.end(p) > checked.image.offset]
            if not waiting:
                return
            for partition in waiting:
                self._deliver_record(partition, cause)
        raise AssertionError(f"{cause} set off messages that still go on after {_ROUNDS} rounds: is it a circle?")

    def _deliver_record(self, partition: int, cause: str) -> None:
        __tracebackhide__ = True
        record = self._record(self._images[partition].image)
        handled = self._next(partition)
        for index, problem in handled.failures.items():
            row = self._images[partition].image.quarantine.listed[-1]
            message = f"{row.command} of {row.key!r}"
            if index >= 0:
                content: Any = self._codec.decode_record(record)
                message = tell(content.commands[index], content.header.keys[index])
            raise AssertionError(
                f"{cause} led to {message}, which was quarantined ({type(problem).__name__}: {problem})."
            ) from problem

    def _record(self, image: Image) -> Record:
        return self._log.read(image.partition, image.offset, limit=1)[0]

    def _image(self, key: str) -> Image:
        return self._images[partition_of(key, self._log.partitions)].image

    def _settle(self) -> None:
        __tracebackhide__ = True
        if self._last is not None:
            self._last.unexpected_quarantine()

    def _check_known(self, kind: str, known: dict[str, Any], asked: Command[Any, Any] | Query[Any, Any]) -> None:
        if known.get(asked.__engram__.name or "") is not type(asked):
            raise Misuse(f"{type(asked).__name__} is no {kind} of app {self._app.name}: list it in App(...).")

    def _clock(self) -> int:
        return (self._now - _EPOCH) // _MS
