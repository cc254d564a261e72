"""Freezing: a copy of one moment, taken while commands go on."""

import pytest
from engram.image.contents import digest_of, rows_of
from engram.image.image import Image
from engram.shard.spill import Spill
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.image.workshop import CODEC, PROGRAMS, Count, Counted, Sent, Step, Work, handle, replies, restored, shown

KEYS = st.sampled_from(["ada", "bob", "cleo", "dan"])
WORKS = st.builds(Work, steps=PROGRAMS, end=st.sampled_from(["reply", "reply", "reject", "fail"]))
SENT = st.lists(st.tuples(KEYS, WORKS), max_size=6)
# Between slices of the freeze: the commands that come meanwhile, and how many entities the next slice has.
MEANWHILE = st.lists(st.tuples(st.tuples(KEYS, WORKS), st.integers(0, 2)), max_size=8)


def work(image: Image, key: str, command: Work) -> None:
    handle(image, Sent(key, command, sequence=image.offset), time=image.offset)


@settings(deadline=None)
@given(SENT, MEANWHILE)
def test_a_freeze_is_of_the_moment_it_began(first, meanwhile):
    """Whatever is handled until it is whole, a freeze holds what the image held when it began."""
    image = Image(0, CODEC)
    for key, command in first:
        work(image, key, command)
    digest, offset = image.digest(), image.offset
    entities = {key: shown(entity) for key, entity in image.entities["desk"].items()}

    freeze = image.begin_freeze()
    for (key, command), slice_ in meanwhile:
        work(image, key, command)
        freeze.advance(slice_)
    while freeze.advance(1):
        pass
    image.end_freeze()

    assert digest_of(freeze.rows, freeze.memory) == digest
    assert freeze.memory.offset == offset
    assert {row.key: row.state for row in freeze.rows} == entities
    copy = restored(freeze.rows, freeze.memory)
    assert (copy.digest(), copy.offset) == (digest, offset)


def test_advance_takes_as_many_entities_as_it_is_told():
    """A slice is bounded, so no pause is long; the last one says that nothing is waiting."""
    image = Image(0, CODEC)
    handle(image, *(Sent(f"k{n}", Count(), sequence=n) for n in range(5)))

    freeze = image.begin_freeze()
    slices = [(freeze.advance(2), len(freeze.rows)) for _ in range(3)]

    assert slices == [(True, 2), (True, 4), (False, 5)]


def test_an_entity_that_one_record_makes_and_changes_again_is_there_once():
    """However many commands of a record are for a new key; it is frozen once, and can be cooled."""
    image = Image(0, CODEC)
    handle(image, *(Sent("new", Count(), sequence=n) for n in range(3)), Sent("other", Count(), sequence=3))

    freeze = image.begin_freeze()
    while freeze.advance(10):
        pass
    image.end_freeze()
    assert [key for columns in freeze.columns for key in columns.keys] == ["new", "other"]
    while image.cool(0, 10):
        pass
    assert image.count() == 2


def test_the_start_encodes_nothing():
    """A freeze begins with references only, however much there is."""
    image = Image(0, CODEC)
    handle(image, *(Sent(f"k{n}", Count(), sequence=n) for n in range(5)))

    assert image.begin_freeze().rows == []


def test_an_entity_is_encoded_once():
    """One that changes before its turn is encoded just before the change, and not again."""
    image = Image(0, CODEC)
    handle(image, Sent("ada", Count(), sequence=1), Sent("bob", Count(), sequence=2))
    freeze = image.begin_freeze()

    handle(image, *(Sent("ada", Count(), sequence=n) for n in (3, 4)), Sent("new", Count(), sequence=5))
    assert [row.key for row in freeze.rows] == ["ada"]
    while freeze.advance(1):
        pass

    assert sorted(row.key for row in freeze.rows) == ["ada", "bob"]
    assert all(b'"count":1' in row.state for row in freeze.rows)


def test_queries_do_not_disturb_a_freeze():
    """Reading an entity does not take it out of the freeze."""
    image = Image(0, CODEC)
    handle(image, Sent("ada", Count()))
    freeze = image.begin_freeze()

    image.ask(Counted(), "ada")

    assert freeze.rows == []


