"""Found by the simulator: a second command for a new entity, in the same record, listed it again."""

from engram.testing.simulator.checking import check_program
from engram.testing.simulator.steps import Program, Send, Setup

from tests.simulator.bank import subject

subject = subject.only(
    [
        ("dora", "transfer", '{"to":["cleo","cleo"],"amount":5}'),
        ("ada", "later", '{"to":"ada","milliseconds":10000000}'),
    ]
)
program = Program(
    Setup(clients=1, hot_entities=1),
    [
        Send(client=0, command=0),
        Send(client=1, command=1),
    ],
)

if __name__ == "__main__":
    check_program(subject, program)
