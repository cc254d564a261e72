"""Group commit: what arrives while an append is in flight goes into the next one."""

from __future__ import annotations

import threading

import pytest
from engram.codec.record import CommandsHeader, Envelope
from engram.errors import Misuse, Unavailable
from engram.log import pieces
from engram.log.group import GroupCommit
from engram.log.memory import MemoryLog
from engram.model.position import Position

DEADLINE_S = 10


class GatedLog(MemoryLog):
    """A log in memory whose appends wait for a gate, as a disk would make them, and fail when told to."""

    def __init__(self) -> None:
        super().__init__("app", 4)
        self.gate = threading.Semaphore(0)
        self.entered = threading.Semaphore(0)
        self.problem: Exception | None = None
        self.appends: list[list[int]] = []

    def append(self, entries, events=()):
        self.entered.release()
        assert self.gate.acquire(timeout=DEADLINE_S)
        if self.problem is not None:
            raise self.problem
        self.appends.append([entry.partition for entry in entries])
        return super().append(entries, events)


class Settling:
    """Collects what was settled, and waits for a number of it."""

    def __init__(self) -> None:
        self.settled: list[tuple[object, object]] = []
        self._changed = threading.Condition()

    def __call__(self, settled) -> None:
        with self._changed:
            self.settled += settled
            self._changed.notify()

    def wait_for(self, count: int) -> dict[object, object]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.settled) >= count, DEADLINE_S), self.settled
            return dict(self.settled)


def envelope(body: bytes = b"{}", key: str = "key") -> Envelope:
    return Envelope("command", 1, key, body, "session", 1)


def commit_to(log: MemoryLog, settling: Settling) -> GroupCommit:
    return GroupCommit(log, writer="writer", clock=lambda: 1234, on_settled=settling)


def bodies(log: MemoryLog, partition: int) -> list[bytes]:
    return [record.payload.split(b"\n")[1] for record in log.read(partition, 0, limit=1000)]


def test_a_command_gets_its_position():
    """A submitted command is appended, and its ticket comes back with its position."""
    log, settling = MemoryLog("app", 4), Settling()
    commit = commit_to(log, settling)
    commit.submit(2, envelope(b'{"a":1}'), "ticket")
    settled = settling.wait_for(1)
    commit.close()
    assert settled == {"ticket": Position(2, 0, 0)}
    [record] = log.read(2, 0, limit=10)
    assert record.time == 1234
    assert CommandsHeader.read(record.payload.split(b"\n")[0]).writer == "writer"
    assert bodies(log, 2) == [b'[{"a":1}]']


def test_what_arrives_during_an_append_is_one_record_per_partition():
    """Everything submitted while an append is in flight goes into the next one, in order, a record per partition."""
    log, settling = GatedLog(), Settling()
    commit = commit_to(log, settling)
    commit.submit(0, envelope(b"0"), "first")
    assert log.entered.acquire(timeout=DEADLINE_S)
    for number in range(1, 10):
        commit.submit(number % 3, envelope(b"%d" % number), number)
    log.gate.release(2)
    settled = settling.wait_for(10)
    commit.close()
    assert log.appends == [[0], [0, 1, 2]]
    assert (bodies(log, 0), bodies(log, 1), bodies(log, 2)) == ([b"[0]", b"[3,6,9]"], [b"[1,4,7]"], [b"[2,5,8]"])
    assert settled == {
        "first": Position(0, 0, 0),
        **{number: Position(0, 1, index) for index, number in enumerate((3, 6, 9))},
        **{number: Position(1, 0, index) for index, number in enumerate((1, 4, 7))},
        **{number: Position(2, 0, index) for index, number in enumerate((2, 5, 8))},
    }


def test_a_record_has_a_bounded_number_of_commands():
    """More commands than a record may hold are cut into several records of one append."""
    log, settling = GatedLog(), Settling()
    commit = commit_to(log, settling)
    commit.submit(3, envelope(), "first")
    assert log.entered.acquire(timeout=DEADLINE_S)
    count = 2 * pieces.RECORD_COMMANDS + 1
    for number in range(count):
        commit.submit(0, envelope(b"%d" % number), number)
    log.gate.release(2)
    settled = settling.wait_for(count + 1)
    commit.close()
    assert log.appends == [[3], [0, 0, 0]]
    assert [body.count(b",") + 1 for body in bodies(log, 0)] == [pieces.RECORD_COMMANDS, pieces.RECORD_COMMANDS, 1]
    assert [settled[number] for number in range(count)] == [
        Position(0, *divmod(number, pieces.RECORD_COMMANDS)) for number in range(count)
    ]


