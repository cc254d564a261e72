"""Rows of read models in an image: always those that its entities have now."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from engram import App, Command, Context, Entity, Lookup, Misuse, Quarantined, Ranking, Tally, Unavailable
from engram.codec.codec import Codec
from engram.codec.record import Envelope, Kind, Record, encode_commands
from engram.image.columns import columns_of, difference, rows_of
from engram.image.found import Found, Subtotal, merge_rows, merge_totals
from engram.image.freeze import Freeze
from engram.image.image import Image
from engram.image.ordered import MANY
from engram.image.row_index import SearchedRows, SortedRows, TalliedRows
from engram.model.read_model import Totals
from engram.shard.search import FtsIndex
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.read_models import club
from tests.read_models.club import GAMES, KEYS, SENT, WORDS, Mark, Plain, Score, Spoil, Vain, Write

CODEC = Codec(club.app)


def new_image(app: App = club.app) -> Image:
    return Image(0, CODEC if app is club.app else Codec(app), new_text_index=FtsIndex)


def handle(image: Image, *sent: tuple[str, Command[Any, Any]]) -> list[Any]:
    """Handles commands as one record, and returns their outcomes."""
    envelopes = [
        Envelope(c.__engram__.name or "", 1, key, c.model_dump_json().encode(), "session", 1000 * image.offset + number)
        for number, (key, c) in enumerate(sent)
    ]
    record = Record(0, image.offset, Kind.COMMANDS, 0, encode_commands(envelopes, "writer"))
    return image.handle(record).outcomes


def freeze(image: Image, *, whole: bool = True) -> Freeze:
    frozen = image.begin_freeze(whole=whole)
    while frozen.advance(100):
        pass
    image.end_freeze()
    return frozen


def rows(image: Image, model: str, place: str) -> list[str]:
    """The JSON of all rows at a place."""
    assert image.read_models is not None
    index = image.read_models.index(model)
    assert isinstance(index, SortedRows | SearchedRows)
    return [row.text for row in index.find(place, None, 10_000)]


def subtotal(image: Image, model: str, group: str) -> Subtotal:
    assert image.read_models is not None
    index = image.read_models.index(model)
    assert isinstance(index, TalliedRows)
    return index.find(group)


def contents(image: Image) -> dict[str, Any]:
    """Everything that can be read of the club's read models."""
    assert image.read_models is not None
    sorted_ = {
        (model, place): image.read_models.index(model).find(place, None, 10_000)  # type: ignore[union-attr,call-arg]
        for model, places in {"marked": ["x", "y", "z", "everybody"], "players": GAMES, "best": GAMES}.items()
        for place in places
    }
    tallied = {group: subtotal(image, "points", group) for group in [*GAMES, "tenth"]}
    return {"sorted": sorted_, "tallied": tallied, "found": {word: sorted(rows(image, "bios", word)) for word in WORDS}}


def check_against(plain: Plain, image: Image) -> None:
    members = plain.members
    for mark in ["x", "y", "z", "everybody", "nobody"]:
        assert [CODEC.rows["marked"].row(t) for t in rows(image, "marked", mark)] == club.marked(members, mark)
    for game in GAMES:
        assert [CODEC.rows["players"].row(t) for t in rows(image, "players", game)] == club.players(members, game)
        ranked = image.read_models.index("best").find(game, None, 10_000)  # type: ignore[union-attr,call-arg]
        assert [(-r.order, r.owner) for r in ranked] == club.best(members, game)
    for group in [*GAMES, "tenth", "none"]:
        assert merge_totals([subtotal(image, "points", group)]) == club.totals(members, group)
    for words in [*WORDS, "quick fox", "none"]:
        assert {CODEC.rows["bios"].row(t) for t in rows(image, "bios", words)} == club.found(members, words)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.lists(SENT, min_size=1, max_size=4), max_size=12))
def test_rows_follow_every_history(history):
    """After any records, with rejections and failures among them, rows are those of the plain model, and the same as
    a new image makes of the same entities in one pass."""
    image, plain = new_image(), Plain()
    for batch in history:
        handle(image, *batch)
        for key, command in batch:
            plain.handle(key, command)
        check_against(plain, image)

    frozen = freeze(image)
    built = new_image()
    built.load(frozen.rows, frozen.memory)
    while built.read_models.advance(1, 0):
        pass
    assert contents(built) == contents(image)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.lists(SENT, min_size=1, max_size=4), min_size=1, max_size=12), st.data())
