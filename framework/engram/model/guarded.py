"""What is asked by clients says who may ask it."""

from __future__ import annotations

from typing import Any, ClassVar

from engram.model.declared import UNDECLARED, Declared
from engram.model.principal import Principal, Rule


class Guarded:
    """A command, a query, or whatever else a client can ask for. As soon as an app runs with authentication, nobody may
    ask for what does not say who may: with `authorize=` and a rule in its class statement, or with a method.

    The gateway asks, before anything is logged or read. Messages between entities and timers are not asked: they are
    the app's own.
    """

    __engram__: ClassVar[Declared] = UNDECLARED
    __rule__: ClassVar[Rule | None] = None

    def __init_subclass__(cls, *, authorize: Rule | None = None, **others: Any) -> None:
        super().__init_subclass__(**others)  # of what this is mixed with
        if authorize is not None:
            cls.__rule__ = authorize

    def authorize(self, principal: Principal, key: str) -> bool:
        """Whether the principal may send or ask this for the entity of that key. Must not depend on anything else."""
        return self.__rule__ is not None and self.__rule__(principal, key)

    @classmethod
    def says_who(cls) -> bool:
        """Whether it says who may."""
        return cls.__rule__ is not None or cls.authorize is not Guarded.authorize


def rule_problems(cls: Any) -> list[str]:
    """What is wrong with what a class says of who may."""
    rule = getattr(cls, "__rule__", None)
    if rule is None or isinstance(rule, Rule):
        return []
    return [f"{cls.__name__} says authorize={rule!r}: write a rule, such as allow.owner, or a method of that name"]
