"""The digest: equal for equal contents, different for any difference that matters."""

from engram.codec.record import Origin
from engram.image.contents import EntityRow, KeyRow, Memory, OriginRow, SessionRow, digest_of
from engram.image.digest import as_text, digest_rows
from engram.image.image import Image
from engram.image.quarantine import QuarantineRow
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.image.workshop import CODEC, Count, Hear, Sent, Step, Work, epoch, handle, messages, whole_freeze

ROWS = st.lists(st.tuples(st.binary(max_size=4), st.binary(max_size=4)), max_size=8)


@settings(deadline=None)
@given(ROWS, st.randoms(use_true_random=False), st.integers(0, 8))
def test_the_order_and_the_cut_of_rows_do_not_matter(rows, random, cut):
    """Rows may be taken in any order, and in parts: the sum is the same."""
    shuffled = list(rows)
    random.shuffle(shuffled)

    assert digest_rows(shuffled) == digest_rows(rows)
    assert digest_rows(rows[cut:], digest_rows(rows[:cut])) == digest_rows(rows)


@settings(deadline=None)
@given(ROWS, ROWS)
def test_other_rows_have_another_digest(one, other):
    """Two collections of rows have the same digest only if they are the same, counted."""
    assert (digest_rows(one) == digest_rows(other)) == (sorted(one) == sorted(other))


def test_cells_are_kept_apart():
    """The border between two cells counts, as does an empty cell."""
    digests = [digest_rows([row]) for row in [(b"ab", b"c"), (b"a", b"bc"), (b"abc",), (b"abc", b""), (b"1:a", b"")]]

    assert len(set(digests)) == 5


def test_the_text():
    """A digest is 64 hexadecimal digits, and that of nothing is zero."""
    assert as_text(digest_rows([])) == "0" * 64
    assert len(as_text(digest_rows([(b"x",)]))) == 64
    assert digest_rows([(b"x",)], start=2**256 - 1) < 2**256


def test_equal_histories_have_equal_digests():
    """Two images that handled the same records are alike to the last bit."""
    images = [Image(0, CODEC), Image(0, CODEC)]
    for image in images:
        handle(image, Sent("ada", Work(steps=[Step("append")], tell=["bob"])), Sent("bob", Count(), sequence=1), time=5)

    assert images[0].digest() == images[1].digest()


def test_the_order_in_which_entities_came_does_not_matter():
    """What counts is what an image holds, not when it came to hold it."""
    one, other = Image(0, CODEC), Image(0, CODEC)
    handle(one, Sent("ada", Count(), "a"), Sent("bob", Count(), "b"))
    handle(other, Sent("bob", Count(), "b"), Sent("ada", Count(), "a"))

    assert one.digest() == other.digest()


def test_everything_that_an_image_holds_is_in_the_digest():
    """A change of state, time, a session, an idempotency key, an origin or the quarantine each gives another digest."""
    image = Image(0, CODEC)
    digests = [image.digest()]
    for change in (
        lambda: handle(image, Sent("ada", Count(), sequence=1)),
        lambda: handle(image, Sent("ada", Count(by=0), sequence=2)),
        lambda: handle(image, Sent("ada", Count(by=0), sequence=2), time=1),
        lambda: handle(image, Sent("ada", Count(by=-1), sequence=2, session="t")),
        lambda: handle(image, Sent("ada", Count(by=0), sequence=3, session="t", idempotency_key="once")),
        lambda: image.handle(messages(image, (Origin(0, 0, 0), "ada", Count(by=0)))),
        lambda: image.handle(messages(image, (Origin(0, 0, 1), "ada", Work(end="fail")))),
        lambda: image.handle(messages(image, (Origin(0, 0, 2), "bob", Hear(text="x")))),
    ):
        change()
        digests.append(image.digest())

    assert len(set(digests)) == len(digests)


def test_who_owns_a_partition_is_not_in_the_digest():
    """Position and epoch say who handles a partition, not what is in it: a replica has the same digest."""
    image = Image(0, CODEC)
    handle(image, Sent("ada", Count()))
    before = image.digest()

    image.handle(epoch(image))

    assert image.digest() == before


def test_the_digest_of_a_snapshot_is_that_of_the_image():
    """The digest can be taken of a snapshot's contents, without the app's classes."""
    image = Image(0, CODEC)
    handle(image, Sent("ada", Work(tell=["bob"]), idempotency_key="once"), Sent("ada", Work(end="fail"), sequence=1))

    assert digest_of(*whole_freeze(image)) == image.digest()


def blank() -> Memory:
    return Memory(
        offset=0, epoch=-1, app_version=0, time=0, sessions=[], keys=[], origins=[], quarantine=[], quarantined=0
    )


def test_every_cell_of_an_entity_row_counts():
    """Type, key, version and state of an entity each change the digest."""
    row = EntityRow("desk", "ada", 1, b"{}")
    rows = [
        row,
        row._replace(entity="chair"),
        row._replace(key="bob"),
        row._replace(version=2),
        row._replace(state=b"[]"),
    ]

    assert len({digest_of([r], blank()) for r in rows}) == 5


def test_every_part_of_the_memory_counts():
    """So do time, sessions, idempotency keys and their order, origins, the quarantine; not offset, epoch, version."""
    key = KeyRow("once", "mark", "reply", "1")
    parts = [
        {},
        {"time": 1},
        {"sessions": [SessionRow("s", 1, 2, "reply", "3")]},
        {"sessions": [SessionRow("s", 1, 2, "rejected", "3")]},
        {"sessions": [SessionRow("s", 1, 3, "reply", "3")]},
        {"keys": [key]},
        {"keys": [key._replace(fingerprint="other")]},
        {"keys": [key, key._replace(idempotency_key="twice")]},
        {"keys": [key._replace(idempotency_key="twice"), key]},
        {"origins": [OriginRow(1, 2, 3, 4)]},
        {"origins": [OriginRow(2, 2, 3, 4)]},
        {"quarantined": 1},
        {"quarantine": [QuarantineRow(0, 1, "work", "ada")], "quarantined": 1},
        {"quarantine": [QuarantineRow(0, 2, "work", "ada")], "quarantined": 1},
    ]

    digests = [digest_of([], blank().model_copy(update=part)) for part in parts]

    assert len(set(digests)) == len(parts)
    assert digest_of([], blank().model_copy(update={"offset": 5, "epoch": 4, "app_version": 3})) == digests[0]


def test_the_text_of_an_error_is_not_in_the_digest():
    """An exception's message may hold an address or a path, so only its type counts."""
    one, other = (
        blank().model_copy(
            update={"quarantine": [QuarantineRow(0, 0, "work", "ada", error=text, traceback=text)], "quarantined": 1}
        )
        for text in ("OSError: /tmp/a", "OSError: /tmp/b")
    )

    assert digest_of([], one) == digest_of([], other)
