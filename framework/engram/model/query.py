"""Queries: typed reads of one entity's live state, never logged."""

from __future__ import annotations

from abc import abstractmethod
from typing import Generic, TypeVar

from engram.model.boundary import Boundary
from engram.model.entity import Entity
from engram.model.guarded import Guarded
from engram.model.principal import Principal

E = TypeVar("E", bound=Entity)
A_co = TypeVar("A_co", covariant=True)


class Query(Guarded, Boundary, Generic[E, A_co]):
    """A typed read of one entity of type `E`; `A_co` is the type of its answer.

    `answer` runs between commands on the shard's own thread, so it never sees half a command. It may raise
    `Rejected` and must change nothing: a change is taken back and the query fails. A key that no command
    has reached yet is answered from a fresh entity, which is not kept.
    """

    @abstractmethod
    def answer(self, entity: E, /) -> A_co: ...

    def authorize_entity(self, principal: Principal, entity: E, /) -> bool:
        """Whether the principal may have this answer of this entity, by its state: those who follow a protected account
        may read it. Asked on the shard, before `answer`, of whom `authorize` has let through; it must change nothing.
        """
        return True
