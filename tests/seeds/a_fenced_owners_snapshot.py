"""Found by the simulator: an owner that was fenced published a snapshot whose effects were dropped, not in the log."""

from engram.testing.simulator.checking import check_program
from engram.testing.simulator.steps import Go, Jump, Program, Send, Setup, Trouble

from tests.simulator.bank import subject

subject = subject.only(
    [
        ("bob", "later", '{"to":"dora","milliseconds":0}'),
        ("bob", "transfer", '{"to":["cleo","bob"],"amount":5}'),
    ]
)
program = Program(
    Setup(partitions=1, clients=1, snapshot_every=3),
    [
        Send(client=1, command=0),
        Trouble(shard=1, landing="late", amount=1000),
        Go(rounds=3),
        Trouble(shard=2, landing="refused", amount=0),
        Send(client=1, command=1),
        Go(rounds=3),
        Jump(shard=1, milliseconds=20000),
    ],
)

if __name__ == "__main__":
    check_program(subject, program)