def test_rows_come_back_from_snapshots(history, data):
    """Rows are kept with their entities: after a whole snapshot and one of what changed since, nothing is left to be
    built, no entity is decoded, and whatever follows changes the rows as if nothing had happened."""
    cut, again = sorted(data.draw(st.integers(0, len(history)), label="snapshot after") for _ in range(2))
    image = new_image()
    for batch in history[:cut]:
        handle(image, *batch)
    first = freeze(image)
    for batch in history[cut:again]:
        handle(image, *batch)
    second = freeze(image, whole=False)
    restored = new_image()
    restored.load_encoded([*first.columns, *second.columns], second.memory)

    assert not restored.read_models.building
    assert contents(restored) == contents(image)
    assert restored.entities["member"] == {}
    for batch in history[again:]:
        handle(image, *batch)
        handle(restored, *batch)
        assert contents(restored) == contents(image)


def test_rows_of_other_code_are_made_anew():
    """A read model that has changed since the snapshot goes through all entities; the others have their rows. What was
    made is in the next snapshot."""
    image = new_image()
    handle(image, *((key, Mark(mark="x")) for key in KEYS))
    frozen = freeze(image)
    codec = Codec(club.app)
    codec.rows["marked"].mark = "marked otherwise"
    changed = Image(0, codec, new_text_index=FtsIndex)
    changed.load_encoded(frozen.columns, frozen.memory)

    assert [state.name for state in changed.read_models.states() if state.done < state.total] == ["marked"]
    with pytest.raises(Unavailable, match="marked is being built: 0 of 6 entities are done"):
        rows(changed, "marked", "x")
    assert rows(changed, "fragile", "before") == [f'"{key}"' for key in KEYS]
    while changed.read_models.advance(1, 0):
        pass
    assert rows(changed, "marked", "x") == rows(image, "marked", "x")
    restarted = Image(0, codec, new_text_index=FtsIndex)
    later = freeze(changed, whole=False)
    restarted.load_encoded([*frozen.columns, *later.columns], later.memory)
    assert not restarted.read_models.building


def test_a_state_without_rows_takes_the_place_of_older_rows():
    """An increment that was written without rows, by an older Engram, leaves none that are out of date."""
    image = new_image()
    handle(image, ("ada", Mark(mark="x")))
    first = freeze(image)
    handle(image, ("ada", club.Leave()))
    second = freeze(image, whole=False)
    restored = new_image()
    restored.load_encoded([*first.columns, *(c._replace(rows=()) for c in second.columns)], second.memory)

    with pytest.raises(Unavailable, match="0 of 1 entities"):
        rows(restored, "marked", "x")
    restored.read_models.advance(10, 0)
    assert rows(restored, "marked", "x") == []


@pytest.mark.parametrize(
    "bad",
    [b"{", b"[]", b"7", b'"text"', b"\xff", b"ROWS:7", b"ROWS:[7]", b"ROWS:[[7,7]]", b'ROWS:[["x"],[]]', b"ROWS:[{}]"],
)
def test_rows_that_cannot_be_read_are_made_anew(bad: bytes):
    """Whatever is in a snapshot in place of rows, the start goes on, and every read model has what it should."""
    image = new_image()
    handle(image, *((key, Mark(mark="x")) for key in KEYS))
    handle(image, ("ada", club.Score(game="go", points=7)))
    frozen = freeze(image)
    marks = [model.mark for models in image.read_models._groups.values() for model in models.models]
    of_rows = bad.removeprefix(b"ROWS:")
    forged = b"{%s}" % b",".join(b'"%s":%s' % (mark.encode(), of_rows) for mark in marks) if of_rows != bad else bad
    columns = [c._replace(rows=[forged, *c.rows[1:]]) if c.rows else c for c in frozen.columns]
    restored = new_image()
    restored.load_encoded(columns, frozen.memory)
    while restored.read_models.advance(1, 0):
        pass

    assert contents(restored) == contents(image)


def test_what_is_broken_is_not_kept():
    """A snapshot has no rows of a broken read model; after the next start it is tried again."""
    image = new_image()
    handle(image, ("ada", Spoil()), ("bob", Mark(mark="x")))
    frozen = freeze(image)
    restored = new_image()
    restored.load_encoded(frozen.columns, frozen.memory)
    assert [state.name for state in restored.read_models.states() if state.done < state.total] == ["fragile"]
    handle(restored, ("ada", Spoil(spoiled=False)))
    restored.read_models.advance(10, 0)

    assert rows(restored, "fragile", "before") == ['"ada"', '"bob"']


