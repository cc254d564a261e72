"""Found by the simulator: a folder that a killed process had made was not synced by the next one, and was lost."""

from engram.testing.simulator.checking import check_program
from engram.testing.simulator.steps import Crash, Go, PowerLoss, Program, Setup, Upgrade

from tests.simulator.bank import subject

subject = subject.only(
    [
        ("ada", "deposit", '{"amount":9}'),
    ]
)
program = Program(
    Setup(partitions=1, clients=1),
    [
        Crash(shard=1, after=2, lands=0),
        Go(rounds=3),
        Upgrade(),
        Go(rounds=1),
        PowerLoss(loss="lost"),
    ],
)

if __name__ == "__main__":
    check_program(subject, program)
