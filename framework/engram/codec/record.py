"""Records: the entries of a log, and the forms that their payloads take.

A payload of commands or messages is lines of JSON: first a header with everything but the bodies, as
columns; then one line per command type, an array of all bodies of that type. One parse per type decodes
a thousand commands, and a person still reads it. See docs/decisions/0002-batch-records.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple, Self

import msgspec
from pydantic import BaseModel, ConfigDict

from engram.model.effects import Cause, Message, Place
from engram.model.version import Version


class Kind(StrEnum):
    """What a record holds."""

    COMMANDS = "commands"  # from clients, with session and sequence
    MESSAGES = "messages"  # from entities, with their origins
    EPOCH = "epoch"  # a new owner of the partition
    TICK = "tick"  # the time: a timer is due, and nothing else has come
    PLAIN = "plain"  # one command from somebody who writes to the log's own storage, as any Kafka client can
    NOTHING = "nothing"  # a place without content, such as the mark that ends a transaction in Kafka

    @property
    def is_work(self) -> bool:
        """Whether handling it can change the state."""
        return self not in (Kind.EPOCH, Kind.NOTHING)


class Record(NamedTuple):
    """One entry of a partition. `time` is the writer's, in milliseconds since 1970."""

    partition: int
    offset: int
    kind: Kind
    time: int
    payload: bytes


class Envelope(NamedTuple):
    """A client's command on its way to the log. `body` is its JSON."""

    name: str
    version: Version
    key: str
    body: bytes
    session: str
    sequence: int
    idempotency_key: str | None = None


class Origin(NamedTuple):
    """Where a message comes from: the command that sent it, and its number among that command's messages to
    the same partition. Origins of one partition only grow, which is what makes a watermark enough."""

    offset: int
    index: int  # type: ignore[assignment]  # a field, not tuple.index
    number: int


class Epoch(BaseModel):
    """A new owner takes a partition. The epoch's number is the offset of this record: the log orders owners.

    `seen` is where the partition ended when this owner began. If somebody has taken it since, this record came too late
    and says nothing: its owner may be long dead, and of another version. Records of old have none, and always count.

    With `ends`, it is the last word of the owner of that epoch, which has handled all before it and nothing after: from
    here on the partition is nobody's, and `app_version` is 0. It says nothing if there is a newer owner.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    owner: str
    app_version: int
    address: str = ""
    ends: int | None = None
    seen: int | None = None

    def counts_after(self, epoch: int) -> bool:
        """Whether it begins an epoch of its own, where `epoch` was the last."""
        if self.ends is not None:
            return self.ends == epoch
        return self.seen is None or self.seen > epoch


class _Header(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The first line of a payload. A struct of msgspec: pydantic takes half as long again for a thousand commands."""

    @classmethod
    def read(cls, line: bytes) -> Self:
        """Raises `ValueError` for what is no such header."""
        try:
            return msgspec.json.decode(line, type=cls)
        except msgspec.MsgspecError as problem:
            raise ValueError(str(problem)) from problem

    def written(self) -> bytes:
        return msgspec.json.encode(self)


class BatchHeader(_Header, frozen=True, kw_only=True):
    """The first line of a batch. The columns have one entry per command, in log order."""

    types: list[tuple[str, Version]]  # name and version of each body line
    which: list[int]  # index into types
    keys: list[str]


class CommandsHeader(BatchHeader, frozen=True, kw_only=True):
    """`writer` wrote the record and waits for its replies."""

    writer: str
    sessions: list[str]
    session: list[int]  # index into sessions
    sequence: list[int]
    idempotency: dict[int, str] = {}  # index of command to idempotency key
    releases: list[tuple[int, int]] = []  # offset and index of commands that leave the quarantine


