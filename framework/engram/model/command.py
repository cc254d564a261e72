"""Commands: the only way to change an entity, and the thing that is logged."""

from __future__ import annotations

from abc import abstractmethod
from typing import Generic, TypeVar

from engram.model.boundary import Boundary
from engram.model.context import Context
from engram.model.entity import Entity, Shared
from engram.model.guarded import Guarded

E = TypeVar("E", bound=Entity)
S = TypeVar("S", bound=Shared)
R_co = TypeVar("R_co", covariant=True)


class Command(Guarded, Boundary, Generic[E, R_co]):
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


class Broadcast(Command[S, R_co], Generic[S, R_co]):
    """A command for the shared object of type `S`, handled in every partition, in the same order, once.

        class Ban(Broadcast[Rules, None], name="ban"):
            word: str
            def handle(self, rules: Rules, ctx: Context) -> None:
                rules.banned[self.word] = None

    It is handled first in one partition, which gives the reply; from there it goes to all others, through the log.
    There `ctx` is as it was at home: the same time, ids and random numbers. Its effects leave from home alone.
    """
