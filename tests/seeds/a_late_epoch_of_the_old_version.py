"""By reading: the epoch of an old version's dead owner came after the new version's, and barred the new version."""

from engram.testing.simulator.checking import check_program
from engram.testing.simulator.steps import Go, Land, Program, Send, Setup, Trouble, Upgrade

from tests.simulator.bank import subject

subject = subject.only(
    [
        ("ada", "deposit", '{"amount":9}'),
    ]
)
program = Program(
    Setup(partitions=1, clients=1),
    [
        Trouble(shard=0, landing="late", amount=0),
        Send(client=0, command=0),
        Go(rounds=2),
        Upgrade(),
        Go(rounds=1),
        Land(),
        Send(client=0, command=0),
        Go(rounds=3),
    ],
)

if __name__ == "__main__":
    check_program(subject, program)
