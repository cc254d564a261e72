"""Tracked lists, dicts and parts: they work as the plain ones do, and every change can be taken back."""

import copy
import dataclasses
from bisect import insort
from datetime import UTC, datetime, timedelta, timezone
from random import Random

import pytest
from engram.image.tracked import TrackedDict, TrackedList
from engram.image.undo import UndoLog, adopt
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.image.workshop import (
    PROGRAMS,
    Board,
    Card,
    Step,
    apart,
    assert_all_is_tracked,
    shown,
    take,
)

STORIES = st.lists(st.tuples(PROGRAMS, st.booleans()), min_size=1, max_size=5)


def story(programs: list[tuple[list[Step], bool]]) -> None:
    """Takes each program on a tracked board and on a plain twin; those that are to fail are taken back."""
    undo = UndoLog()
    board, twin = adopt(Board(), undo), Board()
    for program, kept in programs:
        before = shown(board)
        take(program, board)
        if kept:
            undo.settle()
            take(program, twin)
            twin = apart(twin)
            assert shown(board) == shown(twin)
        else:
            undo.roll_back()
            assert shown(board) == before
        assert_all_is_tracked(board, undo)
        assert not undo
        assert not undo.unsettled


@settings(max_examples=200, deadline=None)
@given(STORIES)
def test_like_plain_values_and_back_again(programs):
    """Whatever is done, tracked values do what plain ones do; rolled back, value and order are as at the start."""
    story(programs)


LARGE_STEPS = st.builds(
    Step,
    st.sampled_from(["set_key", "delete_key", "pop_item", "insert_and_drop", "move_to_end"]),
    st.just(0),
    st.integers(-3, 75),
)


@settings(deadline=None)
@given(st.lists(st.tuples(st.lists(LARGE_STEPS, max_size=6), st.booleans()), max_size=8))
@example([([Step("insert_and_drop"), Step("delete_key", a=3)], False), ([Step("delete_key", a=3)], False)])
def test_order_in_large_dicts(programs):
    """A dict too large to be copied keeps its order through deletions from its middle, kept or taken back."""
    story(programs)


@pytest.fixture
def undo() -> UndoLog:
    return UndoLog()


def failing(*values: int):
    yield from values
    raise ZeroDivisionError


@pytest.mark.parametrize(
    "change",
    [
        lambda held: held.extend(failing(7, 8)),
        lambda held: held.__iadd__(failing(7, 8)),
        lambda held: held.__setitem__(slice(1, 2), failing(7, 8)),
        lambda held: held.sort(key=lambda n: 1 / (n - 2)),
    ],
    ids=["extend", "add", "set slice", "sort"],
)
def test_a_list_change_that_fails_halfway(undo, change):
    """A change that raises in its middle is taken back like any other."""
    held = adopt([3, 1, 2, 5], undo)

    with pytest.raises(ZeroDivisionError):
        change(held)
    undo.roll_back()

    assert held == [3, 1, 2, 5]


@pytest.mark.parametrize("change", [TrackedDict.update, TrackedDict.__ior__], ids=["update", "or"])
def test_a_dict_change_that_fails_halfway(undo, change):
    """So is one of a dict."""
    held = adopt({1: 1, 2: 2}, undo)

    with pytest.raises(ZeroDivisionError):
        change(held, ((n, n) for n in failing(3, 4)))
    undo.roll_back()

    assert held == {1: 1, 2: 2}


@pytest.mark.parametrize("index", [slice(0, 0), slice(1, 2), slice(-1, None), slice(9, None), slice(None)], ids=str)
def test_all_values_of_a_slice_are_adopted(undo, index):
    """Values assigned to a slice of another length belong to the image afterwards, each one of them."""
    held = adopt([[1], [2], [3]], undo)
    held[index] = [[7], [8], [9]]
    undo.settle()
    assert_all_is_tracked(held, undo)
    before = copy.deepcopy(held)

    for row in held:
        row.append(0)
    undo.roll_back()

    assert held == before


def test_a_key_is_put_back_as_it_was(undo):
    """Keys can be equal and not the same: what comes back is what was there, not what was asked for."""
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    same_noon = noon.astimezone(timezone(timedelta(hours=3)))
    small = adopt({noon: 1}, undo)
    large = adopt({noon + timedelta(days=n): n for n in range(100)}, undo)

    del small[same_noon]
    del large[same_noon]
    undo.roll_back()

    assert [str(key) for key in small] == [str(noon)]
    assert str(next(iter(large))) == str(noon)


def test_a_deletion_from_a_large_dict_notes_only_itself(undo):
    """From the second deletion on, what is kept for undo does not follow the size of the dict."""
    held = adopt({n: n for n in range(10_000)}, undo)
    del held[5000]
    undo.settle()

    del held[4000]

    assert undo == [(TrackedDict._put_back, held, 4000, 4000)]


@pytest.mark.parametrize("oldest", [True, False], ids=["oldest out", "newest out"])
def test_a_dict_that_turns_over_stays_small(undo, oldest):
    """A dict that takes a new key and drops one with every command remembers no more than it holds."""
    held = adopt({n: n for n in range(100)}, undo)
    del held[50]
    undo.settle()

    for n in range(100, 2000):
        held[n] = n
        del held[next(iter(held)) if oldest else n]
        undo.settle()

    assert len(held) == 99
    assert held._order is None or len(held._order) <= 2 * len(held) + 1