# Some places are the same object each time, others are made anew.
PLACES = st.sampled_from("ab") | st.sampled_from("ab").map(lambda place: place * 3)
ROWS = st.lists(st.tuples(PLACES, st.sampled_from([1, 1.0, True, 2])), max_size=8)


@given(ROWS, ROWS, st.booleans())
def test_a_difference_leads_from_old_to_new(old, new, alike):
    """What is taken away and what comes make the new rows of the old ones, however often each is there."""
    kept, removed, added = difference(columns_of(old, 2), columns_of(new, 2), alike=alike)
    left = list(old)
    for row in removed:
        left.remove(row)

    assert rows_of(kept) == new
    assert sorted(left + list(added)) == sorted(new)


def test_pages_go_on_where_the_last_one_ended():
    """A row that is there all the while is on one page, whatever comes and goes between two pages."""
    image = new_image()
    handle(image, *((key, Score(game="go", points=number % 3)) for number, key in enumerate(KEYS)))
    index = image.read_models.index("best")
    first = index.find("go", None, 2)
    handle(
        image, ("aaa", Score(game="go", points=9)), (first[0].owner, club.Leave()), ("zoe", Score(game="go", points=0))
    )
    rest = index.find("go", first[-1], 100)

    assert [row.owner for row in first] == ["cleo", "fay"]
    assert [row.owner for row in rest] == ["bob", "eve", "ada", "dan", "zoe"]


def test_what_raises_breaks_one_read_model_and_nothing_else():
    """The command stands, the read model says what was wrong with the traceback, and all others go on."""
    image = new_image()
    handle(image, ("ada", Mark(mark="x")))
    outcome = handle(image, ("ada", Spoil()), ("bob", Mark(mark="x")))[0]

    assert outcome.body == b'"ada"'
    assert rows(image, "marked", "x") == ['"ada"', '"bob"']
    with pytest.raises(
        Quarantined, match=r"fragile is broken since .*member 'ada', at record 1: ValueError: ada is spoiled"
    ):
        rows(image, "fragile", "before")
    handle(image, ("ada", Spoil(spoiled=False)))
    with pytest.raises(Quarantined, match="fragile is broken"):
        rows(image, "fragile", "before")
    (broken,) = [state for state in image.read_models.states() if state.problem]
    assert broken.name == "fragile"
    assert re.search(r"(?s)Traceback.*club\.py.*in rows.*ValueError: ada is spoiled", broken.problem)


def test_read_models_are_no_part_of_the_digest():
    """An image with read models, broken ones too, has the digest of one without."""
    image, bare = new_image(), Image(0, CODEC)
    for each in (image, bare):
        handle(each, ("ada", Mark(mark="x")), ("ada", Spoil()), ("bob", Vain(fails=True)))

    assert bare.read_models is None
    assert image.digest() == bare.digest()


@dataclass(slots=True, kw_only=True)
class Thing(Entity, name="thing"):
    what: str = ""
    count: int = 0
    seen: list[str] = field(default_factory=list)


class Become(Command[Thing, None], name="become"):
    what: str

    def handle(self, thing: Thing, ctx: Context) -> None:
        thing.what = self.what


class Odd(Lookup[Thing, int], name="odd"):
    """Gives what it should not, by the name of its entity."""

    def rows(self, thing: Thing) -> Iterator[tuple[Any, Any]]:
        match thing.what:
            case "fine":
                yield "k", 1
            case "a key that is no text":
                yield 7, 1
            case "a row of another type":
                yield "k", "one"
            case "nothing":
                yield "k", None
            case "too few":
                yield ("k",)
            case "an assignment":
                thing.count += 1
            case "a change in place":
                thing.seen.append("me")


class OddScore(Ranking[Thing, int], name="odd_score"):
    def rows(self, thing: Thing) -> Iterator[tuple[str, Any, int]]:
        if thing.what == "a score that is no number":
            yield "k", float("nan"), 1


class OddNumber(Tally[Thing], name="odd_number"):
    def rows(self, thing: Thing) -> Iterator[tuple[str, Any]]:
        if thing.what == "a number without end":
            yield "k", float("inf")


things = App("things", commands=[Become], read_models=[Odd, OddScore, OddNumber])


