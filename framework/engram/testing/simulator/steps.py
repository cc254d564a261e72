"""What can happen in a simulation: a program is a list of these, and every part of it is a program too.

Numbers stand for whatever there is: shard 5 of two is the second. So a step can always be done, whatever was left out
before it. See `draws` for how programs are drawn, and `run` for what each step does.
"""

from __future__ import annotations

from typing import NamedTuple

from engram.testing.simulator.disk import Loss
from engram.testing.simulator.process import Landing, Peer

GATEWAY = -1  # in place of a shard's number


class Send(NamedTuple):
    """A client has a command to send; with `once`, under an idempotency key."""

    client: int
    command: int
    once: bool = False


class Act(NamedTuple):
    """A client sends what waits, sends again what has failed, or asks what became of it; with `again` it sends what has
    arrived a second time."""

    client: int
    again: bool = False


class Commit(NamedTuple):
    """The gateway appends what has come."""


class Turn(NamedTuple):
    """A shard takes a turn; one that is down is started."""

    shard: int


class Work(NamedTuple):
    """What a shard does beside its turns: the next append of effects, or the next snapshot."""

    shard: int
    worker: int


class Go(NamedTuple):
    """Everybody takes so many turns."""

    rounds: int


class TurnOld(NamedTuple):
    """An owner that has a successor, and has not heard of it, takes a turn, and does what it has to do beside it."""

    number: int


class Pass(NamedTuple):
    """Time goes by."""

    milliseconds: int


class Jump(NamedTuple):
    """The clock of a shard's machine, or of the gateway's, jumps."""

    shard: int
    milliseconds: int


class Crash(NamedTuple):
    """A shard, or the gateway, dies after so many operations more; of the append in which it dies, so many entries of
    each partition are there."""

    shard: int
    after: int
    lands: int


class PowerLoss(NamedTuple):
    """The machine with all shards and the store goes down, and comes up again."""

    loss: Loss


class TakeOver(NamedTuple):
    """A second owner is started beside the first, which goes on later, and has not heard of it."""

    shard: int


class CutOff(NamedTuple):
    """A shard, or the gateway, does not reach its log or its store for so many operations."""

    shard: int
    peer: Peer
    operations: int


class Trouble(NamedTuple):
    """What becomes of the next append of a shard, or of the gateway."""

    shard: int
    landing: Landing
    amount: int


class Land(NamedTuple):
    """An append that was late is there."""


class Fill(NamedTuple):
    """The store's disk is full, or is not any more."""

    full: bool


class Flip(NamedTuple):
    """A bit of a snapshot is not what it was."""

    file: int
    bit: int


class Lose(NamedTuple):
    """The next so many responses of shards do not arrive."""

    responses: int


class Snapshot(NamedTuple):
    """Somebody orders a snapshot of a partition."""

    partition: int


class Rescale(NamedTuple):
    """All shards end, cleanly or not, and others begin, so many."""

    shards: int
    clean: bool


class Upgrade(NamedTuple):
    """The app is ended with a savepoint, and the next version of it starts."""


class Ask(NamedTuple):
    """A client asks a query, or has a look into a read model; with `own` it must see what it has written."""

    client: int
    question: int
    own: bool


Step = (
    Send
    | Act
    | Commit
    | Turn
    | Work
    | Go
    | TurnOld
    | Pass
    | Jump
    | Crash
    | PowerLoss
    | TakeOver
    | CutOff
    | Trouble
    | Land
    | Fill
    | Flip
    | Lose
    | Snapshot
    | Rescale
    | Upgrade
    | Ask
)


class Setup(NamedTuple):
    """What a simulation has: drawn once, and the same in all of its steps."""

    partitions: int = 2
    shards: int = 1
    clients: int = 2
    independent: bool = False  # partitions of the log are
    most: int = 1000  # records in a read
    forgetful: bool = False  # the log does not know which messages it has
    snapshot_every: int = 8
    snapshot_slice: int = 500
    hot_entities: int = 0
    keep: int = 2  # snapshots
    parquet: bool = False
    snapshots_first: bool = False  # before effects, where both wait to be written
    crash_at: int = 0  # if there is one, the operation in which the machine loses power
    loss: Loss = "clean"


class Program(NamedTuple):
    """A simulation, whole: the same program gives the same run, to the byte."""

    setup: Setup
    steps: list[Step]
