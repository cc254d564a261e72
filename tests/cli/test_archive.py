"""Archives, snapshots and logs that do not belong together are refused before Spark is started; nothing is done."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from engram.codec.record import Kind, Record
from engram.errors import Corrupt
from engram.log.archive.archive import Archive
from engram.log.open import open_log
from engram.log.scan import scan
from engram.snapshots.files import FileStorage
from engram.spark.archive import Archived, ArchivePlan, archive

from tests.cli.saying import Engram, Java, sentence
from tests.spark.story import SOCIAL, Story

OTHER = "sample_apps.impressions:app"
Refused = Callable[..., str]

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Story]:
    """Snapshots of several moments in both partitions, and a savepoint at the end."""
    with closing(Story(tmp_path, f"sqlite:{tmp_path / 'log.db'}")) as made:
        made.live(savepoint="noon")
        yield made


@pytest.fixture
def refused(engram: Engram, java: Java) -> Refused:
    """What a command says that ends with exit code 2; a Java that could not run Spark is not even tried."""
    java("17.0.1")
    return lambda *words: sentence(engram(*words), 2)


def archiving(story: Story, to: Path, *more: str) -> list[str]:
    return ["archive", SOCIAL, "--log", story.url, "--snapshots", story.snapshots, "--to", str(to), *more]


def joined(story: Story, to: Path) -> str:
    return f"{story.url}?archive={to}"


def archived(story: Story, to: Path, *, trim: bool = False) -> list[Archived]:
    """As the job does, without Spark."""

    def in_this_process(_spark: Any, pieces: Any, work: Any, **_how: Any) -> list[Any]:
        return [work(piece, lambda _done, _of: None) for piece in pieces]

    plan = ArchivePlan(app="social", log=story.url, snapshots=story.snapshots, to=str(to), trim=trim)
    return archive(None, plan, 2, on_progress=lambda _: None, run=in_this_process)


def add(story: Story, to: Path, records: list[Record], *, partitions: int = 2) -> None:
    Archive(FileStorage(to / "social"), "social", partitions).add(0, records, progress=lambda _: None)


def first_records(story: Story, count: int) -> list[Record]:
    return [record for record in scan(story.log, 0) if record.offset < count]


def contents(story: Story) -> list[list[Record]]:
    return [list(scan(story.log, partition, story.log.start(partition))) for partition in (0, 1)]


def edit(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


# Archives that do not fit


def test_a_hole_between_archive_and_log_is_told_by_all_who_read_all(refused: Refused, story: Story, tmp_path: Path):
    """With both numbers: who adds to the archive, asks in SQL, exports, rebuilds or tries a new version."""
    place = tmp_path / "archive"
    add(story, place, first_records(story, 2))
    story.log.trim(0, 4)
    log = ["--log", joined(story, place)]

    said = refused(*archiving(story, place))
    assert said == (
        f"The archive {place} ends at record 2 of partition 0, and the log begins at 4: what is between is in neither. "
        "Name the archive that has it."
    )
    for words in (["sql", SOCIAL, "select 1"], ["export", SOCIAL, "log", "--to", "x.csv"], ["rebuild", SOCIAL]):
        assert "ends at record 2 of partition 0, and the log begins at 4: what is" in refused(*words, *log)
    assert "ends at record 2 of partition 0" in refused("shadow", SOCIAL, SOCIAL, *log, "--report", "report")
    assert not list(tmp_path.glob("x.csv")) + list(tmp_path.glob("report"))


def test_what_was_trimmed_before_there_was_an_archive_is_told(refused: Refused, story: Story, tmp_path: Path):
    """No folder is made that would be taken for the archive of this log."""
    story.log.trim(1, 3)

    said = refused(*archiving(story, tmp_path / "archive"))
    assert said.startswith("Partition 1 of the log begins at record 3: what was before was trimmed, and is not in")
    assert said.endswith("Name the archive that has it.")
    assert not (tmp_path / "archive").exists()


def test_the_archive_of_another_log_is_told(refused: Refused, story: Story, tmp_path: Path):
    """One that goes further, has other records, or another number of partitions: none is added to, nothing trimmed."""
    before = contents(story)
    end = story.log.end(0)
    longer, stranger, wider = (tmp_path / name for name in ("longer", "stranger", "wider"))
    add(story, longer, [*before[0], Record(0, end, Kind.TICK, before[0][-1].time, b"")])
    add(story, stranger, [Record(0, 0, Kind.TICK, 7, b"")])
    add(story, wider, first_records(story, 2), partitions=3)

    told = {place: refused(*archiving(story, place, "--trim")) for place in (longer, stranger, wider)}
    assert f"goes to record {end + 1} of partition 0, and the log ends at {end}: it is of another" in told[longer]
    assert told[stranger].startswith("Record 0 of partition 0 is not the same in the archive")
    assert "is of social with 3 partitions, and the log of social with 2: name another folder." in told[wider]
    assert "with 3 partitions" in refused("sql", SOCIAL, "select 1", "--log", joined(story, wider))
    assert "There is no archive of social in" in refused("sql", SOCIAL, "select 1", "--log", joined(story, tmp_path))
    assert contents(story) == before
    assert {place: len(list(place.rglob("*.json"))) for place in told} == dict.fromkeys(told, 1)


def test_an_edited_archive_is_told_by_whoever_reads_it(refused: Refused, story: Story, tmp_path: Path):
    """A file by its checksum, a seal by its own: both are named, and nothing is trimmed because of them."""
    place = tmp_path / "archive"
    archived(story, place)
    before = contents(story)
    (file,) = place.glob("social/partition=0/date=*/*.parquet")
    kept = file.read_bytes()
    edit(file)

    said = refused(*archiving(story, place, "--trim"))
    assert f"{file} cannot be used: it has not the checksum" in said
    assert said.endswith("it was changed. Bring it back from a copy.")
    assert contents(story) == before
    file.write_bytes(kept)
    archived(story, place, trim=True)
    edit(file)
    log = ["--log", joined(story, place)]
    for words in (["replay", SOCIAL], ["log", "show", SOCIAL, "--partition", "0"], ["trace", SOCIAL, "0:1.0"]):
        assert f"{file.name} cannot be used: it has not the checksum" in refused(*words, *log)

    file.write_bytes(kept)
    (seal,) = place.glob("social/partition=0/*.json")
    seal.write_text(seal.read_text().replace('"latest": 1', '"latest": 2'))
    for words in (["replay", SOCIAL], ["sql", SOCIAL, "select 1"], ["shadow", SOCIAL, SOCIAL]):
        assert refused(*words, *log).endswith("000000000000000.json cannot be used: its seal was changed.")


def test_nothing_is_trimmed_by_an_archive_that_was_edited_further_back(story: Story, tmp_path: Path):
    """What is to go is read back first, all of it: the job ends, and the log of that partition has all it had."""
    place = tmp_path / "archive"
    add(story, place, first_records(story, 2))
    archived(story, place)
    before = contents(story)
    file, _ = sorted(place.glob("social/partition=0/date=*/*.parquet"))
    edit(file)

    with pytest.raises(Corrupt, match=rf"{file.name} cannot be used: it has not the checksum"):
        archived(story, place, trim=True)
    assert contents(story) == before


# Snapshots and logs that do not fit


def test_the_snapshots_of_another_log_are_told(refused: Refused, story: Story, tmp_path: Path):
    """Of records that this log does not have, of partitions that it does not have, or of another app in its folder."""
    place = tmp_path / "archive"
    shorter = Story(tmp_path / "shorter", f"sqlite:{tmp_path / 'shorter.db'}")
    narrower = Story(tmp_path / "narrower", f"sqlite:{tmp_path / 'narrower.db'}", partitions=1)
    narrower.live()
    narrower.live()
    for other in (shorter, narrower):
        other.snapshots = story.snapshots
        other.close()

    said = refused(*archiving(shorter, place))
    assert said.startswith("The snapshot of partition 0 is of record ")
    assert said.endswith(", and the log ends at 0: they do not belong together. Name the snapshots of this log.")
    assert "is there, and the log has 1 partitions: they do not" in refused(*archiving(narrower, place))
    shutil.copytree(Path(story.snapshots, "social"), tmp_path / "moved" / "impressions")
    open_log(f"sqlite:{tmp_path}/other.db", "impressions", partitions=2, create=True).close()
    words = ["archive", OTHER, "--log", f"sqlite:{tmp_path}/other.db", "--to", place]
    said = refused(*words, "--snapshots", tmp_path / "moved")
    assert said.startswith("The snapshot of partition 0 is of app social, and the log of impressions: they do not")
    assert not place.exists()


def test_a_place_without_snapshots_of_the_app_is_told(refused: Refused, story: Story, tmp_path: Path):
    """To all who were told to look there; nothing is written."""
    shutil.copytree(Path(story.snapshots, "social"), tmp_path / "others" / "impressions")
    where = ["--log", story.url, "--snapshots", tmp_path / "others"]
    commands = [
        ["archive", SOCIAL, "--to", "archive"],
        ["sql", SOCIAL, "select 1"],
        ["export", SOCIAL, "user", "--to", "x.db"],
        ["shadow", SOCIAL, SOCIAL, "--report", "report"],
        ["shadow", SOCIAL, SOCIAL, "--report", "report", "--from", "noon"],
    ]

    for words in commands:
        said = refused(*words, *where)
        assert said == f"There are no snapshots of social in {tmp_path / 'others'}: check the path."
    assert not any((tmp_path / name).exists() for name in ("archive", "x.db", "report"))


def test_a_shadow_from_a_savepoint_that_is_not_there_is_refused(refused: Refused, story: Story):
    """Before Spark starts, and with those that there are."""
    words = ["shadow", SOCIAL, SOCIAL, "--log", story.url, "--snapshots", story.snapshots, "--from", "eve"]
    assert refused(*words) == "There is no savepoint eve. There are: noon."


def test_the_log_of_another_app_is_told(refused: Refused, story: Story, tmp_path: Path):
    """To who adds to it, exports it or archives it: nothing is written there, nor beside it."""
    (tmp_path / "a.csv").write_text("id,command,key\n")
    before = contents(story)
    backfill = ["backfill", OTHER, "--from", "a.csv", "--plans", "plans", "--partitions", "2"]
    commands = [backfill, ["export", OTHER, "log", "--to", "x.csv"], ["archive", OTHER, "--to", "archive"]]

    for words in commands:
        said = refused(*words, "--log", story.url)
        assert "belongs to app 'social', not to 'impressions'" in said
    assert contents(story) == before
    assert not any((tmp_path / name).exists() for name in ("plans", "x.csv", "archive"))


def test_a_damaged_snapshot_holds_nothing_back_and_covers_nothing(story: Story, tmp_path: Path):
    """The last record's cannot be read: archived is what is older than the one before, which is needed again."""
    manifests = story.network.store.manifests(0)
    last = manifests[0].offset
    for damaged in (manifest for manifest in manifests if manifest.offset == last):
        (part,) = Path(story.snapshots, "social", "partition-0000", damaged.name).glob("memory*")
        edit(part)
    whole = max(manifest.offset for manifest in manifests if manifest.offset < last)

    told = archived(story, tmp_path / "archive", trim=True)
    assert (told[0].end, told[1].end) == (whole, story.network.store.manifests(1)[0].offset)
    assert 0 < told[0].begins <= whole
