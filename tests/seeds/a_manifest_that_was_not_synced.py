"""Found by the simulator: a manifest was built upon whose writer was killed before it was synced, and it was lost."""

from engram.testing.simulator.checking import check_program
from engram.testing.simulator.steps import Crash, Go, PowerLoss, Program, Setup, Snapshot, Turn

from tests.simulator.bank import subject

subject = subject.only(
    [
        ("ada", "deposit", '{"amount":9}'),
    ]
)
program = Program(
    Setup(partitions=1, clients=1),
    [
        Turn(shard=0),
        Snapshot(partition=0),
        Turn(shard=1),
        Crash(shard=1, after=21, lands=0),
        Go(rounds=3),
        PowerLoss(loss="uneven"),
    ],
)

if __name__ == "__main__":
    check_program(subject, program)
