"""The model: a partition handled one command after the other, by the plainest means there are.

It shares an app's handlers, contexts and encodings with production, and nothing else: every entity is JSON that is
decoded for each command and encoded after it, so there is nothing to undo, to track, to cool or to freeze; what was
handled before is looked up in dicts that only grow. What it comes to is what production must come to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from engram.codec.codec import Codec, Commands, Messages
from engram.codec.record import Epoch, Kind, MessagesHeader, Record
from engram.errors import Misuse, Rejected
from engram.image.contents import EntityRow, KeyRow, Memory, OriginRow, SessionRow, digest_of
from engram.image.dedupe import REUSED, STALE, fingerprint
from engram.image.outcome import Outcome, Verdict, quarantine, rejection
from engram.image.quarantine import QuarantineRow
from engram.image.timers import FIRED_AT_ONCE, Timer
from engram.model.app import entity_of
from engram.model.command import Broadcast, Command
from engram.model.context import Context, Means
from engram.model.effects import Cause, Message, OutEvent, Place
from engram.model.entity import EVERYWHERE, Entity
from engram.testing.simulator.subject import Subject

_NOWHERE: Place = (-1, 0, 0)


class Came(NamedTuple):
    """A message that was handled: where it is from, and what it was."""

    origin_partition: int
    origin: Place
    key: str
    command: Command[Any, Any]


class Done(NamedTuple):
    """What came of one record."""

    outcomes: list[Outcome]
    messages: list[Message]
    events: list[OutEvent]
    came: list[Came]


class Model:
    """One partition of an app. `handled` has how often each (session, sequence) was handled."""

    def __init__(self, partition: int, subject: Subject) -> None:
        self.partition = partition
        self.handled: dict[tuple[str, int], int] = {}
        self.states: dict[tuple[str, str], tuple[Any, bytes]] = {}  # version and JSON by type and key
        self._subject = subject
        self._offset = 0
        self._time = 0
        self._sessions: dict[str, tuple[int, Outcome, int]] = {}
        self._keys: dict[str, tuple[str, Outcome]] = {}
        self._last: dict[int, Place] = {}
        self._timers: dict[Place, Timer] = {}
        self._quarantine: list[QuarantineRow] = []
        self._lent: dict[type[Entity], tuple[Entity, bytes]] = {}
        self._changing: type[Entity] | None = None
        self._done = Done([], [], [], [])
        self._contexts: dict[int, Context] = {}
        self.use(subject.apps[0].version)

    def use(self, version: int) -> None:
        """From here on records are handled by this version of the app."""
        self.codec: Codec = self._subject.codecs[version]
        if version not in self._contexts:
            codec = self.codec
            means = Means(codec.outgoing_commands, codec.outgoing_events, codec.app.limits, self._lend)
            self._contexts[version] = Context(self.partition, means)
        self._context = self._contexts[version]

    def handle(self, record: Record) -> Done:
        """The next record."""
        self._offset = record.offset
        self._done = done = Done([], [], [], [])
        if record.kind is Kind.EPOCH:
            return done
        self._time = max(self._time, record.time)
        self._context._enter_record(record.offset, self._time)  # noqa: SLF001 - the model drives contexts as images do
        self._fire()
        if record.kind is not Kind.TICK:
            content = self.codec.decode_record(record)
            if isinstance(content, Commands):
                self._handle_commands(content)
            elif isinstance(content, Messages):
                self._handle_messages(content)
        return done

    # What is in it

    def entity(self, cls: type[Entity], key: str) -> Entity | None:
        found = self.states.get((cls.__engram__.name or "", key))
        return None if found is None else self.codec.decode_entity(cls.__engram__.name or "", *found)

    def entities(self, cls: type[Entity]) -> Iterator[tuple[str, Entity]]:
        name = cls.__engram__.name or ""
        for (of, key), (version, state) in self.states.items():
            if of == name:
                yield key, self.codec.decode_entity(name, version, state)

    def digest(self) -> str:
        memory = Memory.model_construct(
            offset=0,
            epoch=0,
            app_version=0,
            time=self._time,
            sessions=[
                SessionRow(s, n, at, o.verdict.value, o.body.decode()) for s, (n, o, at) in self._sessions.items()
            ],
            keys=[KeyRow(key, mark, o.verdict.value, o.body.decode()) for key, (mark, o) in self._keys.items()],
            origins=[OriginRow(partition, *place) for partition, place in self._last.items()],
            quarantine=self._quarantine,
            quarantined=len(self._quarantine),
            timers=list(self._timers.values()),
        )
        return digest_of(self._rows(), memory)

    def _rows(self) -> Iterator[EntityRow]:
        for (name, key), (version, state) in self.states.items():
            today = self.codec.version_of(self.codec.app.entities[name])
            if version != today:
                state = self.codec.encode_entity(self.codec.decode_entity(name, version, state))  # noqa: PLW2901
            yield EntityRow(name, key, today, state)

    # Records

    def _fire(self) -> None:
        due = sorted((timer.due, place) for place, timer in self._timers.items() if timer.due <= self._time)
        for index, (_, place) in enumerate(due, -FIRED_AT_ONCE):
            timer = self._timers.pop(place, None)
            if timer is not None:
                command = self.codec.decode_command(timer.name, timer.version, timer.body.encode())
                self._run(index, command, timer.key, partial(_cause_of_timer, timer))

    def _handle_commands(self, batch: Commands) -> None:
        header = batch.header
        for index, command in enumerate(batch.commands):
            session, sequence = header.sessions[header.session[index]], header.sequence[index]
            last, known, _ = self._sessions.get(session, (-1, STALE, -1))
            key = header.idempotency.get(index)
            if sequence <= last:
                self._done.outcomes.append(known if sequence == last else STALE)
                continue
            outcome = self._recalled(key, command, header.keys[index])
            if outcome is None:
                outcome = self._run(index, command, header.keys[index], None)
                self.handled[session, sequence] = self.handled.get((session, sequence), 0) + 1
                if key is not None:
                    self._keys[key] = self._mark(command, header.keys[index]), outcome
            self._sessions[session] = sequence, outcome, self._offset
            self._done.outcomes.append(outcome)

    def _recalled(self, key: str | None, command: Command[Any, Any], of: str) -> Outcome | None:
        if key is None or key not in self._keys:
            return None
        mark, outcome = self._keys[key]
        return outcome if mark == self._mark(command, of) else REUSED

    def _mark(self, command: Command[Any, Any], key: str) -> str:
        return fingerprint(command.__engram__.name or "", key, self.codec.encode_body(command))

    def _handle_messages(self, batch: Messages) -> None:
        header = batch.header
        for index, command in enumerate(batch.commands):
            place = header.origin(index)
            if place <= self._last.get(header.origin_partition, _NOWHERE):
                continue
            self._last[header.origin_partition] = place
            self._done.came.append(Came(header.origin_partition, place, header.keys[index], command))
            if index in header.times:
                self._follow(index, command, header)
            else:
                self._run(index, command, header.keys[index], partial(_cause_of_message, header))

    def _follow(self, index: int, command: Command[Any, Any], header: MessagesHeader) -> None:
        """A broadcast that was handled at home: the same again, for this partition's copy; nothing comes of it."""
        offset, at_home, _ = header.origin(index)
        context, done = self._context, self._done
        context._enter_partition(header.origin_partition)  # noqa: SLF001
        context._enter_record(offset, header.times[index])  # noqa: SLF001
        cause = header.causes.get(index)
        self._done = Done([], [], [], [])
        self._run(at_home, command, EVERYWHERE, None if cause is None else lambda _: cause, following=index)
        self._done = done
        context._enter_partition(self.partition)  # noqa: SLF001
        context._enter_record(self._offset, self._time)  # noqa: SLF001

    # Commands

    def _run(
        self,
        index: int,
        command: Command[Any, Any],
        key: str,
        cause: Callable[[int], Cause] | None,
        *,
        following: int | None = None,
    ) -> Outcome:
        broadcast, context = isinstance(command, Broadcast), self._context
        cls = entity_of(type(command))
        messages: list[Message] = []
        context._enter_work(messages)  # noqa: SLF001
        context._index, context._cause, context._in_broadcast = index, cause, broadcast  # noqa: SLF001
        self._changing, self._lent = (cls if broadcast else None), {}
        try:
            if broadcast and key != EVERYWHERE:
                raise Misuse("A broadcast is for everybody.")
            entity = self.entity(cls, key) or cls(key=key)
            reply = command.handle(entity, context)
            outcome = Outcome(Verdict.REPLY, self.codec.result_encoder(type(command))(reply))
            self._check(entity, key)
            state = self.codec.encode_entity(entity)
        except Exception as problem:  # noqa: BLE001 - whatever a handler raises must leave no trace
            context._drop_effects()  # noqa: SLF001
            if isinstance(problem, Rejected):
                return rejection(problem)
            row = QuarantineRow(
                self._offset, index if following is None else following, command.__engram__.name or "", key
            )
            self._quarantine.append(row._replace(time=self._time))
            return quarantine(problem)
        self.states[cls.__engram__.name or "", key] = self.codec.version_of(cls), state
        if following is None:
            self._let_out(index, key, cause)
            self._done.messages.extend(messages)
            if broadcast:
                self._done.messages.append(self._told_everybody(index, command, cause, len(messages)))
        context._keep_effects()  # noqa: SLF001
        return outcome

    def _check(self, entity: Entity, key: str) -> None:
        if entity.key != key:
            raise Misuse("A handler has changed a key.")
        for lent, before in self._lent.values():
            if self.codec.encode_entity(lent) != before:
                raise Misuse("A handler has changed what is shared.")

    def _lend(self, cls: type[Any]) -> Any:
        if cls not in self.codec.app.entities.values() or cls is self._changing:
            raise Misuse(f"{cls} is not for this handler to read.")
        if cls not in self._lent:
            entity = self.entity(cls, EVERYWHERE) or cls(key=EVERYWHERE)
            self._lent[cls] = entity, self.codec.encode_entity(entity)
        return self._lent[cls][0]

    def _let_out(self, index: int, key: str, cause: Callable[[int], Cause] | None) -> None:
        context = self._context
        root = f"{self.partition}:{self._offset}.{index}" if cause is None else cause(index).root
        for number, (name, version, body) in enumerate(context._emitted):  # noqa: SLF001
            place = self.partition, self._offset, index, number
            self._done.events.append(OutEvent(*place, name, version, self._time, key, body, root))
        for due, number, name, version, body in context._scheduled:  # noqa: SLF001
            timer = Timer(due, self._offset, index, number, key, name, version, body.decode(), root)
            self._timers[timer[1:4]] = timer
        for handle in context._cancelled:  # noqa: SLF001
            self._timers = {place: timer for place, timer in self._timers.items() if timer.handle != handle}

    def _told_everybody(
        self, index: int, command: Command[Any, Any], cause: Callable[[int], Cause] | None, number: int
    ) -> Message:
        name, version = command.__engram__.name or "", self.codec.version_of(type(command))
        led_by = None if cause is None else cause(index)
        place = self._offset, index, number
        return Message(name, version, EVERYWHERE, self.codec.encode_body(command), place, led_by, self._time)


def versions_of(records: list[Record], first: int) -> Mapping[int, int]:
    """Which version of the app has handled each record that is work, by offset: that of the owner at the time; what
    came when there was none is the next one's."""
    epoch, version = -1, 0
    found: dict[int, int] = {}
    waiting: list[int] = []
    for record in records:
        if record.kind is Kind.EPOCH:
            word = Epoch.model_validate_json(record.payload)
            if word.counts_after(epoch):
                epoch, version = record.offset, word.app_version
        else:
            waiting.append(record.offset)
        if version:
            found |= dict.fromkeys(waiting, version)
            waiting.clear()
    return found | dict.fromkeys(waiting, version or first)


def _cause_of_message(header: MessagesHeader, index: int) -> Cause:
    cause = header.cause(index)
    return Cause(cause.root, cause.depth + 1)


def _cause_of_timer(timer: Timer, _index: int) -> Cause:
    return Cause(timer.root, 1, (timer.offset, timer.index, timer.name))
