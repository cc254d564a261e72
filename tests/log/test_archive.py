"""Archives: segments of old records with seals, and the log that reads both as one."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from engram.codec.record import Kind, Record
from engram.errors import Corrupt, Misuse
from engram.log.archive.archive import Archive
from engram.log.base import Entry, Log, Trimmed
from engram.log.open import absolute_url, folder_beside, open_log
from engram.log.scan import scan
from engram.snapshots.files import FileStorage
from engram.testing import LogConformance
from hypothesis import given
from hypothesis import strategies as st

DAY = 86_400_000


def archive_of(folder: Path, *, app: str = "app", partitions: int = 2) -> Archive:
    return Archive(FileStorage(folder / "archive" / app), app, partitions)


def records_of(*times: int, start: int = 0, partition: int = 0) -> list[Record]:
    return [Record(partition, offset, Kind.COMMANDS, time, b"%d" % offset) for offset, time in enumerate(times, start)]


def add(archive: Archive, records: list[Record], partition: int = 0) -> int:
    return archive.add(partition, records, progress=lambda _: None)


def all_of(archive: Archive, partition: int = 0) -> list[Record]:
    return [record for segment in archive.segments(partition) for record in archive.records(segment)]


@pytest.fixture
def trimmed(tmp_path: Path) -> Iterator[Log]:
    """Ten records, of which the first six are in the archive, and the first four there alone."""
    with closing(open_log(f"sqlite:{tmp_path}/a.db", "app", partitions=2, create=True)) as log:
        log.append([Entry(0, Kind.COMMANDS, number, b"%d" % number) for number in range(10)])
        add(archive_of(tmp_path), log.read(0, 0, limit=6))
        log.trim(0, 4)
    with closing(open_log(f"sqlite:{tmp_path}/a.db?archive={tmp_path}/archive", "app")) as joined:
        yield joined


class TestConformance(LogConformance):
    """A log with an archive is a log."""

    def make(self, tmp_path: Path, app: str, partitions: int) -> Log:
        (tmp_path / "archive" / app).mkdir(parents=True)
        return open_log(self.url(tmp_path), app, partitions=partitions, create=True)

    def reopen(self, log: Log, tmp_path: Path, app: str, partitions: int) -> Log:
        (tmp_path / "archive" / app).mkdir(parents=True, exist_ok=True)
        return open_log(self.url(tmp_path), app, partitions=partitions)

    def url(self, tmp_path: Path) -> str:
        return f"sqlite:{tmp_path / 'log.db'}?archive={tmp_path / 'archive'}"


@given(times=st.lists(st.integers(0, 3 * DAY), max_size=40), cuts=st.lists(st.integers(0, 40), max_size=4))
def test_what_was_added_comes_back(tmp_path_factory: pytest.TempPathFactory, times: list[int], cuts: list[int]):
    """However it was added, and wherever the writers' clocks went: in order, whole, each record in the folder of its
    day, or of the latest day before it."""
    folder = tmp_path_factory.mktemp("archive")
    records = records_of(*times)
    places = [0, *sorted(min(cut, len(records)) for cut in cuts), len(records)]
    for start, end in itertools.pairwise(places):
        add(archive_of(folder), records[start:end])

    found = archive_of(folder)
    assert all_of(found) == records
    assert [r for place in range(len(records)) for r in found.read(0, place, 1)] == records
    folders = [segment.file.partition("/")[0] for segment in found.segments(0) for _ in found.records(segment)]
    latest = itertools.accumulate(times, max)
    assert folders == [f"date={datetime.fromtimestamp(time / 1000, UTC).date()}" for time in latest]


def test_archive_and_log_are_read_as_one(trimmed: Log):
    """From the archive as far as it must be, and from the log for the rest."""
    assert (trimmed.start(0), trimmed.end(0)) == (0, 10)
    assert [record.payload for record in scan(trimmed, 0)] == [b"%d" % number for number in range(10)]
    assert [record.offset for record in trimmed.read(0, 2, limit=2)] == [2, 3]


def test_without_its_archive_a_trimmed_log_says_where_it_begins(trimmed: Log, tmp_path: Path):
    """One sentence, with the way out."""
    with closing(open_log(f"sqlite:{tmp_path}/a.db", "app")) as alone, pytest.raises(Trimmed) as problem:
        alone.read(0, 0, limit=1)
    assert "begins at record 4 there" in str(problem.value)
    assert "?archive=FOLDER" in str(problem.value)


def test_a_hole_between_archive_and_log_is_found(trimmed: Log, tmp_path: Path):
    """Both numbers are told."""
    with closing(open_log(f"sqlite:{tmp_path}/a.db", "app")) as log:
        log.trim(0, 8)
    assert [record.offset for record in scan(trimmed, 0, 0, 6)] == list(range(6))
    with pytest.raises(Corrupt, match=r"ends at record 6 of partition 0, and the log begins at 8"):
        trimmed.read(0, 6, limit=1)


def test_a_changed_file_is_found(trimmed: Log, tmp_path: Path):
    """One byte is enough, and the file is named."""
    (file,) = tmp_path.glob("archive/app/partition=0/date=*/*.parquet")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)

    with pytest.raises(Corrupt, match=rf"{file.name} cannot be used: it has not the checksum"):
        trimmed.read(0, 0, limit=1)


@pytest.mark.parametrize("change", [{"end": 7}, {"partition": 1}, {"digest": "0"}, {"format": 9}, {"more": 1}])
def test_a_changed_seal_is_found(trimmed: Log, tmp_path: Path, change: dict[str, object]):
    """Whatever was changed in it."""
    (seal,) = tmp_path.glob("archive/app/partition=0/*.json")
    seal.write_text(json.dumps({**json.loads(seal.read_text()), **change}))

    with pytest.raises(Corrupt, match=r"000000000000000\.json cannot be used: its seal"):
        trimmed.read(0, 0, limit=1)


def test_a_missing_segment_is_found(tmp_path: Path):
    """The first and the next are named; so is one that was exchanged for another of the same length."""
    for day in range(3):
        add(archive_of(tmp_path), records_of(day * DAY, day * DAY, start=2 * day))
    seals = sorted((tmp_path / "archive" / "app" / "partition=0").glob("*.json"))
    other = tmp_path / "other"
    add(archive_of(other), records_of(5, 5))
    add(archive_of(other), records_of(DAY, DAY, start=2))
    exchanged = sorted((other / "archive" / "app" / "partition=0").glob("*.json"))[1].read_bytes()
    kept = seals[1].read_bytes()

    seals[1].write_bytes(exchanged)
    with pytest.raises(Corrupt, match="which do not follow them"):
        archive_of(tmp_path).segments(0)
    seals[1].unlink()
    with pytest.raises(Corrupt, match=r"has records up to 2 of partition 0, and then from 4 on"):
        archive_of(tmp_path).segments(0)
    seals[1].write_bytes(kept)
    assert len(archive_of(tmp_path).segments(0)) == 3


def test_an_archive_of_another_log_is_refused(tmp_path: Path):
    """By the app and the number of partitions; or there is none at all."""
    add(archive_of(tmp_path, partitions=3), records_of(1, 2))
    url = f"sqlite:{tmp_path}/b.db?archive={tmp_path}/archive"
    refused = pytest.raises(Misuse, match="is of app with 3 partitions, and the log of app with 2: name another folder")
    with closing(open_log(url, "app", partitions=2, create=True)) as log, refused:
        log.start(0)
    with pytest.raises(Misuse, match=r"There is no archive of app in .*nowhere: check the path"):
        open_log(f"sqlite:{tmp_path}/b.db?archive={tmp_path}/nowhere", "app")


def test_what_an_interrupted_run_has_left_is_swept(tmp_path: Path):
    """A file without a seal does not count, and goes once another has taken its place; nobody else's does."""
    add(archive_of(tmp_path), records_of(1, 2))
    folder = tmp_path / "archive" / "app" / "partition=0"
    (sealed,) = folder.glob("date=*/*.parquet")
    left, under_way = (sealed.with_name(f"{start:015}-00000000.parquet") for start in (0, 9))
    for file in (left, under_way):
        file.write_bytes(b"half")
    add(archive_of(tmp_path), records_of(3, start=2))

    assert (left.exists(), under_way.exists()) == (False, True)
    assert all_of(archive_of(tmp_path)) == records_of(1, 2, 3)


