"""A model: what an app's commands and queries come to, said a second time."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Protocol

from engram.model.command import Command
from engram.model.query import Query


class Model(Protocol):
    """A simple, sequential program that knows what an app should do: a dict instead of shards, logs and snapshots.

    It is told every command in the order in which it is handled. Where it has nothing to say, it returns
    `NotImplemented`, and nothing is compared.
    """

    def handle(self, key: str, command: Command[Any, Any], now: datetime) -> Any:
        """The reply of a command of a client, at its time; raises `Rejected` where the app does."""

    def answer(self, key: str, query: Query[Any, Any]) -> Any:
        """The answer of a query; raises `Rejected` where the app does."""
