"""Traces: what a command led to, put together from the headers of a log's records."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from engram.codec.record import BatchHeader, CommandsHeader, Kind, MessagesHeader, PlainHeader, Record
from engram.errors import Corrupt, Misuse
from engram.log.base import Log
from engram.log.scan import scan
from engram.model.effects import OutEvent, Place
from engram.model.position import Position

_READ_RECORDS = 200
_READ_EVENTS = 1000
# Records of other partitions have the times of other clocks: so far may these be apart.
_CLOCKS_APART_MS = 3_600_000

Progress = Callable[[int], None]


@dataclass(slots=True)
class Step:
    """A command that was handled somewhere in a chain, and what came of it. `timer`: it was scheduled, and is not in
    the log itself; `everywhere`: a broadcast, as it came to this partition."""

    position: Position
    command: str
    key: str
    time: int
    timer: bool = False
    everywhere: bool = False
    events: list[OutEvent] = field(default_factory=list)
    led_to: list[Step] = field(default_factory=list)


def find_position(log: Log, command_id: str) -> Position:
    """The position of the command with an id: `SESSION/SEQUENCE`, or an idempotency key.

    Looks through the log from its end. Raises `Misuse` when there is none.
    """
    session, _, sequence = command_id.rpartition("/")
    for partition in range(log.partitions):
        for record in _backwards(log, partition):
            header = header_of(record)
            if not isinstance(header, CommandsHeader):
                continue
            for index in range(len(header.which)):
                own = header.sessions[header.session[index]], str(header.sequence[index])
                if own == (session, sequence) or header.idempotency.get(index) == command_id:
                    return Position(partition, record.offset, index)
    raise Misuse(f"No command in the log has the id {command_id!r}: give its position, or SESSION/SEQUENCE.")


def trace(log: Log, position: Position, *, progress: Progress) -> Step:
    """The whole tree that the command at `position` is part of, from its root on.

    Reads all records since the root, and no bodies. Raises `Misuse` when there is no command at the position.
    """
    root = _root_of(log, position)
    record = _record(log, root)
    steps = {root: _step(record, root)}
    parents: dict[Position, Position] = {}
    scanned = 0
    for partition in range(log.partitions):
        seen: dict[int, Place] = {}
        for found in _since(log, partition, record.time - _CLOCKS_APART_MS):
            _follow(found, str(root), seen, steps, parents)
            scanned += 1
            if scanned % _READ_RECORDS == 0:
                progress(scanned)
        _add_events(log, partition, str(root), steps)
    return _tree(root, steps, parents)


def _root_of(log: Log, position: Position) -> Position:
    header = header_of(_record(log, position))
    if isinstance(header, MessagesHeader) and 0 <= position.index < len(header.which):
        return Position.parse(header.cause(position.index).root)
    return position


def _record(log: Log, position: Position) -> Record:
    if position.offset < log.base:
        raise Misuse(
            f"{position} is before record {log.base}, where this log begins: it is of the log that this one was made "
            "from by `engram repartition`. Look for it there."
        )
    if not 0 <= position.partition < log.partitions:
        raise Misuse(f"There is no partition {position.partition}: the log has 0 to {log.partitions - 1}.")
    found = log.read(position.partition, position.offset, limit=1)
    header = header_of(found[0]) if found and found[0].offset == position.offset else None
    if header is None or not 0 <= position.index < (len(header.which) if isinstance(header, BatchHeader) else 1):
        raise Misuse(f"There is no command at {position}: see `engram log show`.")
    return found[0]


def _step(record: Record, position: Position) -> Step:
    header = header_of(record)
    if isinstance(header, BatchHeader):
        name = header.types[header.which[position.index]][0]
        return Step(position, name, header.keys[position.index], record.time)
    assert isinstance(header, PlainHeader)
    return Step(position, header.name, header.key or "", record.time)


def _follow(
    record: Record,
    root: str,
    seen: dict[int, Place],
    steps: dict[Position, Step],
    parents: dict[Position, Position],
) -> None:
    """Notes the messages of a record that the root led to. What was appended a second time is left out."""
    header = header_of(record)
    if not isinstance(header, MessagesHeader):
        return
    of = header.origin_partition
    for index, origin in enumerate(header.origins):
        if origin <= seen.get(of, (-1, 0, 0)):
            continue
        seen[of] = origin
        cause = header.cause(index)
        if cause.root != root:
            continue
        position = Position(record.partition, record.offset, index)
        steps[position] = _step(record, position)
        steps[position].everywhere = index in header.times
        parents[position] = sender = Position(of, origin[0], origin[1])
        if cause.timer is not None and sender not in steps:
            offset, scheduler, name = cause.timer
            steps[sender] = Step(sender, name, "", record.time, timer=True)
            parents[sender] = Position(of, offset, scheduler)


def _add_events(log: Log, partition: int, root: str, steps: dict[Position, Step]) -> None:
    after = (-1, 0, 0)
    while found := log.events(partition, after=after, limit=_READ_EVENTS):
        for event in found:
            if event.root == root:
                position = Position(partition, event.offset, event.index)
                # Of a timer that sent nothing only its events are known.
                step = steps.setdefault(position, Step(position, "", event.key, event.time, timer=True))
                step.key, step.time = step.key or event.key, event.time if step.timer else step.time
                step.events.append(event)
        after = found[-1][1:4]


def _tree(root: Position, steps: dict[Position, Step], parents: dict[Position, Position]) -> Step:
    for position in sorted(steps):
        if position != root:
            # A timer that only emitted does not say who scheduled it; whatever it was, the root led to it.
            parent = steps.get(parents.get(position, root), steps[root])
            parent.led_to.append(steps[position])
    return steps[root]


def header_of(record: Record) -> CommandsHeader | MessagesHeader | PlainHeader | None:
    """The header of a record with commands or messages. Raises `Corrupt` for one that cannot be decoded."""
    forms: dict[Kind, type[CommandsHeader | MessagesHeader | PlainHeader]] = {
        Kind.COMMANDS: CommandsHeader,
        Kind.MESSAGES: MessagesHeader,
        Kind.PLAIN: PlainHeader,
    }
    form = forms.get(record.kind)
    try:
        return None if form is None else form.read(record.payload.partition(b"\n")[0])
    except ValueError as problem:
        raise Corrupt(f"Record {record.offset} of partition {record.partition} cannot be decoded: {problem}") from None


def _since(log: Log, partition: int, time: int) -> Iterator[Record]:
    """The records from the first one with that time on."""
    places = range(log.start(partition), log.end(partition))
    number = bisect_left(places, time, key=lambda place: _time_at(log, partition, place))
    return scan(log, partition, places.start + number)


def _time_at(log: Log, partition: int, offset: int) -> int:
    """The time of a record, or of the next that has one: a place without content has none."""
    while records := log.read(partition, offset, limit=1):
        if records[0].kind is not Kind.NOTHING:
            return records[0].time
        offset += 1
    return 1 << 62


def _backwards(log: Log, partition: int) -> Iterator[Record]:
    first, end = log.start(partition), log.end(partition)
    while end > first:
        start = max(first, end - _READ_RECORDS)
        yield from reversed(list(scan(log, partition, start, end)))
        end = start
