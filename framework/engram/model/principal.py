"""Who asks, and rules of who may."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Principal:
    """Who sends a command or asks a query, as the gateway knows them from their token.

    `name` is compared with keys: whoever has the name of an entity's key is its owner. It is empty for somebody without
    a token. `claims` is all that the token says.
    """

    name: str = ""
    roles: frozenset[str] = frozenset()
    claims: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def known(self) -> bool:
        """Whether there was a token."""
        return bool(self.name)


ANONYMOUS = Principal()


class Rule:
    """Who may, by principal and key. `allow.owner | allow.operator`: whom either lets."""

    __slots__ = ("_may", "name")

    def __init__(self, name: str, may: Callable[[Principal, str], bool]) -> None:
        self.name = name
        self._may = may

    def __call__(self, principal: Principal, key: str) -> bool:
        return self._may(principal, key)

    def __or__(self, other: Rule) -> Rule:
        return Rule(f"{self.name} or {other.name}", lambda who, key: self(who, key) or other(who, key))

    def __repr__(self) -> str:
        return f"<Rule {self.name}>"


class _Allow:
    """The rules that most commands and queries need:

        class Follow(Command[User, None], name="follow", authorize=allow.owner): ...
        class Ban(Broadcast[Rules, None], name="ban", authorize=allow.role("moderator") | allow.operator): ...

    What depends on the fields is a method: `def authorize(self, principal, key)`.
    """

    anyone = Rule("anyone", lambda _who, _key: True)
    known = Rule("known", lambda who, _key: who.known)
    owner = Rule("owner", lambda who, key: who.known and who.name == key)
    operator = Rule("operator", lambda who, _key: "operator" in who.roles)
    nobody = Rule("nobody", lambda _who, _key: False)  # for what only entities and timers send

    @staticmethod
    def role(name: str) -> Rule:
        """Whoever has the role."""
        return Rule(name, lambda who, _key: name in who.roles)


allow = _Allow()
