"""What the commands that are Spark jobs share: how far they are."""

from __future__ import annotations

from engram.cli.batch import behind
from engram.spark.progress import Progress
from hypothesis import given
from hypothesis import strategies as st

words = st.builds(
    lambda piece, done, more: Progress(piece, done, done + more), st.integers(0, 300), *[st.integers(0)] * 2
)


def test_each_partition_that_is_not_whole_is_told():
    """In the order of their numbers; where there is no room, those that are waited for longest."""
    heard = [Progress(2, 999, 1000), Progress(0, 0, 50), Progress(3, 7, 7), Progress(1, 45, 100), Progress(4, 0, 0)]

    assert behind(heard, 80) == "0: 0%, 1: 45%, 2: 99%"
    assert behind(heard, 15) == "0: 0%, 1: 45%"
    assert behind(heard, 5) == "0: 0%"
    assert behind(heard, 4) == behind([], 80) == ""


@given(st.lists(words, max_size=40, unique_by=lambda word: word.piece), st.integers(-20, 200))
def test_what_is_told_of_partitions_fits(heard: list[Progress], room: int):
    """A line that is wider than the terminal could not be taken back."""
    assert len(behind(heard, room)) <= max(room, 0)
