"""Records that nobody has handled, on their way from an old log to a new one.

After a clean stop there may be some: messages of shards that stopped a moment later, commands of programs that go on
appending. What is in them is divided by keys; what the old partition would have dropped as handled before is left out.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from engram.codec.record import (
    CommandsHeader,
    Envelope,
    Epoch,
    Kind,
    MessagesHeader,
    Origin,
    PlainHeader,
    Record,
    encode_commands,
    encode_epoch,
    encode_messages,
)
from engram.errors import Corrupt
from engram.image.contents import Memory
from engram.log.base import Entry, Log
from engram.log.pieces import pieces
from engram.log.scan import scan
from engram.model.effects import Cause, Message, Place
from engram.model.version import Version
from engram.reshape.memory import Reshaped, home_of
from engram.reshape.plan import Plan

_NOWHERE: Place = (-1, 0, 0)
_DECODER = json.JSONDecoder()


class Carried(NamedTuple):
    """A command or message that nobody has handled, of an old record; `index` is its place in it."""

    index: int  # type: ignore[assignment]  # a field, not tuple.index
    name: str
    version: Version
    key: str
    body: bytes
    session: str = ""
    sequence: int = 0
    idempotency_key: str | None = None
    cause: Cause | None = None


class Batch(NamedTuple):
    """What is to be carried of one old record. `plain` is the payload of a record that is carried as it is."""

    old: int
    offset: int
    kind: Kind
    time: int
    writer: str = ""
    carried: tuple[Carried, ...] = ()
    releases: tuple[tuple[int, int], ...] = ()
    plain: bytes = b""
    key: str | None = None


def unhandled(log: Log, partition: int, memory: Memory, end: int) -> Iterator[Batch]:
    """What a partition has not handled up to `end`, in its order, without what it would drop."""
    sessions = {row.session: row.sequence for row in memory.sessions}
    origins: dict[int, Place] = {row.partition: row[1:] for row in memory.origins}
    time = memory.time
    for found in scan(log, partition, memory.offset, end):
        time = max(time, found.time)
        record = found._replace(time=time)  # as the partition would have it: time does not go back
        if record.kind is Kind.COMMANDS:
            yield _commands(record, sessions)
        elif record.kind is Kind.MESSAGES:
            yield _messages(record, origins)
        elif record.kind is Kind.PLAIN:
            key = PlainHeader.read(_header(record)).key
            yield Batch(partition, record.offset, record.kind, record.time, plain=record.payload, key=key)


def entries(
    plan: Plan, partition: int, reshaped: Reshaped, batches: Mapping[int, Iterator[Batch]], *, time: int
) -> Iterator[Entry]:
    """The first records of a new partition: whose they are, what is carried over from its sources in the order of their
    times, and the time that the latest of them had. The same every time.

    It begins as a partition is left at a clean stop: an owner's epoch, which has handled all that is in the snapshot,
    and its end. Messages are as if sent by that first record, one after the other.
    """
    owner = f"repartition-{plan.id}"
    start = reshaped.memory.time
    begun = encode_epoch(Epoch(owner=owner, app_version=plan.version))
    ended = encode_epoch(Epoch(owner=owner, app_version=0, ends=plan.base))
    yield Entry(partition, Kind.EPOCH, start, begun)
    yield Entry(partition, Kind.EPOCH, start, ended)
    seen = {row.session: row.sequence for row in reshaped.memory.sessions}
    number = 0
    for batch in heapq.merge(*batches.values(), key=lambda batch: batch.time):
        own = [c for c in batch.carried if home_of(plan, batch.old, c.key) == partition]
        if batch.kind is Kind.PLAIN and home_of(plan, batch.old, batch.key) == partition:
            yield Entry(partition, Kind.PLAIN, batch.time, batch.plain)
        elif batch.kind is Kind.COMMANDS:
            places = ((batch.old, *place) for place in batch.releases)
            releases = [(plan.base, reshaped.failed[place]) for place in places if place in reshaped.failed]
            if own or releases:
                envelopes = [_envelope(plan, batch, command, seen) for command in own]
                payload = encode_commands(envelopes, batch.writer, releases=releases)
                yield Entry(partition, Kind.COMMANDS, batch.time, payload)
        elif own:
            messages = [_message(plan, number + place, message) for place, message in enumerate(own)]
            number += len(own)
            for piece in pieces(messages, lambda some: [len(m.body) + len(m.key) for m in some]):
                last = Origin(*piece[-1].origin)
                yield Entry(partition, Kind.MESSAGES, batch.time, encode_messages(piece, partition), (partition, last))
    yield Entry(partition, Kind.TICK, time, b"")


def _envelope(plan: Plan, batch: Batch, command: Carried, seen: dict[str, int]) -> Envelope:
    """With the session that it has, unless another partition has handled a later command of that: then its number would
    be taken for an old one. So it gets a session of its own."""
    session, sequence = command.session, command.sequence
    if sequence <= seen.get(session, -1):
        session, sequence = f"carried-{plan.id}-{batch.old}.{batch.offset}.{command.index}", 0
    seen[session] = sequence
    return Envelope(
        command.name, command.version, command.key, command.body, session, sequence, command.idempotency_key
    )


def _message(plan: Plan, number: int, message: Carried) -> Message:
    return Message(message.name, message.version, message.key, message.body, (plan.base, number, 0), message.cause)


def _commands(record: Record, sessions: dict[str, int]) -> Batch:
    """Commands that are new in their sessions, as the old partition would have seen it."""
    header = CommandsHeader.read(_header(record))
    bodies = _bodies(record, header.which)
    found = []
    for index, (which, key, body) in enumerate(zip(header.which, header.keys, bodies, strict=True)):
        session, sequence = header.sessions[header.session[index]], header.sequence[index]
        if sequence > sessions.get(session, -1):
            sessions[session] = sequence
            name, version = header.types[which]
            found.append(Carried(index, name, version, key, body, session, sequence, header.idempotency.get(index)))
    releases = tuple((offset, index) for offset, index in header.releases)
    return Batch(record.partition, record.offset, record.kind, record.time, header.writer, tuple(found), releases)


def _messages(record: Record, origins: dict[int, Place]) -> Batch:
    """Messages that have not come before. Broadcasts are left out: their home, from where all new partitions have what
    is shared, has handled them."""
    header = MessagesHeader.read(_header(record))
    bodies = _bodies(record, header.which)
    seen = origins.get(header.origin_partition, _NOWHERE)
    found = []
    for index, (which, key, body) in enumerate(zip(header.which, header.keys, bodies, strict=True)):
        if header.origin(index) > seen and index not in header.times:
            name, version = header.types[which]
            found.append(Carried(index, name, version, key, body, cause=header.cause(index)))
    origins[header.origin_partition] = max(seen, header.origin(-1))
    return Batch(record.partition, record.offset, record.kind, record.time, carried=tuple(found))


def _header(record: Record) -> bytes:
    return record.payload.partition(b"\n")[0]


def _bodies(record: Record, which: list[int]) -> list[bytes]:
    """The commands' own JSON, to the letter, in their order."""
    _, *lines = record.payload.split(b"\n")
    groups = [_items(line.decode()) for line in lines]
    try:
        return [next(groups[number]) for number in which]
    except (StopIteration, IndexError, ValueError) as problem:
        where = f"Record {record.offset} of partition {record.partition}"
        raise Corrupt(f"{where} has other commands than its header says: {problem!r}") from problem


def _items(line: str) -> Iterator[bytes]:
    """The texts of the items of a JSON array that has no spaces around them."""
    place = 1
    while place < len(line) - 1:
        _, end = _DECODER.raw_decode(line, place)
        yield line[place:end].encode()
        place = end + 1