def test_a_record_has_a_bounded_size(monkeypatch):
    """Commands that would make a record too large go into the next; one that is too large alone goes alone."""
    monkeypatch.setattr(pieces, "RECORD_BYTES", 100)
    log, settling = GatedLog(), Settling()
    commit = commit_to(log, settling)
    commit.submit(3, envelope(), "first")
    assert log.entered.acquire(timeout=DEADLINE_S)
    sizes = [40, 50, 20, 500, 30, 60]
    for number, size in enumerate(sizes):
        commit.submit(0, envelope(b"%d" % number * size, key="k"), number)
    log.gate.release(2)
    settled = settling.wait_for(len(sizes) + 1)
    commit.close()
    assert [settled[number] for number in range(len(sizes))] == [
        Position(0, 0, 0), Position(0, 0, 1), Position(0, 1, 0), Position(0, 2, 0), Position(0, 3, 0), Position(0, 3, 1)
    ]  # fmt: skip


def test_threads_keep_their_own_order():
    """Commands of several threads are all appended once, each thread's in its own order."""
    log, settling = MemoryLog("app", 4), Settling()
    commit = commit_to(log, settling)

    def submit(name: int) -> None:
        for number in range(200):
            commit.submit(number % 4, envelope(b"%d" % number), (name, number))

    threads = [threading.Thread(target=submit, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    settled = settling.wait_for(800)
    commit.close()
    assert len(settling.settled) == len(settled) == len(set(settled.values())) == 800
    for name in range(4):
        for partition in range(4):
            positions = [settled[name, number] for number in range(partition, 200, 4)]
            assert positions == sorted(positions)
            assert {position.partition for position in positions} == {partition}


@pytest.mark.parametrize(
    ("problem", "told"),
    [(Unavailable("the disk is full"), "the disk is full"), (OSError("surprise"), "The log failed.*surprise")],
)
def test_an_error_reaches_every_ticket_and_work_goes_on(problem, told):
    """When an append fails, each of its tickets gets the reason as one of Engram's errors; the next append is tried."""
    log, settling = GatedLog(), Settling()
    commit = commit_to(log, settling)
    commit.submit(0, envelope(), "first")
    assert log.entered.acquire(timeout=DEADLINE_S)
    log.problem = problem
    for ticket in ("second", "third"):
        commit.submit(1, envelope(), ticket)
    log.gate.release(2)
    settled = settling.wait_for(3)
    log.problem = None
    log.gate.release()
    commit.submit(1, envelope(), "last")
    settled = settling.wait_for(4)
    commit.close()
    for ticket in ("first", "second", "third"):
        with pytest.raises(Unavailable, match=told):
            raise settled[ticket]
    assert settled["last"] == Position(1, 0, 0)


def test_a_command_that_cannot_be_encoded_does_not_end_the_work():
    """What cannot go into a record is told to its tickets, and the thread that appends for everybody lives on."""
    log, settling = MemoryLog("app", 4), Settling()
    commit = commit_to(log, settling)
    commit.submit(0, envelope(key="\ud800"), "bad")
    settled = settling.wait_for(1)
    assert isinstance(settled["bad"], Unavailable)
    commit.submit(0, envelope(), "good")
    settled = settling.wait_for(2)
    commit.close()
    assert settled["good"] == Position(0, 0, 0)


def test_a_misuse_is_told_as_such():
    """A partition that the log does not have is the caller's mistake, and the ticket says so."""
    log, settling = MemoryLog("app", 4), Settling()
    commit = commit_to(log, settling)
    commit.submit(4, envelope(), "ticket")
    settled = settling.wait_for(1)
    commit.close()
    assert isinstance(settled["ticket"], Misuse)


def test_closing_appends_what_is_waiting():
    """What was submitted before `close` is appended and settled when `close` returns; later is refused."""
    log, settling = GatedLog(), Settling()
    commit = commit_to(log, settling)
    commit.submit(0, envelope(), "in flight")
    assert log.entered.acquire(timeout=DEADLINE_S)
    commit.submit(0, envelope(), "waiting")
    log.gate.release(2)
    commit.close()
    assert dict(settling.settled) == {"in flight": Position(0, 0, 0), "waiting": Position(0, 1, 0)}
    with pytest.raises(Unavailable, match="was not logged"):
        commit.submit(0, envelope(), "late")
