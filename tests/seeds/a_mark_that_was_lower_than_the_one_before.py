"""Found by the simulator: a snapshot waited for an append that had happened, because a later mark was lower."""

from engram.testing.simulator.checking import check_program
from engram.testing.simulator.steps import Go, Pass, Program, Send, Setup, Snapshot, Trouble

from tests.simulator.bank import subject

subject = subject.only(
    [
        ("cleo", "transfer", '{"to":["dora","bob"],"amount":7}'),
        ("cleo", "deposit", '{"amount":25}'),
    ]
)
program = Program(
    Setup(partitions=3, shards=2, clients=1, snapshot_every=3),
    [
        Go(rounds=1),
        Trouble(shard=2, landing="unsure", amount=0),
        Send(client=0, command=0),
        Go(rounds=2),
        Snapshot(partition=0),
        Go(rounds=3),
        Send(client=0, command=1, once=True),
        Pass(milliseconds=3000),
    ],
)

if __name__ == "__main__":
    check_program(subject, program)
