"""What a shard is asked and what it says back: the words between shards and everybody else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self

from pydantic import BaseModel, ConfigDict

from engram.image.outcome import Outcome
from engram.image.quarantine import QuarantineRow
from engram.image.read_models import ReadModelState
from engram.log.base import Watch
from engram.model.effects import Place
from engram.model.principal import Principal
from engram.model.version import Version
from engram.shard.figures import RecoveryFigures, SnapshotFigures
from engram.snapshots.manifest import Manifest


# Those that come with every query are tuples: they are made in a third of the time.
class Ask(NamedTuple):
    """A query for one entity. `at_least` is the (offset, index) of a command that the answer must include; `principal`
    is who asks, where the query says who may by the state of the entity."""

    id: int
    partition: int
    key: str
    query: str
    version: Version
    body: bytes
    at_least: tuple[int, int] | None
    timeout_ms: int
    principal: Principal | None = None


@dataclass(frozen=True, slots=True)
class Await:
    """Asks for outcomes of a record's commands, by (index, session, sequence), when no word of them has come.

    Answered at once for commands that were handled; for the others the writer is told when they are, as always.
    """

    partition: int
    offset: int
    commands: list[tuple[int, str, int]]


@dataclass(frozen=True, slots=True)
class AskQuarantine:
    """Asks for commands of a partition that failed: the one at `place`, its offset and index, with all that is known;
    without it the newest, up to `limit`, without bodies and tracebacks. Answered with a `QuarantineReport`.

    The answer includes the record at offset `at_least`.
    """

    id: int
    partition: int
    place: tuple[int, int] | None
    limit: int
    at_least: tuple[int, int] | None
    timeout_ms: int


class Arrived(NamedTuple):
    """Messages of one origin partition: those after one place, up to another."""

    origin_partition: int
    after: Place
    last: Place


@dataclass(frozen=True, slots=True)
class AskEffects:
    """Asks what a command or its messages have sent here. Answered with an `EffectsReport`, once they are handled.

    Either `command` is the offset and index of a command of this partition, or `arrived` has the messages in question,
    and `roots` what they began with.
    """

    id: int
    partition: int
    command: tuple[int, int] | None
    roots: list[str]
    arrived: list[Arrived]
    timeout_ms: int

    @property
    def at_least(self) -> tuple[int, int] | None:
        return self.command


@dataclass(frozen=True, slots=True)
class Look:
    """A look into a read model of a partition: up to `limit` rows at `place`, a key, a board, or words; or the totals
    of a group. `after` is the order, owner and text of the last row that was seen. See `engram.shard.look`."""

    id: int
    partition: int
    model: str
    place: str
    after: tuple[float, str, str] | None
    limit: int
    at_least: tuple[int, int] | None
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class Report:
    """Asks for the shard's status; `digests` takes a pass over all its entities."""

    id: int
    digests: bool


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Asks for a snapshot of a partition; with a name in `savepoint` it is whole, and kept.

    Answered when it is published, with a `SnapshotTaken`, or refused with the problem. If one is under way, this one
    waits its turn, for `timeout_ms` at most.
    """

    id: int
    partition: int
    savepoint: str
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Asks the shard to end. `clean`: with a last snapshot of every partition that has changed, or with a name in
    `savepoint` of every partition, by that name."""

    clean: bool
    savepoint: str = ""


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Asks for the answer of a query now, and again after each change of it, until the lease ends. The same id again
    renews the lease, and gets the answer of the moment once more. Each is a `Changed`. With `after` the subscriber has
    heard of all changes up to that record, and gets those that came then, too."""

    id: int
    partition: int
    key: str
    query: str
    version: Version
    body: bytes
    principal: Principal | None
    lease_ms: int
    after: int | None = None


@dataclass(frozen=True, slots=True)
class SubscribeRows:
    """The same for a read model: the partition's share, as a `Look` has it. With `base` the subscriber is told first
    what that was with the record `after`."""

    id: int
    partition: int
    model: str
    place: str
    limit: int
    lease_ms: int
    after: int | None = None
    base: bool = False


# What is answered from live state, or parked until that has come far enough.
Question = Ask | AskQuarantine | AskEffects | Look
# What is answered again after each change.
Subscription = Subscribe | SubscribeRows
Request = Question | Subscription | Await | Report | TakeSnapshot | Stop


class Answer(NamedTuple):
    """An answer as JSON, and the (offset, index) of the last command it includes."""

    id: int
    partition: int
    offset: int
    index: int  # type: ignore[assignment]  # a field, not tuple.index
    body: bytes


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why there is no answer. `kind` is one of: rejected, denied, behind, moved, recovering, building, stopped, ended,
    unavailable, misuse, forgotten, failed. `at` is the last record that was handled, for one that is behind."""

    id: int
    kind: str
    text: str
    code: str = ""
    at: int | None = None


@dataclass(frozen=True, slots=True)
class Replies:
    """Outcomes of commands of one record, to the one who wrote it. Without `indices` they are those of all."""

    partition: int
    offset: int
    outcomes: list[Outcome]
    indices: list[int] | None = None


