"""Read models: rows that follow from live entities, found by key, by score, by group or by their words.

Nothing is written when an event happens and nothing is replayed: a shard keeps the rows of an entity up to date after
each of its commands. A new read model is one pass over memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from engram.model.boundary import type_arguments
from engram.model.declared import UNDECLARED, Declared
from engram.model.entity import Entity, Shared
from engram.model.guarded import Guarded
from engram.model.shape import Refused, Shape, state_shape

E = TypeVar("E", bound=Entity)
E_contra = TypeVar("E_contra", bound=Entity, contravariant=True)
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class _Named:
    """Takes the name and version of a class statement."""

    __engram__: ClassVar[Declared] = UNDECLARED

    def __init_subclass__(cls, *, name: str | None = None, version: int = 1) -> None:
        super().__init_subclass__()
        cls.__engram__ = Declared(name, version)


class ReadModel(Guarded, _Named, ABC):
    """The root of the four kinds. A subclass has no state: one object of it serves all entities.

    `rows` runs on the shard's own thread after every record that changed the entity, unless its source and those of the
    record's commands show that they have no field in common, and for every entity once when the read model is new. It
    may depend on nothing but the entity, and must not change it. What it raises breaks this read model, which says so
    when it is asked, and nothing else.

    `version`: raise it when something that `rows` calls has changed. The source of the class is looked at anyway.
    `authorize`: who may look; its `key` is where one looks, such as the key of a lookup. It is asked of all rows there
    together: what not everybody who may look should see is for `rows` to leave out.
    """

    @abstractmethod
    def rows(self, entity: Any, /) -> Iterable[tuple[Any, ...]]: ...


class Lookup(ReadModel, Generic[E_contra, R_co]):
    """Rows by key, from entities of type `E_contra`, wherever they are:

        class Followers(Lookup[User, str], name="followers"):
            def rows(self, user: User) -> Iterator[tuple[str, str]]:
                for whom in user.following:
                    yield whom, user.key

    A key's rows come in the order of their entities' keys. The same row twice from one entity is one row.
    """

    @abstractmethod
    def rows(self, entity: E_contra, /) -> Iterable[tuple[str, R_co]]: ...


class Ranking(ReadModel, Generic[E_contra, R_co]):
    """Rows in the order of their scores, the highest first, on as many boards as the rows name:

        class MostFollowed(Ranking[User, str], name="most_followed"):
            def rows(self, user: User) -> Iterator[tuple[str, int, str]]:
                yield "all", len(user.followers), user.key

    Rows with the same score come in the order of their entities' keys.
    """

    @abstractmethod
    def rows(self, entity: E_contra, /) -> Iterable[tuple[str, float, R_co]]: ...


class Tally(ReadModel, Generic[E_contra]):
    """Count, sum, least and greatest of numbers by group:

        class PostLengths(Tally[User], name="post_lengths"):
            def rows(self, user: User) -> Iterator[tuple[str, int]]:
                for post in user.posts.values():
                    yield post.language, len(post.text)

    Every number counts, also one that an entity gives twice. Sums are exact, and rounded once when they are read.
    """

    @abstractmethod
    def rows(self, entity: E_contra, /) -> Iterable[tuple[str, float]]: ...


class Search(ReadModel, Generic[E_contra, R_co]):
    """Rows by the words of a text, the most relevant first:

        class PostSearch(Search[User, str], name="post_search"):
            def rows(self, user: User) -> Iterator[tuple[str, str]]:
                for key, post in user.posts.items():
                    yield post.text, key

    Words are found without regard to case and accents, and by their beginnings with a star: `hel*`.
    """

    @abstractmethod
    def rows(self, entity: E_contra, /) -> Iterable[tuple[str, R_co]]: ...


class Ranked(NamedTuple, Generic[R]):
    """A row of a ranking and its score."""

    score: float
    row: R


class Totals(NamedTuple):
    """What a tally has of a group. A group that no row names has a count of 0, and neither least nor greatest."""

    count: int  # type: ignore[assignment]  # a field, not tuple.count
    sum: float
    min: float | None
    max: float | None


# The four kinds, and what the place is called at which each is asked.
KINDS: dict[type[Any], str] = {Lookup: "key", Ranking: "board", Tally: "group", Search: "words"}


def source_of(cls: type[ReadModel]) -> type[Entity]:
    """The entity type that a read model is made from."""
    return _arguments(cls)[0]  # type: ignore[no-any-return]  # checked by App


def row_of(cls: type[ReadModel]) -> Any:
    """The type of a read model's rows; None for a tally."""
    return (*_arguments(cls), None)[1]


def place_of(cls: type[ReadModel]) -> str:
    """What it is called where one looks in a read model: a key, a board, a group, words."""
    return next(name for kind, name in KINDS.items() if issubclass(cls, kind))


def read_model_problems(cls: type[ReadModel], entities: Iterable[type[Entity]]) -> list[str]:
    """What is wrong with a read model of an app with these entities."""
    name = cls.__name__
    if not issubclass(cls, tuple(KINDS)):
        return [f"{name} is no read model of a known kind: derive it from Lookup, Ranking, Tally or Search"]
    arguments = _arguments(cls)
    if not arguments or not (isinstance(arguments[0], type) and issubclass(arguments[0], Entity)):
        base = next(kind for kind in KINDS if issubclass(cls, kind))
        of = "SomeEntity" if base is Tally else "SomeEntity, SomeRow"
        return [f"{name} does not say its types: derive it from {base.__name__}[{of}]"]
    found = []
    entity = arguments[0]
    if issubclass(entity, Shared):
        found.append(f"{name} is made from {entity.__name__}, which every partition has: ask for that with a query")
    elif entity not in entities:
        found.append(f"{name} is made from {entity.__name__}, which no command or query of this app names")
    if getattr(cls, "__abstractmethods__", None):
        found.append(f"{name} does not define rows")
    else:
        found += _making_problems(cls)
    if not issubclass(cls, Tally):
        found += _row_problems(name, row_of(cls))
    return found


def _making_problems(cls: type[ReadModel]) -> list[str]:
    try:
        cls()
    except Exception as problem:  # noqa: BLE001 - whatever its constructor raises is the author's to read
        return [f"{cls.__name__} cannot be made without arguments, and it needs none: {problem!r}"]
    return []


def _row_problems(name: str, row: Any) -> list[str]:
    try:
        if state_shape(row) is not Shape.FIXED:
            return [f"{name}: its rows are {row!r}, which can change in place: use a tuple or something frozen"]
    except (Refused, NameError) as problem:
        return [f"{name}: its rows: {problem}"]
    return []


def _arguments(cls: type[ReadModel]) -> tuple[Any, ...]:
    base = next((kind for kind in KINDS if issubclass(cls, kind)), None)
    return () if base is None else type_arguments(cls, base) or ()
