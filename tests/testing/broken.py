"""Apps with mistakes of the kind that a machine is to find, each in a module's variable, so that programs import it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from engram import App, Command, Context, Entity, Json, Lookup, Query, Rejected, upcaster
from engram.testing import Scenario

KEYS = ("ada", "bob")
Book = Literal["red", "blue"]


@dataclass(slots=True, kw_only=True)
class Shelf(Entity, name="shelf"):
    books: list[str] = field(default_factory=list)
    lent: dict[str, str] = field(default_factory=dict)


class Put(Command[Shelf, int], name="put"):
    book: Book

    def handle(self, shelf: Shelf, ctx: Context) -> int:
        if self.book in shelf.books:
            raise Rejected("is_there", "It is there already.")
        shelf.books.append(self.book)
        return len(shelf.books)


class Lend(Command[Shelf, None], name="lend"):
    """Sends a book to another shelf, and forgets that a shelf may send to itself."""

    book: Book
    to: Literal["ada", "bob"]

    def handle(self, shelf: Shelf, ctx: Context) -> None:
        if self.book not in shelf.books:
            raise Rejected("is_not_there", "It is not there.")
        shelf.books.remove(self.book)
        shelf.lent[self.book] = self.to
        ctx.send(self.to, Receive(book=self.book))


class Receive(Command[Shelf, None], name="receive"):
    book: Book

    def handle(self, shelf: Shelf, ctx: Context) -> None:
        shelf.books.append(self.book)


class Books(Query[Shelf, list[str]], name="books"):
    def answer(self, shelf: Shelf) -> list[str]:
        return sorted(shelf.books)


class Where(Lookup[Shelf, str], name="where"):
    def rows(self, shelf: Shelf):
        for book in shelf.books:
            yield book, shelf.key


app = App("library", commands=[Put, Lend, Receive], queries=[Books], read_models=[Where])


def no_book_is_there_and_lent_to_itself(s: Scenario) -> None:
    """Does not hold: a shelf can lend to itself."""
    for key, shelf in s.entities(Shelf).items():
        assert key not in shelf.lent.values(), f"{key} has lent a book to itself"


class Forgetful:
    """A model that thinks every book can be put twice."""

    def __init__(self) -> None:
        self._books: dict[str, list[str]] = {}

    def handle(self, key: str, command: object, now: datetime) -> object:
        if not isinstance(command, Put):
            return NotImplemented
        self._books.setdefault(key, []).append(command.book)
        return len(self._books[key])

    def answer(self, key: str, query: object) -> object:
        return NotImplemented


# A version of the app whose upcaster forgets that a shelf may be empty.


@dataclass(slots=True, kw_only=True)
class NewShelf(Entity, name="shelf", version=2):
    titles: list[str] = field(default_factory=list)


class NewPut(Command[NewShelf, int], name="put"):
    book: Book

    def handle(self, shelf: NewShelf, ctx: Context) -> int:
        shelf.titles.append(self.book)
        return len(shelf.titles)


@upcaster(NewShelf, from_version=1)
def books_became_titles(old: Json) -> Json:
    """Wrong for a shelf without books: its titles are no list."""
    return {"key": old["key"], "titles": old["books"] or None}


upgraded = App("library", version=2, commands=[NewPut], upcasters=[books_became_titles])


# An app whose state depends on how it was recovered.


@dataclass(slots=True, kw_only=True)
class Ledger(Entity, name="ledger"):
    sums: dict[str, int] = field(default_factory=dict)


SEEN: dict[str, int] = {}


class Note(Command[Ledger, int], name="note"):
    """Counts in a variable of the module, beside what the image knows of."""

    def handle(self, ledger: Ledger, ctx: Context) -> int:
        SEEN[ledger.key] = SEEN.get(ledger.key, 0) + 1
        ledger.sums["seen"] = SEEN[ledger.key]
        return 0


ledgers = App("ledgers", commands=[Note])
