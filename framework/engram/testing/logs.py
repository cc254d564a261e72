"""The contract of a log as tests."""

from __future__ import annotations

import json
import select
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from engram.codec.record import Epoch, Kind, Origin, Record, encode_epoch
from engram.errors import Misuse
from engram.log.base import RECORD_BYTES, Entry, Log, Trimmed, Watch
from engram.log.scan import scan
from engram.model.effects import OutEvent

APP = "conformance"
PARTITIONS = 4
# Far more than any wake-up takes; reached only when one was missed.
DEADLINE_S = 10.0
_FIRST = (-1, -1, -1)
_ORIGINS = [Origin(3, 0, 0), Origin(3, 0, 1), Origin(3, 1, 0), Origin(10, 0, 0), Origin(200, 11, 2)]

# What another process does in the test of several: appends one record after the other and says where they went.
_WRITER = """
import json, sys
from engram.codec.record import Kind
from engram.log.base import Entry
from engram.log.open import open_log

url, app, name, count, partitions = sys.argv[1:]
log = open_log(url, app)
print("ready", flush=True)
sys.stdin.readline()
places = []
for number in range(int(count)):
    payload = f"{name}:{number}"
    partition = number % int(partitions)
    places.append([partition, log.append([Entry(partition, Kind.COMMANDS, 0, payload.encode())])[0], payload])
log.close()
print(json.dumps(places))
"""


