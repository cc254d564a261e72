"""Fifty writers of an embedded log are killed at random moments: nothing that was acknowledged is lost."""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import suppress
from itertools import chain
from pathlib import Path

from engram.codec.record import Kind
from engram.log.base import Entry
from engram.log.sqlite import SqliteLog

PARTITIONS = 3
CYCLES = 50
AT_ONCE = 3
DEADLINE_S = 60

# Each append has two records, in two partitions. It is acknowledged by a line once `append` has returned.
WRITER = """
import sys
from pathlib import Path
from engram.codec.record import Kind
from engram.log.base import Entry
from engram.log.sqlite import SqliteLog

path, name, partitions = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
log = SqliteLog(path, "app", partitions=partitions, create=True)
number = 0
while True:
    payload = f"{name}:{number}".encode()
    pair = [number % partitions, (number + 1) % partitions]
    offsets = log.append([Entry(partition, Kind.COMMANDS, 0, payload) for partition in pair])
    sys.stdout.write(f"{pair[0]} {offsets[0]} {pair[1]} {offsets[1]} {name}:{number}\\n")
    sys.stdout.flush()
    number += 1
"""


class Writer:
    """A process that appends until it is killed; `acknowledged` are the (partition, offset, payload) it told."""

    def __init__(self, path: Path, name: str) -> None:
        command = [sys.executable, "-c", WRITER, str(path), name, str(PARTITIONS)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE)
        self.acknowledged: list[tuple[int, int, bytes]] = []
        self._grown = threading.Condition()
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def wait_for(self, count: int) -> None:
        with self._grown:
            assert self._grown.wait_for(lambda: len(self.acknowledged) >= count, DEADLINE_S)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        assert self.process.wait(DEADLINE_S) == -signal.SIGKILL
        self._thread.join(DEADLINE_S)
        self.process.stdout.close()

    def _listen(self) -> None:
        for line in self.process.stdout:
            if not line.endswith(b"\n"):
                return  # killed in the middle of a line: not acknowledged
            one, one_offset, two, two_offset, payload = line.split()
            with self._grown:
                self.acknowledged.append((int(one), int(one_offset), payload))
                self.acknowledged.append((int(two), int(two_offset), payload))
                self._grown.notify()


def kill_one_after_the_other(path: Path, chance: random.Random) -> list[tuple[int, int, bytes]]:
    """Keeps a few writers at work at once, and kills them one by one; returns all that they acknowledged."""
    writers: list[Writer] = []
    acknowledged: list[tuple[int, int, bytes]] = []
    started = 0
    try:
        for _ in range(CYCLES):
            while started < CYCLES and len(writers) < AT_ONCE:
                writers.append(Writer(path, f"w{started}"))
                started += 1
            writer = writers[0]
            # Some while they start and open the log, the others at work; never at a moment of their choosing.
            if chance.random() < 0.8:
                writer.wait_for(chance.randrange(2, 40))
            with suppress(subprocess.TimeoutExpired):
                writer.process.wait(chance.uniform(0, 0.02))
            writers.pop(0).kill()
            acknowledged += writer.acknowledged
    finally:
        for writer in writers:
            writer.kill()
    return acknowledged


def test_killed_writers_lose_nothing_that_was_acknowledged(tmp_path):
    """After 50 SIGKILLs every acknowledged record is in its place, offsets have no gap, and no append is halved."""
    path = tmp_path / "log.db"
    acknowledged = kill_one_after_the_other(path, random.Random(20240101))
    log = SqliteLog(path, "app")
    records = {p: [r.payload for r in log.read(p, 0, limit=1_000_000)] for p in range(PARTITIONS)}
    offsets = {p: [r.offset for r in log.read(p, 0, limit=1_000_000)] for p in range(PARTITIONS)}
    next_offset = log.append([Entry(0, Kind.COMMANDS, 0, b"life goes on")])
    log.close()
    db = sqlite3.connect(path)
    integrity = db.execute("pragma integrity_check").fetchone()
    db.close()

    assert len(acknowledged) > 10 * CYCLES
    assert [a for a in acknowledged if records[a[0]][a[1] : a[1] + 1] != [a[2]]] == []
    assert offsets == {p: list(range(len(records[p]))) for p in range(PARTITIONS)}
    numbers: dict[bytes, list[int]] = {}
    for payload in chain.from_iterable(records.values()):
        name, number = payload.split(b":")
        numbers.setdefault(name, []).append(int(number))
    for name, of_writer in numbers.items():
        whole = [number for number in range(max(of_writer) + 1) for _ in range(2)]
        assert sorted(of_writer) == whole, f"{name} has an append that is there in part, or twice, or not"
    for payloads in records.values():
        for name in numbers:
            own = [int(payload.split(b":")[1]) for payload in payloads if payload.startswith(name + b":")]
            assert own == sorted(own)
    assert next_offset == [len(records[0])]
    assert integrity == ("ok",)