def test_a_value_in_two_places_becomes_two(undo):
    """After the command each place has its own, in memory as it will be after a restart."""
    row, card = [1], Card(title="x", tags=[1])
    board = adopt(Board(rows=[], cards=[]), undo)
    board.rows.extend([row, row])
    board.stock[0] = row
    board.cards.extend([card, card])
    board.named[1] = board.top = card
    board.numbers = board.cards[0].tags
    undo.settle()

    board.rows[0].append(2)
    board.cards[1].likes = 5
    board.cards[1].tags.append(6)
    undo.settle()

    assert (board.rows, board.stock[0], board.numbers) == ([[1, 2], [1]], [1], [1])
    assert [c.likes for c in (*board.cards, board.named[1], board.top)] == [0, 5, 0, 0]
    assert [c.tags for c in (*board.cards, board.named[1], board.top)] == [[1], [1, 6], [1], [1]]
    assert row == [1]
    assert_all_is_tracked(board, undo)


@pytest.mark.parametrize("name", ["tags", "links", "under"])
def test_a_part_that_takes_over_the_container_of_another(undo, name):
    """A tracked container assigned to a field of another part is that part's own afterwards."""
    one, other = adopt([Card(tags=[1], links={1: 1}, under=[Card()]), Card()], undo)

    setattr(other, name, getattr(one, name))
    undo.settle()
    getattr(other, name).clear()
    undo.settle()

    assert getattr(one, name)
    assert_all_is_tracked(other, undo)


def test_an_augmented_assignment_of_a_part_copies_nothing(undo):
    """`part.tags += [...]` changes the list that is there, whatever its length."""
    card = adopt(Card(tags=[1]), undo)
    tags = card.tags

    card.tags += [2]
    undo.settle()

    assert card.tags is tags
    assert tags == [1, 2]


def test_what_was_put_in_can_be_changed_at_once(undo):
    """A new list in a dict is changed before the command ends, rolled back with it, and tracked from then on."""
    held = adopt({}, undo)
    held.setdefault("a", []).append(1)
    undo.roll_back()
    assert held == {}

    held.setdefault("a", []).append(1)
    undo.settle()
    held["a"].append(2)
    undo.roll_back()

    assert held == {"a": [1]}


def test_other_people_s_functions_are_noted(undo):
    """What the standard library does to a list through its methods can be taken back too."""
    held = adopt([1, 3, 5, 7, 9], undo)

    insort(held, 4)
    Random(1).shuffle(held)
    assert held != [1, 3, 5, 7, 9]
    undo.roll_back()

    assert held == [1, 3, 5, 7, 9]


def test_copies_are_plain(undo):
    """What is made from a tracked value belongs to nobody: a change of it is not noted."""
    card = adopt(Card(title="x", tags=[1], links={1: 1}, under=[Card()]), undo)

    copies = [
        card.tags[:], card.tags.copy(), card.tags * 2, copy.copy(card.tags), copy.deepcopy(card.tags),
        card.links.copy(), card.links | {2: 2}, copy.copy(card.links), copy.deepcopy(card.links),
        copy.deepcopy(card.under),
    ]  # fmt: skip

    assert {type(made) for made in copies} == {list, dict}
    assert not undo


def test_dataclasses_asdict(undo):
    """`dataclasses.asdict` works on parts of an image, and what it gives can be changed freely."""
    card = adopt(Card(title="x", tags=[1], links={1: 1}, under=[Card()]), undo)

    made = dataclasses.asdict(card)
    made["tags"].append(2)
    made["links"][2] = 2
    made["under"].append({})

    assert made["tags"] == [1, 2]
    assert card == Card(title="x", tags=[1], links={1: 1}, under=[Card()])
    assert not undo


def test_a_copied_part_is_a_part_of_its_own(undo):
    """A copy of a part can be changed and stored beside the first."""
    cards = adopt([Card(title="x", tags=[1])], undo)

    second = copy.deepcopy(cards[0])
    second.tags.append(2)
    third = dataclasses.replace(cards[0], title="y")
    cards.extend([second, third])
    undo.settle()
    cards[2].tags.append(3)
    undo.settle()

    assert [(card.title, card.tags) for card in cards] == [("x", [1]), ("x", [1, 2]), ("y", [1, 3])]
    assert_all_is_tracked(cards, undo)


def test_fields_of_a_part_cannot_be_deleted(undo):
    """A part has all its fields, always."""
    card = adopt(Card(), undo)

    with pytest.raises(AttributeError, match=r"Card\.title: fields of a Part cannot be deleted"):
        del card.title
    with pytest.raises(AttributeError):
        card.more = 1
    assert not undo


def test_tracked_containers_are_equal_to_plain_ones(undo):
    """A handler cannot tell them apart by what they hold."""
    assert adopt([1, [2]], undo) == [1, [2]]
    assert adopt({1: {2: 3}}, undo) == {1: {2: 3}}
    assert isinstance(adopt([], undo), TrackedList)
    assert repr(adopt([1], undo)) == "[1]"