class LogConformance:
    """Inherit this in the tests of a log, say how to make one, and have the contract of `engram.log.base` tested:

        class TestSqliteLog(LogConformance):
            def make(self, tmp_path, app, partitions): ...
            def reopen(self, log, tmp_path, app, partitions): ...
            def url(self, tmp_path): ...

    What a log does not claim is left out by name, with the reason: `test_... = None  # not shared by processes`.
    """

    def make(self, tmp_path: Path, app: str, partitions: int) -> Log:
        """A new log for this test."""
        raise NotImplementedError

    def reopen(self, log: Log, tmp_path: Path, app: str, partitions: int) -> Log:
        """The log of this test once more, as another process would open it. `log` may be open or closed."""
        raise NotImplementedError

    def url(self, tmp_path: Path) -> str:
        """Where `engram.log.open.open_log` finds the log of this test, from another process."""
        raise NotImplementedError

    @pytest.fixture
    def log(self, tmp_path: Path) -> Iterator[Log]:
        log = self.make(tmp_path, APP, PARTITIONS)
        yield log
        log.close()

    # Trimming

    def test_a_trimmed_log_keeps_its_offsets(self, log: Log, tmp_path: Path) -> None:
        """The records before are gone, and who wants one is told where the log begins; all else is as it was."""
        log.append([_entry(1, b"%d" % number) for number in range(5)] + [_entry(2, b"other")], [_event(1, 0, 0, 0)])
        log.trim(1, 3)
        log.close()
        log = self.reopen(log, tmp_path, APP, PARTITIONS)
        assert ([log.start(partition) for partition in (1, 2)], log.end(1)) == ([3, 0], 5)
        assert [record.payload for record in scan(log, 1, 3)] == [b"3", b"4"]
        assert log.append([_entry(1, b"next")]) == [5]
        with pytest.raises(Trimmed, match=r"Record 2 of partition 1 is needed, but .* begins at record 3 there"):
            log.read(1, 2, limit=10)
        assert _payloads(log, 2) == [b"other"]
        assert len(log.events(1, after=_FIRST, limit=10)) == 1
        log.close()

    def test_trimming_all_keeps_the_end(self, log: Log) -> None:
        """The next record gets the offset that it would have had, and what is gone is not trimmed again."""
        assert (log.start(0), log.end(0)) == (0, 0)
        log.append([_entry(0, b"%d" % number) for number in range(3)])
        log.trim(0, 3)
        log.trim(0, 1)
        assert (log.start(0), log.end(0)) in ((2, 3), (3, 3))
        assert log.append([_entry(0, b"next")]) == [3]

    # Appending and reading

    def test_a_new_log_says_what_it_is_for_and_is_empty(self, log: Log) -> None:
        """A new log knows its app and its partitions, and has no records."""
        assert (log.app, log.partitions) == (APP, PARTITIONS)
        assert [log.end(partition) for partition in range(PARTITIONS)] == [0] * PARTITIONS
        assert log.read(0, 0, limit=10) == []

    def test_offsets_of_a_partition_are_consecutive(self, log: Log) -> None:
        """Records of a partition get the offsets 0, 1, 2 ..., in one append or in several."""
        assert log.append([_entry(1, b"a")]) == [0]
        assert log.append([_entry(1, b"b"), _entry(1, b"c")]) == [1, 2]
        assert log.append([_entry(1, b"d")]) == [3]
        assert log.end(1) == 4

    def test_partitions_count_for_themselves(self, log: Log) -> None:
        """One append may go to many partitions: the offsets come back in the order of the entries."""
        log.append([_entry(2, b"before")])
        offsets = log.append([_entry(partition, b"%d" % number) for number, partition in enumerate([2, 0, 2, 3, 0])])
        assert offsets == [1, 0, 2, 0, 1]
        assert _payloads(log, 0) == [b"1", b"4"]
        assert _payloads(log, 1) == []
        assert _payloads(log, 2) == [b"before", b"0", b"2"]
        assert _payloads(log, 3) == [b"3"]

    def test_an_append_of_nothing_is_nothing(self, log: Log) -> None:
        """Appending no entries adds no records."""
        assert log.append([]) == []
        assert [log.end(partition) for partition in range(PARTITIONS)] == [0] * PARTITIONS

    def test_a_record_comes_back_as_it_was(self, log: Log) -> None:
        """Partition, offset, kind, time and payload of a record are those that were appended."""
        log.append([_entry(3, b"first")])
        log.append([Entry(3, Kind.MESSAGES, 1_700_000_000_123, b"second", (1, Origin(0, 0, 0)))])
        assert log.read(3, 1, limit=1) == [Record(3, 1, Kind.MESSAGES, 1_700_000_000_123, b"second")]

    def test_a_read_starts_at_its_offset_and_keeps_to_its_limit(self, log: Log) -> None:
        """`read` gives at most `limit` records, from `offset` on, in order; fewer may come, but not none."""
        log.append([_entry(0, b"%d" % number) for number in range(10)])
        some, last = ([record.offset for record in log.read(0, offset, limit=4)] for offset in (3, 8))
        assert some in ([3], [3, 4], [3, 4, 5], [3, 4, 5, 6])
        assert last in ([8], [8, 9])
        assert [record.offset for record in scan(log, 0, 3, 7)] == [3, 4, 5, 6]
        assert [record.offset for record in scan(log, 0, 8)] == [8, 9]

    def test_a_read_at_the_end_does_not_wait(self, log: Log) -> None:
        """At the end of a partition, and beyond it, there is nothing to read yet."""
        log.append([_entry(0, b"only"), _entry(1, b"other")])
        assert log.read(0, 1, limit=10) == []
        assert log.read(0, 7, limit=10) == []

    def test_who_has_news_is_told(self, log: Log) -> None:
        """`news` names each partition that has a record from its offset on, and none that it was not asked for."""
        assert set(log.news({0: 0, 2: 0})) <= {0, 2}
        log.append([_entry(1, b"first"), _entry(1, b"second"), _entry(3, b"only"), _entry(2, b"not asked for")])
        assert {1, 3} <= set(log.news({0: 0, 1: 1, 3: 0})) <= {0, 1, 3}
        assert 1 in log.news({1: 0})
        log.trim(1, 2)
        assert 1 in log.news({1: 0})  # who is behind what was trimmed must hear of it

    def test_control_records_stand_among_the_commands(self, log: Log) -> None:
        """An epoch record has its place in the order of its partition like any other."""
        epoch = encode_epoch(Epoch(owner="somebody", app_version=1))
        offsets = [log.append([Entry(0, kind, 0, epoch)])[0] for kind in (Kind.COMMANDS, Kind.EPOCH, Kind.COMMANDS)]
        assert offsets == [0, 1, 2]
        assert [record.kind for record in scan(log, 0)] == [Kind.COMMANDS, Kind.EPOCH, Kind.COMMANDS]

    def test_any_bytes_are_a_payload(self, log: Log) -> None:
        """Payloads are bytes, whatever is in them."""
        payloads = [bytes(range(256)), b"\x00", b"\n\n", "ḗ\u2028".encode(), b'{"json": true}\x00tail', b"\xff\xfe"]
        log.append([_entry(0, payload) for payload in payloads])
        assert _payloads(log, 0) == payloads

    def test_a_large_payload_comes_back(self, log: Log) -> None:
        """A record may be as large as a full one, and somewhat larger: its header comes on top."""
        payload = bytes(range(256)) * (RECORD_BYTES // 256) + b"header" * 1000
        log.append([_entry(0, payload), _entry(0, b"next")])
        assert _payloads(log, 0) == [payload, b"next"]

    def test_an_append_happens_as_a_whole_or_not_at_all(self, log: Log) -> None:
        """With one entry that cannot be appended, nothing of its append is there."""
        log.append([_entry(0, b"before")])
        for impossible in (PARTITIONS, -1):
            with pytest.raises(Misuse):
                log.append([_entry(0, b"good"), _entry(impossible, b"bad")], [_event(0, 0, 0, 0)])
        assert _payloads(log, 0) == [b"before"]
        assert log.events(0, after=_FIRST, limit=10) == []
        assert log.append([_entry(0, b"after")]) == [1]

    # Origins

    def test_an_origin_is_never_told_too_high(self, log: Log) -> None:
        """`last_origin` is at most the greatest origin from that partition, and None if there are no messages."""
        assert log.last_origin(0, 1) is None
        for origin in _ORIGINS:
            log.append([Entry(0, Kind.MESSAGES, 0, b"m", (1, origin))])
            known = log.last_origin(0, 1)
            assert known is None or known <= origin

    def test_an_origin_that_was_appended_again_does_not_lower_it(self, log: Log) -> None:
        """A former owner may append old messages once more: the greatest origin stays the greatest."""
        log.append([Entry(0, Kind.MESSAGES, 0, b"m", (1, origin)) for origin in _ORIGINS])
        known = log.last_origin(0, 1)
        log.append([Entry(0, Kind.MESSAGES, 0, b"m", (1, _ORIGINS[0]))])
        assert log.last_origin(0, 1) == known

    def test_origins_are_kept_apart_by_both_partitions(self, log: Log) -> None:
        """Messages from elsewhere, messages to elsewhere, and commands say nothing of a pair of partitions."""
        log.append([Entry(0, Kind.MESSAGES, 0, b"m", (2, Origin(9, 9, 9)))])
        log.append([Entry(3, Kind.MESSAGES, 0, b"m", (1, Origin(8, 8, 8))), _entry(0, b"a command")])
        assert log.last_origin(0, 1) is None

    # Events

    def test_events_come_in_the_order_of_their_places(self, log: Log) -> None:
        """Events are in the order of offset, index and number, as numbers, over several appends."""
        places = [(9, 0, 0), (9, 0, 9), (9, 0, 10), (9, 9, 0), (9, 10, 0), (10, 0, 0)]
        log.append([], [_event(0, *place) for place in places[:3]])
        log.append([_entry(1, b"with a record")], [_event(0, *place) for place in places[3:]])
        assert [event[1:4] for event in log.events(0, after=_FIRST, limit=10)] == places

    def test_an_event_leaves_once(self, log: Log) -> None:
        """An event that is out already is left as it is."""
        first = _event(2, 5, 0, 0, body=b'{"text":"first \xc3\xa9"}')
        log.append([], [first])
        log.append([], [_event(2, 5, 0, 0, body=b'{"text":"again"}'), _event(2, 5, 0, 1)])
        assert log.events(2, after=_FIRST, limit=10) == [first, _event(2, 5, 0, 1)]

    def test_events_are_read_after_a_place_up_to_a_limit(self, log: Log) -> None:
        """`events` begins behind `after`, keeps to `limit`, and gives only its own partition's."""
        log.append([], [_event(partition, offset, 0, 0) for partition in (0, 1) for offset in range(5)])
        assert log.events(1, after=(1, 0, 0), limit=2) == [_event(1, 2, 0, 0), _event(1, 3, 0, 0)]
        assert log.events(1, after=(4, 0, 0), limit=2) == []

    # Watching

    def test_a_watch_is_woken_by_an_append(self, log: Log) -> None:
        """An append after `clear` makes every watch readable."""
        watches = [log.watch(), log.watch()]
        for watch in watches:
            watch.clear()
        log.append([_entry(0, b"new")])
        awake = [_readable(watch) for watch in watches]
        for watch in watches:
            watch.close()
        assert awake == [True, True]

    def test_a_watch_is_woken_by_another_holder_of_the_log(self, log: Log, tmp_path: Path) -> None:
        """Whoever appends, the watch tells, and the record can be read."""
        other = self.reopen(log, tmp_path, APP, PARTITIONS)
        watch = log.watch()
        for number in range(3):
            watch.clear()
            other.append([_entry(0, b"%d" % number)])
            assert _readable(watch)
            assert len(list(scan(log, 0))) == number + 1
        watch.close()
        other.close()

    def test_a_watch_can_be_woken_for_other_reasons(self, log: Log) -> None:
        """`wake` makes a watch readable until it is cleared, and no other one."""
        woken, other = log.watch([0]), log.watch([0])
        woken.wake()
        seen = _readable(woken), select.select([other], [], [], 0)[0]
        woken.clear()
        rests = not select.select([woken], [], [], 0)[0]
        woken.close()
        other.close()
        assert (seen, rests) == ((True, []), True)

    def test_a_watch_rests_when_there_is_nothing_new(self, log: Log) -> None:
        """After a few rounds of `clear` without an append, a wait is a wait: it does not spin."""
        watch = log.watch()
        log.append([_entry(0, b"new")])
        rested = False
        for _ in range(10):
            watch.clear()
            rested = rested or not select.select([watch], [], [], 0)[0]
        watch.close()
        assert rested

    def test_clear_then_read_then_wait_misses_nothing(self, log: Log, tmp_path: Path) -> None:
        """A reader that clears, reads and waits sees every record of a writer beside it, with no other reminder."""
        count = 300
        watch = log.watch()
        other = self.reopen(log, tmp_path, APP, PARTITIONS)
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(lambda: [other.append([_entry(0, b"%d" % n)]) for n in range(count)])
            seen: list[bytes] = []
            while len(seen) < count:
                watch.clear()
                records = log.read(0, len(seen), limit=10)
                seen += [record.payload for record in records]
                if not records and not _readable(watch):
                    break
            writing.result()
        watch.close()
        other.close()
        assert seen == [b"%d" % n for n in range(count)]

    def test_a_closed_watch_does_not_hinder_appends(self, log: Log) -> None:
        """Readers leave at any time; appends go on and the watches that stay are woken."""
        leaving, staying = log.watch(), log.watch()
        log.append([_entry(0, b"both are there")])
        leaving.close()
        staying.clear()
        assert log.append([_entry(0, b"one has left")]) == [1]
        assert _readable(staying)
        staying.close()

    # Several at once

    def test_threads_append_at_once(self, log: Log) -> None:
        """Appends of several threads leave no gap, each is where it was said to be, and watches come and go."""
        threads, count = 4, 25

        def write(name: int) -> list[tuple[int, int, bytes]]:
            places = []
            for number in range(count):
                watches = [log.watch() for _ in range(5)]
                payload = b"%d:%d" % (name, number)
                partitions = [name % PARTITIONS, number % PARTITIONS]
                offsets = log.append([_entry(partition, payload) for partition in partitions])
                places += [(p, o, payload) for p, o in zip(partitions, offsets, strict=True)]
                for watch in watches:
                    watch.close()
            return places

        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)  # threads meet more often
        try:
            with ThreadPoolExecutor(threads) as pool:
                told = [place for places in pool.map(write, range(threads)) for place in places]
        finally:
            sys.setswitchinterval(interval)
        _check_places(log, told)

    def test_processes_append_at_once(self, log: Log, tmp_path: Path) -> None:
        """Appends of several processes leave no gap, and each is where it was said to be."""
        count = 40
        command = [sys.executable, "-c", _WRITER, self.url(tmp_path), APP]
        writers = [
            subprocess.Popen(  # noqa: S603 - this interpreter, our own program
                [*command, name, str(count), str(PARTITIONS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            for name in ("one", "two", "three")
        ]
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
        told: list[tuple[int, int, bytes]] = []
        for writer in writers:
            assert writer.stdin is not None
            writer.stdin.write("go\n")
            writer.stdin.flush()
        for writer in writers:
            said, _ = writer.communicate(timeout=60)
            told += [(partition, offset, payload.encode()) for partition, offset, payload in json.loads(said)]
        assert len(told) == count * len(writers)
        _check_places(log, told)

    # Opening and closing

    def test_everything_is_there_after_reopening(self, log: Log, tmp_path: Path) -> None:
        """Records, events and origins outlive the one who wrote them."""
        log.append([_entry(0, b"one"), Entry(0, Kind.MESSAGES, 5, b"two", (1, Origin(4, 5, 6)))], [_event(0, 0, 0, 0)])
        records, known = list(scan(log, 0)), log.last_origin(0, 1)
        log.close()
        again = self.reopen(log, tmp_path, APP, PARTITIONS)
        found = list(scan(again, 0)), again.last_origin(0, 1), again.events(0, after=_FIRST, limit=10)
        next_offset = again.append([_entry(0, b"three")])
        again.close()
        assert found == (records, known, [_event(0, 0, 0, 0)])
        assert next_offset == [2]

    def test_another_app_is_refused(self, log: Log, tmp_path: Path) -> None:
        """A log is for one app: opening it for another is `Misuse`, and the message has both names."""
        with pytest.raises(Misuse, match=f"(?s)(?=.*{APP})(?=.*another_app)"):
            self.reopen(log, tmp_path, "another_app", PARTITIONS)

    def test_another_number_of_partitions_is_refused(self, log: Log, tmp_path: Path) -> None:
        """The number of partitions is for ever: opening with another is `Misuse`, and the message has both."""
        with pytest.raises(Misuse, match=f"(?s)(?=.*{PARTITIONS})(?=.*17)"):
            self.reopen(log, tmp_path, APP, 17)

    def test_closing_twice_does_no_harm(self, log: Log) -> None:
        """`close` may be called again."""
        log.append([_entry(0, b"one")])
        log.close()
        log.close()


def _entry(partition: int, payload: bytes) -> Entry:
    return Entry(partition, Kind.COMMANDS, 0, payload)


def _event(partition: int, offset: int, index: int, number: int, body: bytes = b"{}") -> OutEvent:
    return OutEvent(partition, offset, index, number, "happened", 1, 1_700_000_000_000, "someone", body)


def _payloads(log: Log, partition: int) -> list[bytes]:
    return [record.payload for record in scan(log, partition)]


def _readable(watch: Watch) -> bool:
    return bool(select.select([watch], [], [], DEADLINE_S)[0])


def _check_places(log: Log, told: list[tuple[int, int, bytes]]) -> None:
    """The log holds exactly what its writers were told, gapless, each writer's in its own order."""
    for partition in range(PARTITIONS):
        records = list(scan(log, partition))
        assert [record.offset for record in records] == list(range(len(records)))
        assert [(partition, record.offset, record.payload) for record in records] == sorted(
            place for place in told if place[0] == partition
        )
        numbers: dict[bytes, list[int]] = {}
        for record in records:
            name, number = record.payload.split(b":")
            numbers.setdefault(name, []).append(int(number))
        assert all(of_writer == sorted(of_writer) for of_writer in numbers.values())
