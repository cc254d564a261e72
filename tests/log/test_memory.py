"""The log in memory."""

from __future__ import annotations

from engram.codec.record import Kind, Origin
from engram.log.base import Entry
from engram.log.memory import MemoryLog
from engram.testing import LogConformance


class TestMemoryLog(LogConformance):
    def make(self, tmp_path, app, partitions):
        return MemoryLog(app, partitions)

    def reopen(self, log, tmp_path, app, partitions):
        return log

    # The log is its object: there is nothing to open a second time, nor a way to it from elsewhere.
    test_another_app_is_refused = None
    test_another_number_of_partitions_is_refused = None
    test_processes_append_at_once = None


def test_it_knows_the_greatest_origin():
    """The log in memory tells the greatest origin exactly."""
    log = MemoryLog("app", 2)
    for origin in (Origin(9, 0, 0), Origin(10, 0, 0), Origin(10, 0, 1), Origin(9, 9, 9)):
        log.append([Entry(1, Kind.MESSAGES, 0, b"", (0, origin))])
    assert log.last_origin(1, 0) == Origin(10, 0, 1)


def test_it_can_be_read_on_after_closing():
    """Closing the log in memory keeps its records: the next owner in the process gets the same object."""
    log = MemoryLog("app", 1)
    log.append([Entry(0, Kind.COMMANDS, 0, b"kept")])
    log.close()
    assert [record.payload for record in log.read(0, 0, limit=1)] == [b"kept"]