class MessagesHeader(BatchHeader, frozen=True, kw_only=True):
    """Messages of one origin partition, in the order of their origins. Most have no cause but the command that sent
    them; `times` has those that are broadcasts, with the time at which they were handled at home."""

    origin_partition: int
    offsets: list[int]  # with the next two, the columns of the origins
    indices: list[int]
    numbers: list[int]
    causes: dict[int, Cause] = {}
    times: dict[int, int] = {}

    @property
    def origins(self) -> list[Place]:
        return list(zip(self.offsets, self.indices, self.numbers, strict=True))

    def origin(self, index: int) -> Place:
        return self.offsets[index], self.indices[index], self.numbers[index]

    def cause(self, index: int) -> Cause:
        """What led to one of the messages."""
        own = self.causes.get(index)
        if own is not None:
            return own
        return Cause(f"{self.origin_partition}:{self.offsets[index]}.{self.indices[index]}", 1)


class PlainHeader(_Header, frozen=True, kw_only=True):
    """The first line of a plain record; the rest is the body. None or empty is what its writer did not say, and
    `problem` why it cannot be handled, if the log knows one."""

    name: str
    version: str
    key: str | None
    id: str | None = None
    problem: str = ""


def encode_commands(envelopes: Sequence[Envelope], writer: str, *, releases: Sequence[tuple[int, int]] = ()) -> bytes:
    """The payload of a `COMMANDS` record: at least one command, or something that leaves the quarantine."""
    sessions: dict[str, int] = {}
    session = [sessions.setdefault(e.session, len(sessions)) for e in envelopes]
    types, which, lines = _group(*zip(*((e.name, e.version, e.body) for e in envelopes), strict=True))
    header = CommandsHeader(
        types=types,
        which=which,
        keys=[e.key for e in envelopes],
        writer=writer,
        sessions=list(sessions),
        session=session,
        sequence=[e.sequence for e in envelopes],
        idempotency={i: e.idempotency_key for i, e in enumerate(envelopes) if e.idempotency_key is not None},
        releases=list(releases),
    )
    return _payload(header, lines)


def encode_messages(messages: Sequence[Message], origin_partition: int) -> bytes:
    """The payload of a `MESSAGES` record, at least one message, in the order of their origins."""
    names, versions, keys, bodies, origins, causes, times = zip(*messages, strict=True)
    types, which, lines = _group(names, versions, bodies)
    offsets, indices, numbers = zip(*origins, strict=True)
    header = MessagesHeader(
        types=types,
        which=which,
        keys=list(keys),
        origin_partition=origin_partition,
        offsets=list(offsets),
        indices=list(indices),
        numbers=list(numbers),
        causes={i: cause for i, cause in enumerate(causes) if cause is not None} if any(causes) else {},
        times={} if times.count(None) == len(times) else {i: t for i, t in enumerate(times) if t is not None},
    )
    return _payload(header, lines)


def encode_plain(header: PlainHeader, body: bytes) -> bytes:
    """The payload of a `PLAIN` record."""
    return header.written() + b"\n" + body


def encode_epoch(epoch: Epoch) -> bytes:
    """The payload of an `EPOCH` record."""
    return epoch.model_dump_json(exclude_none=True).encode()


def _payload(header: BatchHeader, lines: Sequence[bytes]) -> bytes:
    return b"\n".join([header.written(), *lines])


def _group(
    names: Sequence[str] = (), versions: Sequence[Version] = (), bodies: Sequence[bytes] = ()
) -> tuple[list[tuple[str, Version]], list[int], list[bytes]]:
    if len(set(names)) == 1 and len(set(versions)) == 1:  # by far the most common
        return [(names[0], versions[0])], [0] * len(names), [_line(bodies)]
    types: dict[tuple[str, Version], int] = {}
    groups: list[list[bytes]] = []
    which = []
    for name, version, body in zip(names, versions, bodies, strict=True):
        number = types.setdefault((name, version), len(types))
        if number == len(groups):
            groups.append([])
        groups[number].append(body)
        which.append(number)
    return list(types), which, list(map(_line, groups))


def _line(bodies: Iterable[bytes]) -> bytes:
    return b"[" + b",".join(bodies) + b"]"
