"""Records: the entries of a log, and the forms that their payloads take.

A payload of commands or messages is lines of JSON: first a header with everything but the bodies, as
columns; then one line per command type, an array of all bodies of that type. One parse per type decodes
a thousand commands, and a person still reads it. See docs/decisions/0002-batch-records.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict


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
    version: int
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


class Message(NamedTuple):
    """An entity's command for another entity on its way to the log. `body` is its JSON."""

    name: str
    version: int
    key: str
    body: bytes
    origin: Origin


class _Form(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Epoch(_Form):
    """A new owner takes a partition. The epoch's number is the offset of this record: the log orders owners."""

    owner: str
    app_version: int
    address: str = ""


class BatchHeader(_Form):
    """The first line of a batch. The columns have one entry per command, in log order."""

    types: list[tuple[str, int]]  # name and version of each body line
    which: list[int]  # index into types
    keys: list[str]


class CommandsHeader(BatchHeader):
    """`writer` wrote the record and waits for its replies."""

    writer: str
    sessions: list[str]
    session: list[int]  # index into sessions
    sequence: list[int]
    idempotency: dict[int, str] = {}  # index of command to idempotency key


class MessagesHeader(BatchHeader):
    """Messages of one origin partition, in the order of their origins."""

    origin_partition: int
    origins: list[Origin]


class PlainHeader(_Form):
    """The first line of a plain record; the rest is the body. None or empty is what its writer did not say, and
    `problem` why it cannot be handled, if the log knows one."""

    name: str
    version: str
    key: str | None
    id: str | None = None
    problem: str = ""


def encode_commands(envelopes: Sequence[Envelope], writer: str) -> bytes:
    """The payload of a `COMMANDS` record, at least one command."""
    sessions: dict[str, int] = {}
    session = [sessions.setdefault(e.session, len(sessions)) for e in envelopes]
    types, which, lines = _group([(e.name, e.version, e.body) for e in envelopes])
    header = CommandsHeader(
        types=types,
        which=which,
        keys=[e.key for e in envelopes],
        writer=writer,
        sessions=list(sessions),
        session=session,
        sequence=[e.sequence for e in envelopes],
        idempotency={i: e.idempotency_key for i, e in enumerate(envelopes) if e.idempotency_key is not None},
    )
    return b"\n".join([header.__pydantic_serializer__.to_json(header), *lines])


def encode_messages(messages: Sequence[Message], origin_partition: int) -> bytes:
    """The payload of a `MESSAGES` record, at least one message, in the order of their origins."""
    types, which, lines = _group([(m.name, m.version, m.body) for m in messages])
    header = MessagesHeader(
        types=types,
        which=which,
        keys=[m.key for m in messages],
        origin_partition=origin_partition,
        origins=[m.origin for m in messages],
    )
    return b"\n".join([header.__pydantic_serializer__.to_json(header), *lines])


def encode_plain(header: PlainHeader, body: bytes) -> bytes:
    """The payload of a `PLAIN` record."""
    return header.model_dump_json().encode() + b"\n" + body


def encode_epoch(epoch: Epoch) -> bytes:
    """The payload of an `EPOCH` record."""
    return epoch.model_dump_json().encode()


def _group(bodies: list[tuple[str, int, bytes]]) -> tuple[list[tuple[str, int]], list[int], list[bytes]]:
    types: dict[tuple[str, int], int] = {}
    groups: list[list[bytes]] = []
    which = []
    for name, version, body in bodies:
        number = types.setdefault((name, version), len(types))
        if number == len(groups):
            groups.append([])
        groups[number].append(body)
        which.append(number)
    return list(types), which, [b"[" + b",".join(group) + b"]" for group in groups]
