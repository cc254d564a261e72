"""Found by the simulator: a shard said that it had ended when the log had not taken its last word."""

from engram.testing.simulator.checking import check_program
from engram.testing.simulator.steps import Program, Send, Setup, Trouble, Turn, Upgrade

from tests.simulator.bank import subject

subject = subject.only(
    [
        ("dora", "break", '{"rejects":false}'),
    ]
)
program = Program(
    Setup(partitions=1, clients=1),
    [
        Send(client=2, command=0),
        Turn(shard=0),
        Trouble(shard=0, landing="torn", amount=0),
        Upgrade(),
    ],
)

if __name__ == "__main__":
    check_program(subject, program)