@pytest.mark.parametrize(
    ("what", "problem"),
    [
        ("a key that is no text", "begins with 7, which is not a text"),
        ("a row of another type", "int"),
        ("nothing", "None is not of the declared type"),
        ("too few", "its rows have 1 fields, and should have 2"),
        ("an assignment", "Odd.rows changed its entity"),
        ("a change in place", "Odd.rows changed its entity"),
        ("a score that is no number", "nan is not a number"),
        ("a number without end", "inf is not a number"),
    ],
)
def test_rows_that_are_not_as_declared_break_their_read_model(what: str, problem: str):
    """Whatever is wrong with a row: the state is as the command left it, and the read model tells why it is broken."""
    image = new_image(things)
    handle(image, ("t", Become(what="fine")))
    handle(image, ("t", Become(what=what)))

    (broken,) = [state for state in image.read_models.states() if state.problem]
    assert problem in broken.problem
    assert (image.entities["thing"]["t"].what, image.entities["thing"]["t"].count) == (what, 0)
    assert image.entities["thing"]["t"].seen == []


def test_one_that_is_being_built_says_how_far_it_is():
    """Asked too early, a read model answers with how many of how many entities it has been through; a command of an
    entity is its turn."""
    image = new_image()
    handle(image, *((key, Mark(mark="x")) for key in KEYS))
    frozen = freeze(image)
    built = new_image()
    built.load([row for row in frozen.rows if row.key != "eve"], frozen.memory)
    built.read_models.advance(2, 0)

    with pytest.raises(Unavailable, match="marked is being built: 2 of 5 entities are done"):
        rows(built, "marked", "x")
    handle(built, ("eve", Mark(mark="x")), *((key, Mark(mark="y")) for key in KEYS if key != "eve"))
    assert not built.read_models.building
    assert len(rows(built, "marked", "x")) == 6


def test_an_unknown_one_is_named():
    """A read model that the app does not have is refused with those that it has."""
    with pytest.raises(Misuse, match="no read model 'none': the app has best, bios, fragile"):
        rows(new_image(), "none", "x")


def test_sums_do_not_depend_on_what_came_and_went():
    """Ten numbers of a tenth are one, in whatever order they came, and nothing is left when they go."""
    image = new_image()
    handle(image, *((f"m{number}", Score(game="go", points=1)) for number in range(10)))
    handle(image, ("big", Score(game="go", points=10**17)), ("big", club.Leave()))

    assert merge_totals([subtotal(image, "points", "tenth")]) == Totals(10, 1.0, 0.1, 0.1)


def test_merging_finds_takes_the_first_of_all():
    """Rows of several partitions come in one order, and it is told where to go on only if there are more."""
    one, two = [Found(0, "a", "1"), Found(2, "c", "1")], [Found(1, "b", "1")]

    assert merge_rows([one, two], 2) == ([one[0], two[0]], two[0])
    assert merge_rows([one, two], 3) == ([one[0], two[0], one[1]], None)


def test_words_are_never_syntax():
    """Whatever a person types is searched for as words; only a star behind one means something."""
    image = new_image()
    handle(image, ("ada", Write(bio="Quick brown fóx AND lazy")), ("bob", Write(bio='say "hello" NEAR me')))

    for typed in ["fox AND", '"fox', "quick* -lazy", "bio:fox OR", "NEAR(fox", "fox'); drop", "*", "", "^fox + ("]:
        rows(image, "bios", typed)
    assert rows(image, "bios", "FOX") == rows(image, "bios", "qui* bro*") == rows(image, "bios", "and") == ['"ada"']
    assert rows(image, "bios", "near hello") == ['"bob"']
    assert rows(image, "bios", "qui") == []


@dataclass(slots=True, kw_only=True)
class Shelf(Entity, name="shelf"):
    books: list[str] = field(default_factory=list)
    seen: int = 0


class PutBook(Command[Shelf, None], name="put_book"):
    book: str

    def handle(self, shelf: Shelf, ctx: Context) -> None:
        shelf.books.append(self.book)


class SeeShelf(Command[Shelf, None], name="see_shelf"):
    def handle(self, shelf: Shelf, ctx: Context) -> None:
        shelf.seen += 1


class LookFor(Command[Shelf, None], name="look_for"):
    """Asks what is among the books, and changes none."""

    book: str

    def handle(self, shelf: Shelf, ctx: Context) -> None:
        _look(shelf, found=self.book in shelf.books)


def _look(shelf: Shelf, *, found: bool) -> None:
    if found or "another" not in shelf.books:
        shelf.seen += 1


