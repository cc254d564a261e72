"""Given, when, then: tests of an app in memory, on the image, codec and outbox that production runs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Self, TypeVar

from engram.codec.codec import Codec
from engram.codec.record import Envelope, Kind, Record, encode_commands
from engram.errors import Misuse
from engram.image.image import Handled, Image
from engram.log.base import Entry
from engram.log.memory import MemoryLog
from engram.log.partitioner import partition_of
from engram.model.app import App
from engram.model.command import Command
from engram.model.context import check_key
from engram.model.entity import Entity
from engram.model.query import Query
from engram.shard.outbox import Outbox, flush
from engram.shard.replay import replay_until
from engram.testing.checked import CheckedImage, check_boundary, check_result, tell
from engram.testing.then import Step, Then

E = TypeVar("E", bound=Entity)
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
    """See `scenario`. Used on one thread."""

    def __init__(self, app: App, *, partitions: int, start: datetime) -> None:
        self._app = app
        self._codec = Codec(app)
        self._log = MemoryLog(app.name, partitions)
        self._images = [CheckedImage(partition, self._codec) for partition in range(partitions)]
        self._outboxes = [Outbox(partition, self._log, self._clock) for partition in range(partitions)]
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

    def state(self, key: str, entity: type[E]) -> E:
        """A copy of an entity, which some command must have brought into being."""
        __tracebackhide__ = True
        found = self.entities(entity)
        if key not in found:
            raise AssertionError(f"There is no {entity.__name__} {key!r}; there are: {', '.join(found) or 'none'}.")
        return found[key]

    def entities(self, entity: type[E]) -> dict[str, E]:
        """Copies of all entities of a type, by key, sorted."""
        __tracebackhide__ = True
        self._settle()
        name, version = entity.__engram__.name or "", entity.__engram__.version
        if self._app.entities.get(name) is not entity:
            raise Misuse(f"{entity.__name__} is no entity of app {self._app.name}: no command or query names it.")
        copies: dict[str, Any] = {}
        for checked in self._images:
            for key, live in checked.image.entities[name].items():
                copies[key] = self._codec.decode_entity(name, version, self._codec.encode_entity(live))
        return dict(sorted(copies.items()))

    def check(self) -> None:
        """Recovers every partition from the log alone, and from a snapshot: both must come to the same digest.

        Each step has compared with a twin already. This goes from zero once more, and so also finds what has
        changed around the handlers meanwhile, such as a module's variable. Good as a test's last line.
        """
        __tracebackhide__ = True
        self._settle()
        for checked in self._images:
            live = checked.image
            replayed, restored = Image(live.partition, self._codec), Image(live.partition, self._codec)
            replay_until(replayed, self._log, live.offset, effects=_dropped, progress=_unwatched)
            frozen = live.begin_freeze()
            while frozen.advance(1000):
                pass
            live.end_freeze()
            restored.load(frozen.rows, frozen.memory)
            for how, other in (("replayed from zero", replayed), ("restored from a snapshot", restored)):
                if other.digest() != live.digest():
                    raise AssertionError(
                        f"Partition {live.partition}, {how}, is not what it was: {_states(other)} instead of "
                        f"{_states(live)}. Handlers must depend on nothing but command, entity and ctx."
                    )

    # Running

    def _handle(self, key: str, command: Command[Any, R]) -> Then[R]:
        __tracebackhide__ = True
        self._settle()
        check_key(key)
        self._check_known("command", self._app.commands, command)
        body = self._codec.encode_body(command)
        check_boundary(body, command, self._codec.decode_command, repr(command))
        self._sequence += 1
        name, version = command.__engram__.name or "", command.__engram__.version
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
            sent=[(m.key, decode(m.name, m.version, m.body)) for m in handled.messages],
            emitted=[emitted.event for emitted in handled.events],
        )

    def _next(self, partition: int) -> Handled:
        __tracebackhide__ = True
        checked = self._images[partition]
        handled = checked.handle(self._record(checked.image))
        self._outboxes[partition].add(handled, checked.image)
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
            row = self._images[partition].image.quarantine[-1]
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


def _dropped(_handled: Handled, _image: Image) -> None:
    """Effects of a replay: they are in the log already."""


def _unwatched() -> None:
    """Nobody waits for this replay."""


def _states(image: Image) -> str:
    found = [repr(entity) for entities in image.entities.values() for entity in entities.values()]
    return ", ".join(sorted(found)) or "nothing"