@dataclass(frozen=True, slots=True)
class Changed:
    """What something that is watched comes to, and the (offset, index) of the last command it includes. `kind` is
    answer, with its JSON, or that of a `Refusal`, with `{"kind", "code", "text"}`. Between the record at offset `since`
    and this one there was no other change; without it that is not known."""

    id: int
    partition: int
    offset: int
    index: int
    kind: str
    body: bytes
    since: int | None = None


@dataclass(frozen=True, slots=True)
class Reported:
    id: int
    status: ShardStatus


Response = Answer | Changed | Refusal | Replies | Reported


class QuarantineReport(BaseModel):
    """Failed commands of a partition, newest first. `count` is of all there ever were, `listed` of those that are on
    the list."""

    model_config = ConfigDict(frozen=True)

    count: int
    listed: int
    rows: list[QuarantineRow]


class SnapshotTaken(BaseModel):
    """A snapshot that was asked for, and is published. `offset` is that of the first record that is not in it."""

    model_config = ConfigDict(frozen=True)

    partition: int
    offset: int
    entities: int
    changed: int
    bytes: int
    app_version: int
    savepoint: str = ""
    digest: str = ""

    @classmethod
    def of(cls, manifest: Manifest) -> Self:
        return cls(
            partition=manifest.partition,
            offset=manifest.offset,
            entities=manifest.entities,
            changed=manifest.changed,
            bytes=manifest.written_bytes,
            app_version=manifest.app_version,
            savepoint=manifest.savepoint,
            digest=manifest.digest,
        )


class EffectsReport(BaseModel):
    """Which messages were sent to which partitions: of each the first and the last. `roots` is what their own messages
    say that they began with. It may be more than what was asked for, never less."""

    model_config = ConfigDict(frozen=True)

    roots: list[str]
    sent: dict[int, tuple[Place, Place]]


class Stuck(BaseModel):
    """A handler that does not return: which, for how long its record has been in hand, and where it is.

    `position` has an index if a command is being handled; without a command's name it is not known which.
    """

    model_config = ConfigDict(frozen=True)

    position: str
    command: str = ""
    key: str = ""
    seconds: float
    stack: str


class PartitionStatus(BaseModel):
    """One partition as its owner sees it. `offset` is that of the next record; `snapshot` the newest snapshot's.

    `snapshot_behind`: the next snapshot is due while the last one is still being written. Snapshots published and
    failed are counted since this owner began. `snapshot_failures` is how many have failed in a row, and
    `snapshot_problem` why the last did; `snapshot_since` is the time, in milliseconds, since when one is being written,
    and 0 when none is.
    """

    model_config = ConfigDict(frozen=True)

    partition: int
    # loading, replaying, serving, stopped, moved, ended (cleanly); stuck instead of replaying or serving
    state: str
    offset: int = 0
    epoch: int = -1
    entities: int = 0
    handled: int = 0
    replayed: int = 0
    quarantined: int = 0
    snapshot: int = -1
    newest_snapshot: SnapshotFigures | None = None
    snapshots_published: int = 0
    snapshots_failed: int = 0
    snapshot_behind: bool = False
    recovery: RecoveryFigures | None = None
    snapshot_failures: int = 0
    snapshot_problem: str = ""
    snapshot_since: int = 0
    problem: str = ""
    digest: str = ""
    stuck: Stuck | None = None
    read_models: list[ReadModelState] = []


class ShardStatus(BaseModel):
    """One shard: who it is, where it answers, and its partitions. It says so twice a second; `silent_s` is for how long
    the registry has not heard from it. `direct` is where it answers queries from its own machine, if it does.
    `not_deterministic` has what its handlers have touched outside, if it guards them."""

    model_config = ConfigDict(frozen=True)

    shard: int
    owner: str
    pid: int
    address: str
    partitions: list[PartitionStatus]
    direct: str = ""
    silent_s: float = 0.0
    not_deterministic: list[str] = []


class Incoming(NamedTuple):
    """A request and where its response goes."""

    sender: bytes
    request: Request


class Announcer(Protocol):
    """A second line to the registry, for a thread that watches the shard. Used and closed on that thread alone."""

    def announce(self, status: ShardStatus) -> None:
        """Tells the registry how the shard is doing, in place of the shard, which cannot."""

    def close(self) -> None: ...


class Transport(Protocol):
    """A shard's line to the outside. All methods but `announcer` are called on the shard's one thread."""

    address: str

    def poll(self, watch: Watch, timeout_ms: int) -> list[Incoming]:
        """Waits until there is a request, or something new in the log, or the time is over."""

    def send(self, receiver: bytes, response: Response) -> None:
        """Sends without waiting. A receiver that is gone gets nothing, and nobody is told."""

    def announce(self, status: ShardStatus) -> None:
        """Tells the registry where this shard is and how it is doing."""

    def announcer(self) -> Announcer:
        """A new line to the registry, for the calling thread. It must be closed before the transport is."""

    def close(self) -> None: ...
