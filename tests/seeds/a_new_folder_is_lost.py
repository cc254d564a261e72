"""Found by the simulator: the folder of a partition's first snapshot was not synced, and a power loss took it."""

from engram.testing.simulator.checking import check_program
from engram.testing.simulator.steps import Go, PowerLoss, Program, Send, Setup, Upgrade

from tests.simulator.bank import subject

subject = subject.only(
    [
        ("ada", "deposit", '{"amount":23}'),
    ]
)
program = Program(
    Setup(partitions=1, clients=1),
    [
        Send(client=0, command=0),
        Go(rounds=3),
        Upgrade(),
        PowerLoss(loss="lost"),
    ],
)

if __name__ == "__main__":
    check_program(subject, program)