def test_only_what_the_log_has_may_be_trimmed(tmp_path: Path):
    """An archive that is not of this log, or does not go as far, is no reason to delete anything."""
    archive = archive_of(tmp_path)
    add(archive, records_of(1, 2, 3))
    records = records_of(1, 2, 3)
    archive.verify(0, lambda start, end: records[start:end], 1, 3)

    with pytest.raises(Corrupt, match="is not what the log has"):
        archive.verify(0, lambda start, end: records_of(1, 2, 4)[start:end], 0, 3)
    with pytest.raises(Corrupt, match="up to record 3, not up to 5"):
        archive.verify(0, lambda start, end: records[start:end], 0, 5)


def test_a_url_with_an_archive_names_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Both are made absolute; what belongs to the log is beside the log."""
    monkeypatch.chdir(tmp_path)
    assert absolute_url("sqlite:a.db?archive=old") == f"sqlite:{tmp_path}/a.db?archive={tmp_path}/old"
    assert absolute_url("kafka://h:1/t?archive=s3://b/p") == "kafka://h:1/t?archive=s3://b/p"
    assert absolute_url("kafka://h:1/t?linger_ms=5&archive=s3://b/p").endswith("?linger_ms=5&archive=s3://b/p")
    assert folder_beside("sqlite:a.db?archive=old") == tmp_path / "a.db"


def test_archives_of_the_first_format_stay_readable():
    """What was sealed once is read for ever: two segments, of two days, of records of every sort."""
    kept = Archive(FileStorage(Path(__file__).parents[1] / "golden" / "archive-1" / "town"), "town", 2)

    assert [(segment.start, segment.end) for segment in kept.segments(1)] == [(5, 8), (8, 9)]
    assert all_of(kept, 1) == [
        Record(1, 5, Kind.EPOCH, 1_700_000_000_000, b'{"owner":"o","app_version":1,"address":""}'),
        Record(1, 6, Kind.NOTHING, 0, b""),
        Record(1, 7, Kind.COMMANDS, 1_700_000_000_001, b'{"types":[]}\n\x00'),
        Record(1, 8, Kind.TICK, 1_700_100_000_000, b""),
    ]
