"""The memory image of one partition: all its entities, and what recovery needs.

Pure: no I/O, no clock, no threads. The same records, in order, give the same image, live or replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count
from typing import Any, NamedTuple

from engram.codec.codec import Codec, Commands, Messages
from engram.codec.record import Epoch, Kind, Message, Origin, Record
from engram.errors import Corrupt, Misuse, Rejected
from engram.image.contents import EntityRow, KeyRow, Memory, OriginRow, QuarantineRow, SessionRow, digest_of
from engram.image.dedupe import STALE, Dedupe, Seen, Window, all_new, fingerprint
from engram.image.freeze import Freeze
from engram.image.guard import Guard, assigned_fields, guard_for
from engram.image.outcome import DONE, Outcome, Verdict, quarantine, rejection
from engram.image.timers import FIRED_AT_ONCE, Timer, Timers
from engram.image.undo import UndoLog, adopt
from engram.model.app import entity_of
from engram.model.command import Command
from engram.model.context import Context
from engram.model.declared import UNDECLARED
from engram.model.entity import Entity
from engram.model.event import Event
from engram.model.query import Query

# How many quarantined commands an image lists; the count goes on beyond it.
QUARANTINE_LISTED = 1000
_REPLY = Verdict.REPLY


class Emitted(NamedTuple):
    """An event on its way out: `(offset, index, number)` says which command emitted it, and makes it unique. `key` is
    that of the entity that emitted it."""

    offset: int
    index: int  # type: ignore[assignment]  # a field, not tuple.index
    number: int
    key: str
    event: Event
    body: bytes


class Handled(NamedTuple):
    """What handling a record came to. `writer` waits for the outcomes, if anybody does. `failures` has the
    exceptions behind the quarantined outcomes, by index."""

    writer: str
    outcomes: list[Outcome]
    messages: list[Message]
    events: list[Emitted]
    failures: dict[int, Exception]


class Image:
    """One partition's entities in memory. `offset` is that of the next record to handle."""

    def __init__(self, partition: int, codec: Codec, *, window: Window | None = None) -> None:
        self.partition = partition
        self.codec = codec
        self.app = codec.app
        self.offset = 0
        self.epoch = -1
        self.app_version = 0
        self.time = 0
        self.entities: dict[str, dict[str, Entity]] = {name: {} for name in self.app.entities}
        self.dedupe = Dedupe(window or Window())
        self.origins: dict[int, Origin] = {}
        self.timers = Timers()
        self.quarantine: list[QuarantineRow] = []
        self.quarantined = 0
        self.handled = 0
        self.last_index = 0  # of the last record that was handled
        self.changed = 0  # the offset after the last record that was not an epoch
        self.freeze: Freeze | None = None
        self._undo = UndoLog()
        self._context = Context(partition, self._check_effect)
        self._homes = {cls: _Home(cls, self.entities[name]) for name, cls in self.app.entities.items()}
        self._plans: dict[type[Any], _Plan] = {
            cls: _plan(cls, self._homes[entity_of(cls)], codec.result_encoder(cls))
            for cls in self.app.commands.values()
        }

    # Handling

    def handle(self, record: Record) -> Handled:
        """Handles the next record of the partition.

        Raises `Corrupt` before anything is touched when the record cannot be decoded or is not the next one.
        """
        if record.partition != self.partition or record.offset != self.offset:
            raise Corrupt(
                f"Partition {self.partition} expected record {self.offset} next and was given record "
                f"{record.offset} of partition {record.partition}: records are missing from the log."
            )
        content, problem = self._decode(record)
        handled = Handled(content.header.writer if isinstance(content, Commands) else "", [], [], [], {})
        if problem is not None:
            handled.failures[0] = problem
        self.last_index = 0
        if isinstance(content, Epoch):
            self.epoch = record.offset
            self.app_version = content.app_version
        elif content is not None or record.kind is Kind.TICK:
            self.time = max(self.time, record.time)
            self._context._enter_record(record.offset, self.time)
            if len(self.timers):
                self._fire(handled)
            if isinstance(content, Commands):
                self._handle_commands(record.offset, content, handled)
            elif content is not None:
                self._handle_messages(content, handled)
            self.last_index = 0 if content is None else max(len(content.commands) - 1, 0)
        self.offset += 1
        if record.kind.is_work:
            self.changed = self.offset
        return handled

    def _decode(self, record: Record) -> tuple[Commands | Messages | Epoch | None, Corrupt | None]:
        if record.kind in (Kind.NOTHING, Kind.TICK):
            return None, None
        try:
            return self.codec.decode_record(record), None
        except Corrupt as problem:
            if record.kind is not Kind.PLAIN:
                raise
            # Nobody has checked it at a gateway: a stranger's mistake must not stop the partition.
            self._set_aside(0, "", "", problem)
            return None, problem

    def _fire(self, handled: Handled) -> None:
        """Handles what is due, before the record's own commands: with indices below theirs."""
        for index, place in enumerate(self.timers.due(self.time), -FIRED_AT_ONCE):
            timer = self.timers.take(place)
            if timer is None:
                continue  # one that fired just before has cancelled it
            try:
                command = self.codec.decode_command(timer.name, timer.version, timer.body.encode())
            except Corrupt as problem:
                self._set_aside(index, timer.name, timer.key, problem)
            else:
                self._run([(index, command, timer.key)], handled)
        handled.outcomes.clear()  # nobody waits for them

    def _handle_commands(self, offset: int, batch: Commands, handled: Handled) -> None:
        header = batch.header
        seen = self.dedupe.sessions_of(header.sessions)
        if header.idempotency or not all_new(seen, header.session, header.sequence):
            self._handle_one_by_one(offset, seen, batch, handled)
        else:
            self._run(zip(count(), batch.commands, header.keys, strict=False), handled)
            # Of a session's commands only the last counts from here on, and a dict keeps just that.
            last = dict(zip(header.session, zip(header.sequence, handled.outcomes, strict=True), strict=True))
            for number, (sequence, outcome) in last.items():
                seen[number].remember(sequence, outcome, offset)

    def _handle_one_by_one(self, offset: int, seen: list[Seen], batch: Commands, handled: Handled) -> None:
        """The same for a record with commands that were handled before, or that have idempotency keys."""
        header = batch.header
        columns = zip(batch.commands, header.keys, header.session, header.sequence, strict=True)
        for index, (command, key, number, sequence) in enumerate(columns):
            session = seen[number]
            if sequence <= session.sequence:
                handled.outcomes.append(session.outcome if sequence == session.sequence else STALE)
                continue
            idempotency_key = header.idempotency.get(index)
            mark = "" if idempotency_key is None else self._fingerprint(command, key)
            known = None if idempotency_key is None else self.dedupe.recall_key(idempotency_key, mark)
            if known is not None:
                handled.outcomes.append(known)
            else:
                self._run([(index, command, key)], handled)
                if idempotency_key is not None:
                    self.dedupe.remember_key(idempotency_key, mark, handled.outcomes[-1])
            session.remember(sequence, handled.outcomes[-1], offset)

    def _handle_messages(self, batch: Messages, handled: Handled) -> None:
        header = batch.header
        seen = self.origins.get(header.origin_partition, Origin(-1, 0, 0))
        columns = zip(count(), batch.commands, header.keys, header.origins, strict=False)
        new = []
        for index, command, key, origin in columns:
            if origin > seen:
                new.append((index, command, key))
                seen = origin
        self._run(new, handled)
        self.origins[header.origin_partition] = seen
        handled.outcomes.clear()  # nobody waits for them

    def _fingerprint(self, command: Command[Any, Any], key: str) -> str:
        return fingerprint(command.__engram__.name or "", key, self.codec.encode_body(command))

    def _run(self, work: Iterable[tuple[int, Command[Any, Any], str]], handled: Handled) -> None:
        """Runs handlers one after the other, each all or nothing. `work` has index, command and key."""
        plans = self._plans
        undo = self._undo
        unsettled = undo.unsettled
        forget = undo.clear
        context = self._context
        freeze = self.freeze
        already = len(handled.outcomes)
        new: Entity | None = None  # the last one that was made
        keep = handled.outcomes.append
        for index, command, key in work:
            home, entities, guard, capture, checked, replies_none, encode_reply = plans[type(command)]
            entity = entities.get(key)
            if entity is None:
                entity = new = home.fresh(key, undo)
            elif freeze is not None:
                freeze.before_change(home.name, key)
            before: Any = () if capture is None else capture(entity)
            context._index = index
            try:
                reply = command.handle(entity, context)
                # A reply is encoded at once: it may be part of the state, and change with it.
                outcome = DONE if reply is None and replies_none else Outcome(_REPLY, encode_reply(reply))
                effects = self._effects(index, key) if context._effective else None
                # Last, because it makes the changes final.
                if checked:
                    guard.settle(entity, key, before, undo)
                if undo:
                    if unsettled:
                        undo.settle()
                    else:
                        forget()
            except Exception as problem:  # noqa: BLE001 - whatever a handler raises must leave no trace
                undo.roll_back()
                guard.restore(entity, key, before)
                context._take_effects()
                keep(self._refuse(index, command, key, problem, handled))
                continue
            if entity is new:
                entities[key] = entity
            if effects is not None:
                self._take_effect(effects, handled)
            keep(outcome)
        self.handled += len(handled.outcomes) - already

    def _refuse(
        self, index: int, command: Command[Any, Any], key: str, problem: Exception, handled: Handled
    ) -> Outcome:
        if isinstance(problem, Rejected):
            return rejection(problem)
        handled.failures[index] = problem
        self._set_aside(index, command.__engram__.name or "", key, problem)
        return quarantine(problem)

    def _set_aside(self, index: int, name: str, key: str, problem: Exception) -> None:
        self.quarantined += 1
        if len(self.quarantine) < QUARANTINE_LISTED:
            error = f"{type(problem).__name__}: {problem}"[:500]
            self.quarantine.append(QuarantineRow(self.offset, index, name, key, error))

    def _effects(self, index: int, of: str) -> _Effects:
        """The effects of a command of the entity `of`, encoded; it raises what cannot be, before anything happens."""
        made = self._context._take_effects()
        messages = []
        for number, (key, command) in enumerate(made.sends):
            name, version, body = self._readable(command)
            messages.append(Message(name, version, key, body, Origin(self.offset, index, number)))
        events = [
            Emitted(self.offset, index, number, of, event, self.codec.encode_body(event))
            for number, event in enumerate(made.events)
        ]
        timers = []
        for number, (due, command) in enumerate(made.scheduled):
            name, version, body = self._readable(command)
            timers.append(Timer(due, self.offset, index, number, of, name, version, body.decode()))
        return _Effects(messages, events, timers, made.cancelled)

    def _readable(self, command: Command[Any, Any]) -> tuple[str, int, bytes]:
        """Name, version and body of a command, which was read back: here it can be quarantined, while a record that
        cannot be decoded stops its receiver."""
        name, version = command.__engram__.name or "", command.__engram__.version
        body = self.codec.encode_body(command)
        self.codec.decode_command(name, version, body)
        return name, version, body

    def _take_effect(self, effects: _Effects, handled: Handled) -> None:
        handled.messages.extend(effects.messages)
        handled.events.extend(effects.events)
        for timer in effects.timers:
            self.timers.add(timer)
        for handle in effects.cancelled:
            self.timers.cancel(handle)

    def _check_effect(self, effect: Any) -> None:
        kind = "event" if isinstance(effect, Event) else "command"
        known: dict[str, type[Any]] = self.app.events if kind == "event" else self.app.commands
        declared = getattr(effect, "__engram__", UNDECLARED)
        if known.get(declared.name or "") is not type(effect):
            raise Misuse(f"{type(effect).__name__} is no {kind} of app {self.app.name}: list it in App({kind}s=[...])")

    # Reading

    def ask(self, query: Query[Any, Any], key: str) -> bytes:
        """The answer as JSON, from live state. A query that changes the state is undone and refused."""
        home = self._homes[entity_of(type(query))]
        kept = home.entities.get(key)
        entity = home.fresh(key, self._undo) if kept is None else kept
        before = home.guard.captured(entity)
        try:
            answer = self.codec.result_encoder(type(query))(query.answer(entity))
            changed = bool(self._undo) or not home.guard.unchanged(entity, key, before)
        finally:
            self._undo.roll_back()
            home.guard.restore(entity, key, before)
        if changed:
            raise Misuse(f"Query {type(query).__name__} changed its entity; queries only read. Make it a command.")
        return answer

    def recall(self, session: str, sequence: int) -> Outcome | None:
        """The outcome of a command that was handled, from memory; None if it was not handled yet."""
        return self.dedupe.recall(session, sequence) if self.dedupe.handled(session, sequence) else None

    def count(self) -> int:
        """How many entities there are."""
        return sum(map(len, self.entities.values()))

    def digest(self) -> str:
        """The digest of everything but position and epoch. Goes over the whole image."""
        frozen = Freeze(self.memory(), self.entities, self.codec)
        while frozen.advance(10_000):
            pass
        return digest_of(frozen.rows, frozen.memory)

    # Snapshots

    def begin_freeze(self) -> Freeze:
        """Starts a copy of the image as it is now. Go on with `Freeze.advance` between commands, then end it."""
        self.freeze = Freeze(self.memory(), self.entities, self.codec)
        return self.freeze

    def end_freeze(self) -> None:
        self.freeze = None

    def memory(self) -> Memory:
        """Everything but the entities, copied."""
        dedupe = self.dedupe
        return Memory.model_construct(
            offset=self.offset,
            epoch=self.epoch,
            app_version=self.app_version,
            time=self.time,
            sessions=[
                SessionRow(name, s.sequence, s.offset, s.outcome.verdict.value, s.outcome.body.decode())
                for name, s in dedupe.sessions.items()
            ],
            keys=[
                KeyRow(key, mark, outcome.verdict.value, outcome.body.decode())
                for key, (mark, outcome) in dedupe.keys.items()
            ],
            origins=[OriginRow(p, *origin) for p, origin in sorted(self.origins.items())],
            quarantine=list(self.quarantine),
            quarantined=self.quarantined,
            timers=self.timers.all(),
        )

    def load(self, rows: list[EntityRow], memory: Memory) -> None:
        """Fills a new image with contents; old versions are brought up on the way."""
        for row in rows:
            entity = self.codec.decode_entity(row.entity, row.version, row.state)
            self._homes[type(entity)].put(row.key, entity, self._undo)
        self.offset = self.changed = memory.offset
        self.epoch = memory.epoch
        self.app_version = memory.app_version
        self.time = memory.time
        self.dedupe.sessions.update(
            (r.session, Seen(r.sequence, Outcome(Verdict(r.verdict), r.body.encode()), r.offset))
            for r in memory.sessions
        )
        self.dedupe.keys.update(
            (r.idempotency_key, (r.fingerprint, Outcome(Verdict(r.verdict), r.body.encode()))) for r in memory.keys
        )
        self.origins.update((r.partition, Origin(r.offset, r.index, r.number)) for r in memory.origins)
        self.timers = Timers(memory.timers)
        self.quarantine.extend(memory.quarantine)
        self.quarantined = memory.quarantined


