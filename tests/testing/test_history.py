"""The checker of histories: right ones pass, and each kind of anomaly is found."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from engram import Client, Position, Rejected
from engram.log.sqlite import SqliteLog
from engram.model.token import Token
from engram.testing.history import Operation, Recorder, RecordingClient, check, commands_in, read_history
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.serving.counter import Add as AddToCounter
from tests.serving.counter import app as counters
from tests.serving.running import RunningApp
from tests.spark.ledger import Add, Entries, app
from tests.testing.recorded import KEYS, Ledgers, Recorded, record, steps

histories = st.lists(steps, min_size=1, max_size=40).map(record)
long_histories = st.lists(steps, min_size=15, max_size=40).map(record)


def verdict(recorded: Recorded):
    return check(recorded.operations, app, logged=recorded.logged, model=Ledgers)


@given(histories)
def test_right_histories_are_accepted(recorded):
    """What clients of an app that keeps its promises saw is never called wrong, also where no word came."""
    found = verdict(recorded)
    found.raise_if_wrong()
    assert found.unchecked == 0


@given(histories)
def test_right_histories_are_accepted_without_the_log(recorded):
    """Keys with a command of which nobody heard are left alone then, and counted."""
    found = check(recorded.operations, app, model=Ledgers)
    found.raise_if_wrong()
    silent = {op.key for op in recorded.operations if op.kind == "command" and op.outcome == "unknown"}
    assert found.unchecked == len(silent)


# Anomalies: each takes a right history and makes it wrong in one place, or says that it cannot.


def _told(recorded: Recorded, kind: str = "command") -> list[int]:
    return [n for n, op in enumerate(recorded.operations) if op.kind == kind and op.outcome == "replied"]


def _change(recorded: Recorded, number: int, **how: object) -> None:
    recorded.operations[number] = replace(recorded.operations[number], **how)


def lose(recorded: Recorded, choose: Callable[[list[int]], int]) -> None:
    """The log does not have what was acknowledged."""
    del recorded.logged[recorded.operations[choose(_told(recorded))].id]


def duplicate(recorded: Recorded, choose: Callable[[list[int]], int]) -> None:
    """Two commands are acknowledged at one position."""
    one = choose(_told(recorded))
    other = choose([n for n in _told(recorded) if n != one])
    _change(recorded, other, position=recorded.operations[one].position)


def reorder(recorded: Recorded, choose: Callable[[list[int]], int]) -> None:
    """A command comes before one that was acknowledged before it began."""
    operations = recorded.operations
    later = choose(_told(recorded))
    before = [
        n
        for n in _told(recorded)
        if operations[n].ended < operations[later].began
        and operations[n].position.partition == operations[later].position.partition
    ]
    first = choose(before)
    for one, other in ((later, first), (first, later)):
        logged = recorded.logged[operations[one].id]
        recorded.logged[operations[one].id] = logged._replace(position=operations[other].position)


def handle_twice(recorded: Recorded, choose: Callable[[list[int]], int]) -> None:
    """A reply tells of one entry more than there should be."""
    number = choose(_told(recorded))
    _change(recorded, number, result=recorded.operations[number].result + 1)


def answer_wrongly(recorded: Recorded, choose: Callable[[list[int]], int]) -> None:
    """An answer has an entry that nobody has added."""
    number = choose(_told(recorded, "query"))
    _change(recorded, number, result=[*recorded.operations[number].result, -1])


def tear(recorded: Recorded, choose: Callable[[list[int]], int]) -> None:
    """The same question at the same position has two answers."""
    first = recorded.operations[choose(_told(recorded, "query"))]
    recorded.operations.append(replace(first, client="another", token="", result=[*first.result, -1]))


def read_old(recorded: Recorded, choose: Callable[[list[int]], int]) -> None:
    """An answer is older than what its client has written."""
    operations = recorded.operations
    number = choose(_told(recorded, "query"))
    query = operations[number]
    before = [
        n
        for n in _told(recorded)
        if operations[n].client == query.client
        and operations[n].ended < query.began
        and operations[n].position.partition == query.position.partition
    ]
    written = operations[choose(before)].position
    _change(recorded, number, position=Position(written.partition, written.offset - 1, 0))


def forget(recorded: Recorded, choose: Callable[[list[int]], int]) -> None:
    """A client has seen less than before."""
    operations = recorded.operations
    seen = [n for n in range(len(operations)) if Token.parse(operations[n].token).offsets]
    number = choose(seen)
    later = [n for n in range(number + 1, len(operations)) if operations[n].client == operations[number].client]
    _change(recorded, choose(later), token=str(Token(app.name, 2)))


ANOMALIES = {
    "lost": lose,
    "duplicated": duplicate,
    "order": reorder,
    "reply": handle_twice,
    "answer": answer_wrongly,
    "torn": tear,
    "read_your_writes": read_old,
    "tokens": forget,
}


@pytest.mark.parametrize("kind", ANOMALIES)
def test_each_kind_of_anomaly_is_found(kind: str):
    """Whatever the history, and wherever it is made wrong."""

    @settings(max_examples=40)
    @given(long_histories, st.data())
    def found(recorded: Recorded, data: st.DataObject) -> None:
        def choose(numbers: list[int]) -> int:
            assume(numbers)
            return data.draw(st.sampled_from(numbers))

        ANOMALIES[kind](recorded, choose)
        assert verdict(recorded).count(kind) >= 1

    found()


def test_a_verdict_tells_what_is_wrong():
    """With the kinds, how many of each, and the operations by name."""
    recorded = record([])
    recorded.operations.append(
        Operation(
            client="c", number=3, kind="command", key="ada", name="add", body='{"number":7}', began=1.0, ended=2.0,
            id=("s", 0), outcome="replied", result=1, position=Position(0, 5, 0),
        )
    )  # fmt: skip
    with pytest.raises(AssertionError, match=r"(?s)1 anomalies \(1 x lost\).*c's command 3 \(add .*for 'ada'\) was"):
        verdict(recorded).raise_if_wrong()


# Recording


def test_a_recorded_run_is_right_and_comes_back_from_its_file(tmp_path: Path):
    """Two clients of a real gateway and shards: the files have what they did, and the checker agrees."""

    async def run(url: str) -> list[Operation]:
        recorders = [Recorder(f"client{n}", tmp_path / f"client{n}.jsonl") for n in range(2)]
        for recorder in recorders:
            async with RecordingClient(url, app, recorder) as client:
                for number in range(5):
                    key = KEYS[number % 3]
                    await client.send(key, Add(number=number), idempotency_key=f"{recorder.client}-{number}")
                    await client.send(key, Add(number=number), idempotency_key=f"{recorder.client}-{number}")
                    await client.ask(key, Entries())
                await client.submit("ada", Add(number=9))
            recorder.close()
        return [operation for recorder in recorders for operation in recorder.operations]

    with RunningApp(app, tmp_path) as running:
        operations = asyncio.run(run(running.url))
    history = read_history(tmp_path / "client0.jsonl", tmp_path / "client1.jsonl")
    with closing(SqliteLog(tmp_path / "log.db", app.name)) as log:
        found = check(history, app, logged=commands_in(log, app), model=Ledgers)

    assert history == operations
    assert (found.commands, found.acknowledged, found.queries, found.unknown) == (22, 22, 10, 0)
    found.raise_if_wrong()


def test_what_was_refused_and_what_nobody_heard_of_is_told_apart(tmp_path: Path, nobody: str):
    """A rejection has its code; a gateway that is not there leaves it open whether a command was done."""

    async def run(url: str) -> list[Operation]:
        recorder = Recorder("client")
        async with RecordingClient(url, counters, recorder) as client:
            with pytest.raises(Rejected):
                await client.send("c", AddToCounter(by=-1))
        async with RecordingClient(nobody, counters, recorder, patience=0) as client:
            with pytest.raises(Exception, match="could not be reached"):
                await client.send("c", AddToCounter())
        return recorder.operations

    with RunningApp(counters, tmp_path) as running:
        rejected, unknown = asyncio.run(run(running.url))
    assert (rejected.outcome, rejected.result, rejected.acknowledged) == ("rejected", "negative", True)
    assert (unknown.outcome, unknown.acknowledged) == ("unknown", False)
    assert issubclass(RecordingClient, Client)


def test_a_killed_recorder_leaves_what_it_began(tmp_path: Path):
    """The last line may be cut off, and what had begun is there without an end."""
    recorder = Recorder("client", tmp_path / "h.jsonl")
    recorder.begin(kind="command", key="ada", name="add", body="{}", id=("s", 1))
    with (tmp_path / "h.jsonl").open("a") as file:
        file.write('{"client": "cli')
    (left,) = read_history(tmp_path / "h.jsonl")
    recorder.close()

    assert (left.outcome, left.ended, left.id) == ("unknown", None, ("s", 1))
