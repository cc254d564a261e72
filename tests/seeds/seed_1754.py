"""Seed 1754: Wrong: It does not come to rest in 120 virtual seconds: clients have ['logged', 'logged']; shard..."""

from engram.testing.simulator.checking import check_program
from engram.testing.simulator.steps import Program, Send, Setup, Trouble, Turn, Upgrade

from tests.simulator.bank import subject

subject = subject.only(
    [
        ("dora", "transfer", '{"to":["bob","dora"],"amount":1}'),
    ]
)
program = Program(
    Setup(partitions=1, clients=1),
    [
        Trouble(shard=0, landing="late", amount=1000),
        Send(client=0, command=0),
        Turn(shard=0),
        Turn(shard=1),
        Upgrade(),
    ],
)

if __name__ == "__main__":
    check_program(subject, program)
