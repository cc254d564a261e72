"""Found by the simulator (seed 92): the epoch of a dead owner came late, and nobody served the partition any more."""

from engram.testing.simulator.checking import check_program
from engram.testing.simulator.steps import Go, Program, Setup, Trouble

from tests.simulator.bank import subject

subject = subject.only(
    [
        ("ada", "deposit", '{"amount":9}'),
    ]
)
program = Program(
    Setup(partitions=3, clients=1),
    [
        Trouble(shard=0, landing="late", amount=0),
        Go(rounds=2),
    ],
)

if __name__ == "__main__":
    check_program(subject, program)
