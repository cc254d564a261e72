"""Commands: the only way to change an entity, and the thing that is logged."""

from __future__ import annotations

from abc import abstractmethod
from typing import Generic, TypeVar

from engram.model.boundary import Boundary
from engram.model.context import Context
from engram.model.entity import Entity

E = TypeVar("E", bound=Entity)
R_co = TypeVar("R_co", covariant=True)


class Command(Boundary, Generic[E, R_co]):
    """A typed request to change one entity of type `E`; `R_co` is the type of its reply.

        class Follow(Command[User, None], name="follow"):
            whom: str
            def handle(self, user: User, ctx: Context) -> None: ...

    `handle` runs on the shard's one thread, once in effect, and again on every replay: it must depend on
    nothing but the command, the entity and `ctx`. Raise `Rejected` to refuse. Whatever it raises, the entity
    and all effects are as before.
    """

    @abstractmethod
    def handle(self, entity: E, ctx: Context, /) -> R_co: ...
