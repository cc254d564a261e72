"""The memory image of one partition: all its entities, and what recovery needs.

Pure: no I/O, no clock, no threads. The same records, in order, give the same image, live or replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import count
from typing import Any, NamedTuple, TypeVar

from engram.codec.codec import Codec, Commands, Messages, strictly
from engram.codec.record import BatchHeader, Epoch, Kind, MessagesHeader, Origin, Record
from engram.errors import Corrupt, Denied, Misuse, Rejected
from engram.image.contents import Copied, EntityColumns, EntityRow, Memory, digest_of
from engram.image.dedupe import STALE, Dedupe, Seen, Window, all_new, fingerprint
from engram.image.freeze import Freeze
from engram.image.home import Cold, Handle, Home, Plan, Reading, plan_for, reading_for, set_mark
from engram.image.lending import Lending
from engram.image.outcome import DONE, Outcome, Verdict, quarantine, rejection
from engram.image.quarantine import Quarantine, QuarantineRow
from engram.image.read_models import NewTextIndex, ReadModels
from engram.image.timers import FIRED_AT_ONCE, Timer, Timers
from engram.image.undo import UndoLog
from engram.model.app import entity_of
from engram.model.command import Broadcast, Command
from engram.model.context import Context, Means
from engram.model.effects import Cause, Message, OutEvent, Place
from engram.model.entity import EVERYWHERE, Entity, Shared
from engram.model.principal import Principal
from engram.model.query import Query

E = TypeVar("E", bound=Entity)

_REPLY = Verdict.REPLY


class Handled(NamedTuple):
    """What handling a record came to. `writer` waits for the outcomes, if anybody does. `failures` has the
    exceptions behind the quarantined outcomes, by index. `repeats` has the commands that were handled before, by index,
    with the offset of the record in which they were; -1 if that is not known. For messages, `arrived` is the partition
    that they are from, and the last of them. `keys` has the entities of the record's commands, also of those that were
    not handled; `fired` the timers that went off, by index."""

    writer: str
    outcomes: list[Outcome]
    messages: list[Message]
    events: list[OutEvent]
    failures: dict[int, Exception]
    repeats: dict[int, int]
    arrived: tuple[int, Place] | None
    keys: Sequence[str]
    fired: list[tuple[int, Timer]]


class Image:
    """One partition's entities in memory. `offset` is that of the next record to handle.

    `observe` may put something between handlers and what they use: for tests. `around` may put something around the
    handlers themselves, which changes nothing of what they do: to watch them. `cold` makes the place for encoded
    entities of a type. `new_text_index` makes what searches look in; without it no read models are kept, of no kind: an
    image that nobody asks needs none.
    """

    def __init__(
        self,
        partition: int,
        codec: Codec,
        *,
        window: Window | None = None,
        observe: Callable[[Means], Means] | None = None,
        around: Callable[[Handle], Handle] | None = None,
        cold: Callable[[], Cold] = dict,
        new_text_index: NewTextIndex | None = None,
    ) -> None:
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
        self.quarantine = Quarantine()
        self.handled = 0
        self.last_index = 0  # of the last record that was handled
        self.changed = 0  # the offset after the last record that was not an epoch
        self.freeze: Freeze | None = None
        self._undo = UndoLog()
        self._homes = {
            cls: Home(cls, self.entities[name], UndoLog(), codec, {})
            if issubclass(cls, Shared)
            else Home(cls, self.entities[name], self._undo, codec, cold())
            for name, cls in self.app.entities.items()
        }
        self._plans: dict[type[Any], Plan] = {
            cls: plan_for(cls, self._homes[entity_of(cls)], codec.result_encoder(cls), around)
            for cls in self.app.commands.values()
        }
        self._plans |= {slim: self._plans[cls] for cls, slim in codec.slim.items()}
        self._readings: dict[type[Any], Reading] = {
            cls: reading_for(cls, self._homes[entity_of(cls)], codec.result_encoder(cls))
            for cls in self.app.queries.values()
        }
        self._broadcasts = {name for name, cls in self.app.commands.items() if issubclass(cls, Broadcast)}
        self._lending = Lending(self._homes)
        means = Means(codec.outgoing_commands, codec.outgoing_events, self.app.limits, self._lending.lend)
        self._context = Context(partition, means if observe is None else observe(means))
        self._following: int | None = None  # the index of the broadcast that is being handled as at its home
        self._failed = 0  # how often the command that is being tried again has failed
        self.read_models = (
            ReadModels(codec, self._homes, new_text_index)
            if new_text_index is not None and self.app.read_models
            else None
        )

    @property
    def place(self) -> tuple[int, int]:
        """The offset and index of the last command that the state includes."""
        return self.offset - 1, self.last_index

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
        handled = _nothing_yet(content)
        if problem is not None:
            handled.failures[0] = problem
        self.last_index = 0
        if isinstance(content, Epoch):
            if content.counts_after(self.epoch):
                self.epoch = record.offset
                self.app_version = content.app_version
        elif content is not None or record.kind is Kind.TICK:
            self._work(record, content, handled)
        self.offset += 1
        if record.kind.is_work:
            self.changed = self.offset
        return handled

    def _work(self, record: Record, content: Commands | Messages | None, handled: Handled) -> None:
        self.time = max(self.time, record.time)
        self._context._enter_record(record.offset, self.time)
        self._context._cause = None
        if len(self.timers):
            self._fire(handled)
        if isinstance(content, Commands):
            self._handle_commands(record.offset, content, handled)
        elif content is not None:
            self._handle_messages(content, handled)
        self.last_index = 0 if content is None else max(len(content.commands) - 1, 0)
        if self.read_models is not None:
            self.read_models.refresh(record.offset)

    def _decode(self, record: Record) -> tuple[Commands | Messages | Epoch | None, Corrupt | None]:
        if record.kind in (Kind.NOTHING, Kind.TICK):
            return None, None
        try:
            return self.codec.decode_record(record, slim=True), None
        except Corrupt as problem:
            if record.kind is not Kind.PLAIN:
                raise
            # Nobody has checked it at a gateway: a stranger's mistake must not stop the partition.
            self._set_aside(QuarantineRow(record.offset, 0, "", ""), problem)
            return None, problem

    def _fire(self, handled: Handled) -> None:
        """Handles what is due, before the record's own commands: with indices below theirs."""
        for index, place in enumerate(self.timers.due(self.time), -FIRED_AT_ONCE):
            timer = self.timers.take(place)
            if timer is None:
                continue  # one that fired just before has cancelled it
            handled.fired.append((index, timer))
            self._context._cause = partial(_cause_of_timer, timer)
            try:
                command = self.codec.decode_command(timer.name, timer.version, timer.body.encode())
            except Corrupt as problem:
                row = QuarantineRow(self.offset, index, timer.name, timer.key, timer.version, timer.body)
                self._set_aside(row, problem)
                handled.failures[index] = problem
            else:
                self._run_one(index, command, timer.key, handled)
        self._context._cause = None
        handled.outcomes.clear()  # nobody waits for them

    def _handle_commands(self, offset: int, batch: Commands, handled: Handled) -> None:
        header = batch.header
        for place in header.releases:
            self._failed = self.quarantine.release(*place)
        seen = self.dedupe.sessions_of(header.sessions)
        if header.idempotency or self._has_broadcast(header) or not all_new(seen, header.session, header.sequence):
            self._handle_one_by_one(offset, seen, batch, handled)
        else:
            self._run(zip(count(), batch.commands, header.keys, strict=False), handled, self._undo)
            # Of a session's commands only the last counts from here on, and a dict keeps just that.
            last = dict(zip(header.session, zip(header.sequence, handled.outcomes, strict=True), strict=True))
            names, sessions = header.sessions, self.dedupe.sessions
            for number, (sequence, outcome) in last.items():
                sessions[names[number]] = Seen(sequence, outcome, offset)
        self._failed = 0

    def _has_broadcast(self, header: BatchHeader) -> bool:
        return bool(self._broadcasts) and any(name in self._broadcasts for name, _ in header.types)

    def _handle_one_by_one(self, offset: int, seen: list[Seen], batch: Commands, handled: Handled) -> None:
        """The same for a record with commands that were handled before, or that have idempotency keys."""
        header = batch.header
        columns = zip(batch.commands, header.keys, header.session, header.sequence, strict=True)
        for index, (command, key, number, sequence) in enumerate(columns):
            latest = seen[number]
            if sequence <= latest.sequence:
                repeated = sequence == latest.sequence
                handled.outcomes.append(latest.outcome if repeated else STALE)
                handled.repeats[index] = latest.offset if repeated else -1
                continue
            idempotency_key = header.idempotency.get(index)
            mark = "" if idempotency_key is None else self._fingerprint(command, key)
            known = None if idempotency_key is None else self.dedupe.recall_key(idempotency_key, mark)
            if known is not None and idempotency_key is not None:
                handled.outcomes.append(known)
                handled.repeats[index] = self.dedupe.first.get(idempotency_key, -1)
            else:
                self._run_one(index, command, key, handled)
                if idempotency_key is not None:
                    self.dedupe.remember_key(idempotency_key, mark, handled.outcomes[-1], offset)
            latest = seen[number] = Seen(sequence, handled.outcomes[-1], offset)
            self.dedupe.sessions[header.sessions[number]] = latest

    def _handle_messages(self, batch: Messages, handled: Handled) -> None:
        header = batch.header
        seen = self.origins.get(header.origin_partition, Origin(-1, 0, 0))
        work: Iterable[tuple[int, Command[Any, Any], str]] = zip(count(), batch.commands, header.keys, strict=False)
        if header.origin(0) <= seen:
            work = [w for w, origin in zip(work, header.origins, strict=True) if origin > seen]
        self._context._cause = partial(_cause_of_message, header)
        if self._has_broadcast(header):
            for index, command, key in work:
                if index in header.times:
                    self._follow(index, command, header, handled)
                else:
                    self._run_one(index, command, key, handled)
        else:
            self._run(work, handled, self._undo)
        self.origins[header.origin_partition] = Origin(*max(seen, header.origin(-1)))
        handled.outcomes.clear()  # nobody waits for them

    def _run_one(self, index: int, command: Command[Any, Any], key: str, handled: Handled) -> None:
        """Runs a handler that may be a broadcast's: what is handled here goes to all other partitions."""
        if not isinstance(command, Broadcast):
            self._run([(index, command, key)], handled, self._undo)
            return
        if key != EVERYWHERE:  # such as a plain record: in any other partition it would overtake the others
            problem = Misuse(f"{type(command).__name__} is for all partitions: its key is {EVERYWHERE!r}.")
            handled.outcomes.append(self._refuse(index, command, key, problem, handled))
            return
        self._run_broadcast(index, command, handled)
        if handled.outcomes[-1].verdict is _REPLY:
            name, version = command.__engram__.name or "", self.codec.version_of(type(command))
            number = sum(message.origin[1] == index for message in handled.messages)
            cause = None if self._context._cause is None else self._context._cause(index)
            place = self.offset, index, number
            body = self.codec.encode_body(command)
            handled.messages.append(Message(name, version, EVERYWHERE, body, place, cause, self.time))

    def _follow(self, index: int, command: Command[Any, Any], header: MessagesHeader, handled: Handled) -> None:
        """Handles a broadcast as it was handled at home, with the same context; its effects have left from there."""
        offset, at_home, _ = header.origin(index)
        context = self._context
        context._enter_partition(header.origin_partition)
        context._enter_record(offset, header.times[index])
        cause, here = header.causes.get(index), context._cause
        context._cause = None if cause is None else lambda _index: cause
        self._following = index
        self._run_broadcast(at_home, command, Handled("", [], [], [], handled.failures, {}, None, [], []))
        self._following = None
        context._cause = here
        context._enter_partition(self.partition)
        context._enter_record(self.offset, self.time)

    def _run_broadcast(self, index: int, command: Command[Any, Any], handled: Handled) -> None:
        self._lending.changing = home = self._plans[type(command)].home
        self._context._in_broadcast = True
        self._run([(index, command, EVERYWHERE)], handled, home.undo)
        self._context._in_broadcast = False
        self._lending.changing = None

    def _fingerprint(self, command: Command[Any, Any], key: str) -> str:
        return fingerprint(command.__engram__.name or "", key, self.codec.encode_body(command))

    def _run(  # noqa: C901, PLR0912, PLR0915 - one loop without further calls: this is the hot path
        self, work: Iterable[tuple[int, Command[Any, Any], str]], handled: Handled, undo: UndoLog
    ) -> None:
        """Runs handlers one after the other, each all or nothing. `work` has index, command and key; all entities
        write to the one undo log."""
        plans = self._plans
        if self.freeze is not None or self.read_models is not None:
            work = list(work)
        if self.freeze is not None:
            self.freeze.before_changes((plans[type(command)].home, key) for _, command, key in work)
        unsettled = undo.unsettled
        forget = undo.clear
        context = self._context
        sent = handled.messages
        context._enter_work(sent)
        already = len(handled.outcomes)
        new: Entity | None = None  # the last one that was made
        keep = handled.outcomes.append
        for index, command, key in work:
            home, entities, guard, capture, checked, replies_none, encode_reply, handle = plans[type(command)]
            entity = entities.get(key)
            if entity is None:
                entity = home.find(key)
            if entity is None:
                entity = new = home.fresh(key)
            before: Any = () if capture is None else capture(entity)
            context._index = index
            try:
                reply = handle(command, entity, context)
                # A reply is encoded at once: it may be part of the state, and change with it.
                outcome = DONE if reply is None and replies_none else Outcome(_REPLY, encode_reply(reply))
                if context._more:
                    self._lending.check()
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
                self._lending.take_back()
                context._drop_effects()
                keep(self._refuse(index, command, key, problem, handled))
                continue
            if entity is new:
                home.keep(key, entity)
                if home.born is not None:
                    home.born.append(key)
                new = None  # the next command for it finds it there
            if entity._round != home.round:
                set_mark(entity, home.round)
                home.dirty.append(key)
            if context._more:
                self._let_out(index, key, handled)
                context._keep_effects()
            elif context._effective:  # messages alone, by far the most common
                context._sent_before = len(sent)
                context._sent_bytes = 0
                context._effective = False
            keep(outcome)
        self.handled += len(handled.outcomes) - already
        if self.read_models is not None:
            self.read_models.touch(work, handled.outcomes[already:])

    def _refuse(
        self, index: int, command: Command[Any, Any], key: str, problem: Exception, handled: Handled
    ) -> Outcome:
        if isinstance(problem, Rejected):
            return rejection(problem)
        index = index if self._following is None else self._following
        handled.failures[index] = problem
        name, version = command.__engram__.name or "", self.codec.version_of(type(command))
        try:
            body = self.codec.encode_body(command).decode()
        except ValueError:  # its handler has put something else into it
            body = ""
        self._set_aside(QuarantineRow(self.offset, index, name, key, version, body), problem)
        return quarantine(problem)

    def _set_aside(self, row: QuarantineRow, problem: Exception) -> None:
        self.quarantine.add(row._replace(failures=self._failed + 1, time=self.time), problem)

    def _let_out(self, index: int, key: str, handled: Handled) -> None:
        """What the handler of the entity `key` brought about besides messages takes effect."""
        if self._following is not None:
            return
        context = self._context
        cause = context._cause
        root = f"{self.partition}:{self.offset}.{index}" if cause is None else cause(index).root
        for number, (name, version, body) in enumerate(context._emitted):
            place = self.partition, self.offset, index, number
            handled.events.append(OutEvent(*place, name, version, self.time, key, body, root))
        for due, number, name, version, body in context._scheduled:
            self.timers.add(Timer(due, self.offset, index, number, key, name, version, body.decode(), root))
        for handle in context._cancelled:
            self.timers.cancel(handle, key)

    # Reading

    def ask(self, query: Query[Any, Any], key: str, principal: Principal | None = None) -> bytes:
        """The answer as JSON, from live state. A query that changes the state is undone and refused.

        Raises `Denied` for a principal who may not have this answer of this entity.
        """
        home, guard, watched, encode = self._readings[type(query)]
        entity = home.entities.get(key)
        if entity is None:
            kept = home.find(key)
            entity = home.fresh(key) if kept is None else kept
        if principal is not None:
            guard, watched = home.guard, True
        before = guard.captured(entity) if watched else ()
        changed = False
        try:
            if principal is not None and not query.authorize_entity(principal, entity):
                raise Denied(f"{query.__engram__.name} of {key!r} is not for {principal.name or 'everybody'}.")
            answer = encode(query.answer(entity))
        finally:
            if watched or home.undo:
                changed = home.take_back(entity, key, guard, before)
        if changed:
            raise Misuse(f"Query {type(query).__name__} changed its entity; queries only read. Make it a command.")
        return answer

    def find(self, of: type[E], key: str) -> E | None:
        """An entity, if it is there. Only to be read."""
        found: Any = self._homes[of].find(key)
        return found  # type: ignore[no-any-return]  # of the home's own type

    def recall(self, session: str, sequence: int) -> Outcome | None:
        """The outcome of a command that was handled, from memory; None if it was not handled yet."""
        return self.dedupe.recall(session, sequence) if self.dedupe.handled(session, sequence) else None

    def count(self) -> int:
        """How many entities there are."""
        return sum(home.count() for home in self._homes.values())

    def digest(self) -> str:
        """The digest of everything but position and epoch. Goes over the whole image."""
        return digest_of(self.rows(), self.memory())

    def rows(self) -> Iterator[EntityRow]:
        """All entities, encoded. Nothing may be handled meanwhile."""
        return (EntityRow(h.name, key, h.version, h.encoded(key)) for h in self._homes.values() for key in h.all_keys())

    # Memory

    def cool(self, keep: int, limit: int) -> bool:
        """Encodes up to about `limit` entities that nobody has touched for long, if more than `keep` are not. Whether
        there may be more to do. What is encoded and what is not makes no difference to anybody.

        Raises what the place for encoded ones raises, such as `OSError`; then the others stay as they are.
        """
        homes = [home for home in self._homes.values() if not issubclass(home.cls, Shared)]
        hot = sum(len(home.made) for home in homes)
        if hot <= keep or self.freeze is not None:
            return False
        some = min(limit, hot - keep)
        with strictly():
            for home in homes:
                home.cool(-(-some * len(home.made) // hot))
        return True

    # Snapshots

    def begin_freeze(self, *, whole: bool = True) -> Freeze:
        """Starts a copy of the image as it is now, or of what is dirty. Go on with `Freeze.advance` between commands,
        then end it."""
        self.freeze = Freeze(self._copied(), self._homes.values(), whole=whole)
        return self.freeze

    def dirty(self) -> int:
        """How many entities have changed since the last freeze began."""
        return sum(len(home.dirty) for home in self._homes.values())

    def end_freeze(self) -> None:
        if self.freeze is not None:
            self.freeze.end()
        self.freeze = None

    def memory(self) -> Memory:
        """Everything but the entities, copied."""
        return self._copied().memory()

    def _copied(self) -> Copied:
        return Copied(
            self.offset,
            self.epoch,
            self.app_version,
            self.time,
            self.dedupe.sessions.copy(),
            self.dedupe.keys.copy(),
            self.origins.copy(),
            self.quarantine.listed,
            self.quarantine.count,
            self.timers.all(),
        )

    def load(self, rows: list[EntityRow], memory: Memory) -> None:
        """Fills a new image with contents; old versions are brought up on the way."""
        for row in rows:
            entity = self.codec.decode_entity(row.entity, row.version, row.state)
            self._homes[type(entity)].put(row.key, entity)
            if self.read_models is not None:
                self.read_models.take(type(entity), [row.key])
        self._load_memory(memory)
        if self.read_models is not None:
            self.read_models.end_load()

    def load_encoded(self, columns: Iterable[EntityColumns], memory: Memory) -> None:
        """The same, but entities stay encoded until somebody touches them. Later ones take the place of earlier.

        `columns` are gone through once, and none is kept: they may be larger than memory. `Corrupt` for a type that the
        app does not have, or a version that it does not know.
        """
        homes = {home.name: home for home in self._homes.values()}
        for name, version, keys, states, rows in columns:
            self.codec.check_entity(name, version)
            home = homes[name]
            home.load(keys, version, states)
            if self.read_models is not None:
                self.read_models.take(home.cls, keys, rows)
        self._load_memory(memory)
        if self.read_models is not None:
            self.read_models.end_load()

    def _load_memory(self, memory: Memory) -> None:
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
        self.quarantine.load(memory.quarantine, memory.quarantined)


def _nothing_yet(content: Commands | Messages | Epoch | None) -> Handled:
    if isinstance(content, Commands):
        return Handled(content.header.writer, [], [], [], {}, {}, None, content.header.keys, [])
    if isinstance(content, Messages):
        header = content.header
        return Handled("", [], [], [], {}, {}, (header.origin_partition, header.origin(-1)), header.keys, [])
    return Handled("", [], [], [], {}, {}, None, [], [])


def _cause_of_message(header: MessagesHeader, index: int) -> Cause:
    """The cause of what a message's command sends in turn."""
    cause = header.cause(index)
    return Cause(cause.root, cause.depth + 1)


def _cause_of_timer(timer: Timer, _index: int) -> Cause:
    return Cause(timer.root, 1, (timer.offset, timer.index, timer.name))
