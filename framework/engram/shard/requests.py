"""What a shard is asked and what it says back: the words between shards and everybody else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from pydantic import BaseModel, ConfigDict

from engram.image.outcome import Outcome
from engram.log.base import Watch


@dataclass(frozen=True, slots=True)
class Ask:
    """A query for one entity. `at_least` is the (offset, index) of a command that the answer must include."""

    id: int
    partition: int
    key: str
    query: str
    version: int
    body: bytes
    at_least: tuple[int, int] | None
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class Await:
    """Asks for outcomes of a record's commands, by (index, session, sequence), when no word of them has come.

    Answered at once for commands that were handled; for the others the writer is told when they are, as always.
    """

    partition: int
    offset: int
    commands: list[tuple[int, str, int]]


@dataclass(frozen=True, slots=True)
class Report:
    """Asks for the shard's status; `digests` takes a pass over all its entities."""

    id: int
    digests: bool


@dataclass(frozen=True, slots=True)
class Stop:
    """Asks the shard to end. `clean`: with a last snapshot of every partition."""

    clean: bool


Request = Ask | Await | Report | Stop


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer as JSON, and the (offset, index) of the last command it includes."""

    id: int
    partition: int
    offset: int
    index: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why there is no answer. `kind` is one of: rejected, behind, moved, recovering, stopped,
    misuse, failed."""

    id: int
    kind: str
    text: str
    code: str = ""


@dataclass(frozen=True, slots=True)
class Replies:
    """Outcomes of commands of one record, to the one who wrote it. Without `indices` they are those of all."""

    partition: int
    offset: int
    outcomes: list[Outcome]
    indices: list[int] | None = None


@dataclass(frozen=True, slots=True)
class Reported:
    id: int
    status: ShardStatus


Response = Answer | Refusal | Replies | Reported


class PartitionStatus(BaseModel):
    """One partition as its owner sees it. `offset` is that of the next record; `snapshot` the newest snapshot's."""

    model_config = ConfigDict(frozen=True)

    partition: int
    state: str  # loading, replaying, serving, stopped, moved
    offset: int = 0
    epoch: int = -1
    entities: int = 0
    handled: int = 0
    replayed: int = 0
    quarantined: int = 0
    snapshot: int = -1
    problem: str = ""
    digest: str = ""


class ShardStatus(BaseModel):
    """One shard: who it is, where it answers, and its partitions."""

    model_config = ConfigDict(frozen=True)

    shard: int
    owner: str
    pid: int
    address: str
    partitions: list[PartitionStatus]


@dataclass(frozen=True, slots=True)
class Incoming:
    """A request and where its response goes."""

    sender: bytes
    request: Request


class Transport(Protocol):
    """A shard's line to the outside. All methods are called on the shard's one thread."""

    address: str

    def poll(self, watch: Watch, timeout_ms: int) -> list[Incoming]:
        """Waits until there is a request, or something new in the log, or the time is over."""

    def send(self, receiver: bytes, response: Response) -> None:
        """Sends without waiting. A receiver that is gone gets nothing, and nobody is told."""

    def announce(self, status: ShardStatus) -> None:
        """Tells the registry where this shard is and how it is doing."""

    def close(self) -> None: ...
