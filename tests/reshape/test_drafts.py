"""Logs in the making: closed to everybody until they are whole, and begun where they are to begin."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from engram.codec.record import Kind
from engram.errors import Misuse
from engram.log.base import Entry, Making, Unfinished
from engram.log.open import make_log, open_log

from tests.reshape.drafts import Places

PLAN = Making("plan", 5)


@pytest.fixture(params=["sqlite", "kafka"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    places = Places(tmp_path, request.getfixturevalue("kafka") if request.param == "kafka" else None)
    return places.log("draft")


def test_nobody_opens_a_log_before_it_is_whole(url: str):
    """Neither to read nor to make it; whoever has the plan goes on, also in several steps; then everybody can."""
    heard: list[tuple[int, int]] = []
    with closing(make_log(url, "app", partitions=2, making=PLAN)) as draft:
        assert not draft.finished
        draft.begin(0, lambda *word: heard.append(word))
    for create in (False, True):
        with pytest.raises(Unfinished, match="is not whole: `engram repartition` was interrupted while it made it"):
            open_log(url, "app", partitions=2, create=create)
    with pytest.raises(Misuse, match=r"There is a log at .* already, which is not of this"):
        make_log(url, "app", partitions=2, making=Making("another", 5))
    with closing(make_log(url, "app", partitions=2, making=PLAN)) as draft:
        for partition in (0, 1):
            draft.begin(partition, lambda *_word: None)
        assert draft.append([Entry(1, Kind.COMMANDS, 0, b"a"), Entry(0, Kind.COMMANDS, 0, b"b")]) == [5, 5]
        draft.finish()
        draft.finish()

    with closing(open_log(url, "app", partitions=2)) as log:
        assert (log.base, log.start(0), log.end(0)) == (5, 5, 6)
        assert [record.payload for record in log.read(1, 5, limit=9)] == [b"a"]
        assert log.last_origin(0, 1) is None
        assert log.append([Entry(0, Kind.COMMANDS, 0, b"c")]) == [6]
    with closing(make_log(url, "app", partitions=2, making=PLAN)) as made:
        assert made.finished
    with pytest.raises(Misuse, match=r"There is a log at .* already, which is not of this"):
        make_log(url, "app", partitions=2, making=Making("another", 5))


def test_a_log_that_is_there_is_not_taken_for_a_draft(url: str):
    """What somebody has made before is left alone."""
    open_log(url, "app", partitions=2, create=True).close()
    with pytest.raises(Misuse, match=r"There is a log at .* already, which is not of this"):
        make_log(url, "app", partitions=2, making=PLAN)
