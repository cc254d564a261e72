"""How records and events look in Kafka: values, headers and keys.

A record of ours has the header `engram` with its kind. One without it is plain: a single command as any client in any
language sends it, with the entity's key as key, the command's fields as JSON, and the headers `name`, `version` and,
against doubles, `id`. Events follow CloudEvents' binding for Kafka, in binary mode.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from engram.codec.record import Kind, Origin, PlainHeader, Record, encode_plain
from engram.errors import Corrupt
from engram.log.base import Entry
from engram.log.partitioner import partition_of
from engram.model.effects import OutEvent
from engram.model.version import read_version

Headers = list[tuple[str, bytes]]

_KIND = "engram"
_ORIGIN = "origin"
_KINDS = {kind.value.encode(): kind for kind in Kind}
NOTHING: Headers = [(_KIND, Kind.NOTHING.value.encode())]


def headers_of(entry: Entry) -> Headers:
    headers = [(_KIND, entry.kind.value.encode())]
    if entry.origin is not None:
        partition, origin = entry.origin
        headers.append((_ORIGIN, f"{partition}:{origin.offset}.{origin.index}.{origin.number}".encode()))
    return headers


def origin_of(fetched: Any) -> tuple[int, Origin] | None:
    """The last origin of the messages in a record, and its partition."""
    text = dict(fetched.headers).get(_ORIGIN)
    if text is None:
        return None
    partition, _, place = text.decode().partition(":")
    offset, index, number = place.split(".")
    return int(partition), Origin(int(offset), int(index), int(number))


def records_of(partition: int, start: int, fetched: Iterable[Any], end: int, partitions: int) -> Iterator[Record]:
    """The records from `start` to `end`. Places that Kafka keeps for itself, or a client took back, hold nothing."""
    for found in fetched:
        for offset in range(start, found.offset):
            yield Record(partition, offset, Kind.NOTHING, 0, b"")
        yield _record(partition, found, partitions)
        start = found.offset + 1
    for offset in range(start, end):
        yield Record(partition, offset, Kind.NOTHING, 0, b"")


def _record(partition: int, found: Any, partitions: int) -> Record:
    headers = found.headers
    # Ours come first in the list of their headers, and have few.
    if headers and headers[0][0] == _KIND:
        kind = _KINDS.get(headers[0][1])
        if kind is None:
            raise Corrupt(f"Record {found.offset} of partition {partition}: unknown kind of record {headers[0][1]!r}")
        return Record(partition, found.offset, kind, found.timestamp, found.value or b"")
    return Record(partition, found.offset, Kind.PLAIN, found.timestamp, _plain(partition, found, partitions))


def _plain(partition: int, found: Any, partitions: int) -> bytes:
    said = {name: value.decode(errors="replace") for name, value in found.headers if value is not None}
    key = _text(found.key)
    home = partition_of(key, partitions) if key is not None else partition
    problem = ""
    if home != partition:
        problem = f"the key {key!r} belongs into partition {home}: use Kafka's default partitioner, which is murmur2"
    header = PlainHeader(
        name=said.get("name", ""), version=said.get("version", ""), key=key, id=said.get("id") or None, problem=problem
    )
    return encode_plain(header, found.value or b"")


def _text(data: bytes | None) -> str | None:
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError:
        return None


def event_headers(event: OutEvent, app: str) -> Headers:
    """CloudEvents' attributes. The position and number, and the version of the type, are extensions."""
    place = f"{event.partition}:{event.offset}.{event.index}"
    attributes = {
        "ce_specversion": "1.0",
        "ce_id": f"{place}.{event.number}",
        "ce_source": f"/engram/{app}",
        "ce_type": event.name,
        "ce_subject": event.key,
        "ce_time": datetime.fromtimestamp(event.time / 1000, UTC).isoformat(timespec="milliseconds"),
        "content-type": "application/json",
        "ce_typeversion": str(event.version),
        "ce_position": place,
        "ce_number": str(event.number),
        "ce_root": event.root,
    }
    return [(name, value.encode()) for name, value in attributes.items()]


def event_of(found: Any) -> OutEvent:
    """Raises `Corrupt` for a record that is no event of ours: nobody else may write to the topic."""
    try:
        said = {name: value.decode() for name, value in found.headers}
        partition, _, place = said["ce_position"].partition(":")
        offset, index = place.split(".")
        return OutEvent(
            int(partition),
            int(offset),
            int(index),
            int(said["ce_number"]),
            said["ce_type"],
            read_version(said["ce_typeversion"]),
            found.timestamp,
            said["ce_subject"],
            found.value,
            said["ce_root"],
        )
    except (KeyError, ValueError, AttributeError) as problem:
        raise Corrupt(
            f"Record {found.offset} of partition {found.partition} of {found.topic} is no event of Engram's: only the "
            "log's owners may write there."
        ) from problem