class HandOver(Command[Shelf, None], name="hand_over"):
    """Its own source does not tell what becomes of the shelf, but that of the function does."""

    def handle(self, shelf: Shelf, ctx: Context) -> None:
        _put_another(shelf)


def _put_another(shelf: Shelf) -> None:
    shelf.books.append("another")


class LoseSight(Command[Shelf, None], name="lose_sight"):
    """No source tells."""

    def handle(self, shelf: Shelf, ctx: Context) -> None:
        for each in [shelf]:
            _put_another(each)


_asked: list[str] = []


class Books(Lookup[Shelf, str], name="books"):
    def rows(self, shelf: Shelf) -> Iterator[tuple[str, str]]:
        _asked.append(shelf.key)
        yield "shelves", shelf.key
        for book in shelf.books:
            yield book, shelf.key


class Glances(Tally[Shelf], name="glances"):
    def rows(self, shelf: Shelf) -> Iterator[tuple[str, int]]:
        yield "all", shelf.seen


def test_commands_that_cannot_change_rows_do_not_ask_for_them():
    """A command whose source changes no field that `rows` has leaves it alone, unless it is the first of its entity;
    one that lets the entity out of sight does not. The rows are right all the while."""
    commands = [PutBook, SeeShelf, LookFor, HandOver, LoseSight]
    image = new_image(App("shelves", commands=commands, read_models=[Books, Glances]))
    _asked.clear()
    for command, asked in (
        (SeeShelf(), 1),
        (SeeShelf(), 1),
        (PutBook(book="x"), 2),
        (SeeShelf(), 2),
        (HandOver(), 3),
        (LookFor(book="x"), 3),
        (LoseSight(), 4),
        (LookFor(book="none"), 4),
    ):
        handle(image, ("a", command))
        assert len(_asked) == asked
    handle(image, ("b", SeeShelf()), ("a", PutBook(book="y")), ("a", SeeShelf()))

    assert _asked[4:] == ["a", "b"] or _asked[4:] == ["b", "a"]
    assert [len(rows(image, "books", book)) for book in ("shelves", "x", "y", "another")] == [2, 1, 1, 1]
    assert subtotal(image, "glances", "all") == Subtotal(2, (6, 1), 1, 5)


@given(st.lists(st.tuples(st.text("\0\x01a\xff", min_size=1, max_size=4), st.sampled_from(['"a"', '"b"', "1"]))))
def test_rows_of_a_place_are_in_the_order_of_owner_and_text(entries):
    """Whatever is in a key: shards agree on the order without asking each other, so it must be that of the texts."""
    index = SortedRows()
    for owner, text in entries:
        index.add(owner, [("all", text)])
    order = [Found(0, owner, text) for owner, text in sorted(set(entries))]

    assert index.find("all", None, 100) == order
    assert [index.find("all", row, 1) for row in order] == [[row] for row in order[1:]] + [[]] * bool(order)


@given(ROWS, ROWS)
def test_of_rows_that_are_equal_the_index_has_the_first(old, new):
    """1 and 1.0 are equal, and written in two ways: what is kept is what the index was given, so it can go again."""
    kept, removed, added = difference(columns_of(old, 2), columns_of(new, 2))
    given = [repr(row) for row in old]
    for row in removed:
        given.remove(repr(row))

    assert sorted(given + [repr(row) for row in added]) == sorted(repr(row) for row in rows_of(kept))


def test_places_with_very_many_rows_are_read_as_those_with_few():
    """Beyond some thousands they are kept in another way, which nobody can tell: first, last, in between, and when they
    become few again."""
    index, many = SortedRows(), [f"{number:06}" for number in range(MANY + 100)]
    for number in many:
        index.add(number, [("all", f'"{number}"')])

    assert [row.owner for row in index.find("all", None, 2)] == many[:2]
    assert [row.owner for row in index.find("all", Found(0, many[-3], f'"{many[-3]}"'), 10)] == many[-2:]
    for number in many[5:]:
        index.remove(number, [("all", f'"{number}"')])
    assert [row.owner for row in index.find("all", None, 100)] == many[:5]
    with pytest.raises(ValueError, match="not in list"):
        index.remove("000005", [("all", '"000005"')])
    loaded = SortedRows()
    loaded.load((number, ("all", f'"{number}"')) for number in reversed(many))
    assert [row.owner for row in loaded.find("all", None, len(many))] == many
