"""The context: what a handler may know and do, as a function of the record alone."""

from datetime import UTC, datetime, timedelta

import pytest
from engram import Misuse, Position
from engram.model.context import Context, Means, Outgoing, check_key
from engram.model.effects import Message
from engram.model.limits import Limits
from hypothesis import given, settings
from hypothesis import strategies as st

TIMES = st.integers(min_value=0, max_value=2**41)
# Small numbers, so that places that differ in one number only are met.
NEAR_PLACES = st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 2))
PLACES = st.tuples(st.integers(0, 99), st.integers(0, 10**12), st.integers(0, 10**6))


# Texts stand for commands and events: what they are encoded to is the image's business.
MEANS = Means({str: Outgoing("word", 2, str.encode)}, {str: Outgoing("fact", 3, str.encode)}, Limits(), lambda of: of)
NOTHING = Means({}, {}, Limits(), lambda of: of)


def entered(place: tuple[int, int, int], time: int) -> Context:
    """A context as the image hands it to a handler."""
    partition, offset, index = place
    context = Context(partition, MEANS)
    context._enter_record(offset, time)
    context._index = index
    return context


@settings(deadline=None)
@given(PLACES, TIMES)
def test_the_same_place_gives_the_same_of_everything(place, time):
    """Time, position, ids and random numbers are those of the record, however often it is replayed."""
    first, again = entered(place, time), entered(place, time)

    assert first.now == again.now == datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=time)
    assert first.position == again.position == Position(*place)
    assert [first.new_id() for _ in range(3)] == [again.new_id() for _ in range(3)]
    assert [first.random.random() for _ in range(3)] == [again.random.random() for _ in range(3)]


@settings(deadline=None)
@given(st.lists(NEAR_PLACES, min_size=2, unique=True), TIMES)
def test_ids_are_unique(places, time):
    """No two commands, and no two calls of one command, get the same id, though they have the same time."""
    contexts = [entered(place, time) for place in places]

    ids = [context.new_id() for context in contexts for _ in range(3)]

    assert len(set(ids)) == len(ids)


@settings(deadline=None)
@given(PLACES, PLACES, TIMES, TIMES)
def test_ids_sort_by_time(early_place, late_place, one, other):
    """An id of a later time is greater as text, and all ids have 26 characters."""
    early, late = sorted([one, other])
    first, second = entered(early_place, early).new_id(), entered(late_place, late).new_id()

    assert len(first) == len(second) == 26
    assert early == late or first < second


@settings(deadline=None)
@given(st.lists(NEAR_PLACES, min_size=2, max_size=2, unique=True))
def test_random_numbers_differ_from_command_to_command(places):
    """Randomness is seeded by the position, so two commands do not draw the same numbers."""
    one, other = (entered(place, 0).random.getrandbits(64) for place in places)

    assert one != other


def test_the_next_command_starts_anew():
    """Ids and random numbers do not depend on how many the command before has drawn."""
    busy, idle = entered((0, 5, 0), 1000), entered((0, 5, 0), 1000)
    busy.new_id()
    busy.random.random()

    busy._index = idle._index = 1

    assert busy.new_id() == idle.new_id()
    assert busy.random.random() == idle.random.random()


def test_now_follows_the_record():
    """A context that moves on to a later record tells the later time."""
    context = entered((0, 5, 0), 1000)
    before = context.now

    context._enter_record(6, 3500)

    assert context.now - before == timedelta(seconds=2.5)


def test_effects_are_taken_once_and_in_order():
    """What was sent and emitted is handed over in its order, and is not there a second time."""
    context = entered((0, 0, 0), 0)
    context.send("ada", "first")
    context.send("bob", "second")
    context.emit("fact")

    assert context._messages == [
        Message("word", 2, "ada", b"first", (0, 0, 0)),
        Message("word", 2, "bob", b"second", (0, 0, 1)),
    ]
    assert context._emitted == [("fact", 3, b"fact")]
    context._drop_effects()
    assert (context._messages, context._emitted, context._effective) == ([], [], False)


def test_effects_that_the_app_does_not_know_are_refused():
    """A command or event that the app does not list is refused, before anything is noted."""
    context = Context(0, NOTHING)

    for effect in (
        lambda: context.send("ada", "command"),
        lambda: context.broadcast("command"),
        lambda: context.schedule(timedelta(0), "command"),
        lambda: context.emit("event"),
    ):
        with pytest.raises(Misuse, match=r"list it in App\("):
            effect()
    assert not context._effective


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("", "The key is empty"),
        ("a" * 1025, "The key has 1025 bytes; at most 1024 are allowed"),
        ("ä" * 513, "The key has 1026 bytes; at most 1024 are allowed"),
        ("\ud800", "The key is not valid Unicode text"),
        (7, "The key is 7: the key of an entity is a str"),
    ],
    ids=["empty", "long", "long in bytes", "surrogate", "no text"],
)
def test_keys_that_cannot_name_an_entity(key, why):
    """A key is 1 to 1,024 bytes of UTF-8; a message to any other is refused at once."""
    context = entered((0, 0, 0), 0)

    with pytest.raises(Misuse, match=why):
        context.send(key, "command")
    assert not context._effective


@pytest.mark.parametrize("key", ["a", "a" * 1024, "ä" * 512, "with space", "/", "\0", "🎈"], ids=repr)
def test_keys_that_can(key):
    """Any other text is a key."""
    check_key(key)