class _Effects(NamedTuple):
    """What a command brings about besides the change of its entity, encoded."""

    messages: list[Message]
    events: list[Emitted]
    timers: list[Timer]
    cancelled: list[str]


class _Home:
    """Where the entities of one type live."""

    __slots__ = ("_mutable", "cls", "entities", "guard", "name")

    def __init__(self, cls: type[Entity], entities: dict[str, Entity]) -> None:
        self.cls = cls
        self.name = cls.__engram__.name or ""
        self.entities = entities
        self.guard = guard_for(cls, None)
        self._mutable = self.guard.mutable

    def fresh(self, key: str, undo: UndoLog) -> Entity:
        return self._adopted(self.cls(key=key), undo)

    def put(self, key: str, entity: Entity, undo: UndoLog) -> None:
        self.entities[key] = self._adopted(entity, undo)

    def _adopted(self, entity: Entity, undo: UndoLog) -> Entity:
        for name, shape in self._mutable:
            setattr(entity, name, adopt(getattr(entity, name), undo, shape))
        return entity


class _Plan(NamedTuple):
    """What is looked up once per command type instead of once per command."""

    home: _Home
    entities: dict[str, Entity]
    guard: Guard
    capture: Callable[[Entity], Any] | None
    checked: bool
    replies_none: bool
    encode_reply: Callable[[Any], bytes]


def _plan(command: type[Command[Any, Any]], home: _Home, encode_reply: Callable[[Any], bytes]) -> _Plan:
    try:
        replies_none = encode_reply(None) == b"null"
    except ValueError:
        replies_none = False
    guard = guard_for(home.cls, assigned_fields(command.handle, home.cls))
    return _Plan(home, home.entities, guard, guard.capture, guard.checked, replies_none, encode_reply)
