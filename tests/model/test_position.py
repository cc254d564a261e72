"""Positions and their text form."""

import pytest
from engram import Misuse, Position
from hypothesis import given, settings
from hypothesis import strategies as st

POSITIONS = st.builds(Position, st.integers(0, 99_999), st.integers(0, 10**15 - 1), st.integers(1 - 10**9, 10**9 - 1))


@settings(deadline=None)
@given(POSITIONS)
def test_text_and_back(position):
    """A position is read back from its text, with or without space around it."""
    assert Position.parse(str(position)) == position
    assert Position.parse(f" {position}\n") == position


def test_the_text():
    """Partition, a colon, the record's offset, a dot, the index of the command."""
    assert str(Position(3, 1042, 7)) == "3:1042.7"
    assert Position.parse("3:1042.-10000") == Position(3, 1042, -10000)  # fired by a timer


@settings(deadline=None)
@given(st.integers(0, 9), st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=2, max_size=2))
def test_positions_of_a_partition_are_ordered_as_in_the_log(partition, places):
    """A later record, or a later command of the same record, has the greater position."""
    one, other = (Position(partition, *place) for place in places)

    assert (one < other) == (places[0] < places[1])


@pytest.mark.parametrize(
    "token",
    [
        "",
        "3",
        "3:1",
        "3.1:2",
        "3:1.",
        ":1.2",
        "-3:1.2",
        "3:1.2.3",
        "a:b.c",
        "3:1 .2",
        "3:1.2,4:1.2",
        "3:-1.2",
        "3:1.--2",
        "9" * 30,
    ],
)
def test_text_that_is_no_position(token):
    """Anything else is refused, with an example of the right form."""
    with pytest.raises(Misuse, match=r"is not a position: write partition:offset\.index, such as 3:1042\.7"):
        Position.parse(token)


@settings(deadline=None)
@given(st.text())
def test_any_text_is_a_position_or_refused(token):
    """Whatever comes from outside, nothing but `Misuse` is raised, and what is read writes as it was read."""
    try:
        position = Position.parse(token)
    except Misuse:
        return
    assert Position.parse(str(position)) == position
