"""What `App(...)` accepts as a read model, and how it refuses what is wrong."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
from engram import App, Command, Context, Entity, Lookup, Misuse, Ranking, Search, Shared, Tally
from engram.model.read_model import ReadModel, place_of, row_of, source_of
from pydantic import BaseModel


@dataclass(slots=True, kw_only=True)
class Shelf(Entity, name="shelf"):
    books: list[str] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Stranger(Entity, name="stranger"):
    pass


@dataclass(slots=True, kw_only=True)
class Rules(Shared, name="rules"):
    pass


class Add(Command[Shelf, None], name="add"):
    book: str

    def handle(self, shelf: Shelf, ctx: Context) -> None:
        shelf.books.append(self.book)


class Place(NamedTuple):
    shelf: str
    number: int


class Where(Lookup[Shelf, Place], name="where"):
    def rows(self, shelf: Shelf) -> Iterator[tuple[str, Place]]:
        for number, book in enumerate(shelf.books):
            yield book, Place(shelf.key, number)


class Counts(Tally[Shelf], name="counts"):
    def rows(self, shelf: Shelf) -> Iterator[tuple[str, int]]:
        yield "books", len(shelf.books)


def test_an_app_has_its_read_models_by_name():
    """Each knows what it is made from and what its rows are; a tally has none."""
    app = App("library", commands=[Add], read_models=[Where, Counts])

    assert app.read_models == {"where": Where, "counts": Counts}
    assert (source_of(Where), row_of(Where), place_of(Where)) == (Shelf, Place, "key")
    assert (source_of(Counts), row_of(Counts), place_of(Counts)) == (Shelf, None, "group")


def test_all_kinds_are_asked_at_a_place_of_their_own():
    """A key, a board, a group, words."""
    assert [place_of(kind) for kind in (Lookup, Ranking, Tally, Search)] == ["key", "board", "group", "words"]


class Changing(BaseModel):
    number: int


class Nameless(Lookup[Shelf, str]):
    def rows(self, shelf: Shelf) -> Iterator[tuple[str, str]]:
        yield "", ""


class Where2(Lookup[Shelf, str], name="where"):
    def rows(self, shelf: Shelf) -> Iterator[tuple[str, str]]:
        yield "", ""


class Untyped(Lookup, name="untyped"):  # type: ignore[type-arg]
    def rows(self, shelf: Any) -> Iterator[tuple[str, str]]:
        yield "", ""


class UntypedTally(Tally, name="untyped_tally"):  # type: ignore[type-arg]
    def rows(self, shelf: Any) -> Iterator[tuple[str, int]]:
        yield "", 1


class OfAStranger(Lookup[Stranger, str], name="of_a_stranger"):
    def rows(self, stranger: Stranger) -> Iterator[tuple[str, str]]:
        yield "", ""


class OfRules(Lookup[Rules, str], name="of_rules"):
    def rows(self, rules: Rules) -> Iterator[tuple[str, str]]:
        yield "", ""


class OfLists(Ranking[Shelf, list[str]], name="of_lists"):
    def rows(self, shelf: Shelf) -> Iterator[tuple[str, int, list[str]]]:
        yield "", 1, shelf.books


class OfModels(Search[Shelf, Changing], name="of_models"):
    def rows(self, shelf: Shelf) -> Iterator[tuple[str, Changing]]:
        yield "", Changing(number=1)


class OfSets(Lookup[Shelf, frozenset[str]], name="of_sets"):
    def rows(self, shelf: Shelf) -> Iterator[tuple[str, frozenset[str]]]:
        yield "", frozenset()


class NoRows(Lookup[Shelf, str], name="no_rows"):
    pass


class Demanding(Lookup[Shelf, str], name="demanding"):
    def __init__(self, what: str) -> None:
        self.what = what

    def rows(self, shelf: Shelf) -> Iterator[tuple[str, str]]:
        yield "", ""


class NoKind(ReadModel, name="no_kind"):
    def rows(self, shelf: Shelf) -> Iterator[tuple[str, str]]:
        yield "", ""


REFUSED = {
    Nameless: "read model Nameless has no name",
    Where2: "read model name 'where' is used by Where and by Where2",
    Untyped: r"Untyped does not say its types: derive it from Lookup[SomeEntity, SomeRow]",
    UntypedTally: r"UntypedTally does not say its types: derive it from Tally[SomeEntity]",
    OfAStranger: "OfAStranger is made from Stranger, which no command or query of this app names",
    OfRules: "OfRules is made from Rules, which every partition has: ask for that with a query",
    OfLists: "OfLists: its rows are list[str], which can change in place",
    OfModels: "OfModels: its rows: Changing is a mutable pydantic model",
    OfSets: "OfSets: its rows: frozenset[str] iterates in no fixed order",
    NoRows: "NoRows does not define rows",
    Demanding: "Demanding cannot be made without arguments, and it needs none",
    NoKind: "NoKind is no read model of a known kind: derive it from Lookup, Ranking, Tally or Search",
    Add: "Add'> is listed as read model but is not a subclass of ReadModel",
}


@pytest.mark.parametrize(("model", "problem"), REFUSED.items(), ids=[cls.__name__ for cls in REFUSED])
def test_what_is_wrong_is_told(model: Any, problem: str):
    """A read model that could not work is refused when the app is declared, with the way out."""
    with pytest.raises(Misuse) as refused:
        App("library", commands=[Add], read_models=[Where, model])
    assert problem in str(refused.value)


def test_all_problems_come_in_one_message():
    """Everything that is wrong is told at once."""
    with pytest.raises(Misuse) as refused:
        App("library", commands=[Add], read_models=[Where, *REFUSED])
    assert [problem for problem in REFUSED.values() if problem not in str(refused.value)] == []