def test_a_state_that_cannot_be_encoded_fails_the_freeze_and_not_the_command():
    """The next command of such an entity is handled all the same, and the freeze says what is wrong."""
    image = Image(0, CODEC)
    handle(image, Sent("ada", Count(), sequence=1), Sent("bob", Count(), sequence=2))
    image.entities["desk"]["ada"].note = b"not text"
    freeze = image.begin_freeze()

    handled = handle(image, Sent("ada", Count(), sequence=3))

    assert replies(handled) == ["reply 2"]
    for _ in range(2):
        with pytest.raises(UserWarning, match="Expected `str`"):
            freeze.advance(10)


def test_a_second_freeze():
    """When a freeze has ended, the next one is of its own moment."""
    image = Image(0, CODEC)
    handle(image, Sent("ada", Count(), sequence=1))
    first = image.begin_freeze()
    image.end_freeze()
    handle(image, Sent("ada", Work(steps=[Step("count", a=5)]), sequence=2))
    second = image.begin_freeze()
    while second.advance(10):
        pass

    assert first.rows == []
    assert digest_of(second.rows, second.memory) == image.digest()


@settings(deadline=None)
@given(
    SENT,
    st.lists(st.tuples(st.sampled_from(["ask", "send"]), KEYS, WORKS, st.integers(0, 2)), max_size=10),
    st.booleans(),
    st.sampled_from([None, 1, 300]),
)
def test_a_freeze_of_entities_that_are_still_encoded_is_of_its_moment_too(
    tmp_path_factory, first, meanwhile, some_decoded, piece
):
    """Loaded from a snapshot, then asked and changed while a whole freeze goes on: each is in it once, as it was. So it
    is when they are on disk, and handed over in pieces of some bytes."""
    source = Image(0, CODEC)
    for key, command in first:
        work(source, key, command)
    copied = source.begin_freeze()
    while copied.advance(10):
        pass
    image = Image(0, CODEC, cold=(lambda: Spill(tmp_path_factory.getbasetemp())) if piece else dict)
    image.load_encoded(copied.columns, copied.memory)
    if some_decoded:
        image.ask(Counted(), "ada")
    digest, count = image.digest(), image.count()

    freeze = image.begin_freeze()
    for what, key, command, slice_ in meanwhile:
        if what == "ask":
            image.ask(Counted(), key)
        else:
            work(image, key, command)
        freeze.advance(slice_)
    pieces = []
    while freeze.advance(1):
        if piece and freeze.size >= piece:
            pieces += freeze.hand_over()
    pieces += freeze.hand_over()
    image.end_freeze()

    assert digest_of(rows_of(pieces), freeze.memory) == digest
    assert sum(len(columns.keys) for columns in pieces) == count == freeze.expected
    assert freeze.rows == []


@settings(deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("send"), KEYS, WORKS),
            st.tuples(st.just("ask"), KEYS),
            st.tuples(st.just("cool"), st.integers(0, 1)),
            st.tuples(st.just("begin"), st.booleans()),
            st.tuples(st.just("advance"), st.integers(0, 2)),
            st.tuples(st.just("end"), st.booleans()),
        ),
        min_size=8,
        max_size=30,
    )
)
def test_what_has_changed_between_freezes_is_all_that_the_next_one_needs(steps):
    """Whatever is cooled, asked, changed or broken off on the way: those that came to an end, one over the other, are
    the image as it was when the last of them began, and each has an entity once."""
    image, kept = Image(0, CODEC), {}
    for key in ("ada", "bob", "cleo"):
        work(image, key, Count())
    freeze, digest = None, ""
    for what, *how in [*steps, ("end", True), ("begin", False), ("end", True)]:
        if what == "send":
            work(image, *how)
        elif what == "ask":
            image.ask(Counted(), *how)
        elif what == "cool":
            image.cool(how[0], 3)
        elif what == "begin" and freeze is None:
            whole = how[0]
            dirty, digest = image.dirty(), image.digest()
            freeze = image.begin_freeze(whole=whole)
            assert freeze.expected == (image.count() if whole else dirty)
        elif freeze is not None and what == "advance":
            freeze.advance(*how)
        elif freeze is not None and what == "end":
            complete = how[0]
            looks = sum(freeze.advance(1) for _ in range(20)) if complete else 0
            image.end_freeze()
            if complete:
                assert looks < 20
                (columns,) = [columns for columns in freeze.columns if columns.entity == "desk"]
                assert len(columns.keys) == len(set(columns.keys)) == freeze.expected
                kept |= {row.key: row for row in freeze.rows}
                assert digest_of(kept.values(), freeze.memory) == digest
            else:
                freeze.give_back()
            freeze = None
