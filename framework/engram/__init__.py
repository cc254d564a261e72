"""Engram: event sourcing on Spark. Commands change plain objects in memory; the log is the truth."""

from typing import TYPE_CHECKING, Any

from engram.errors import (
    Ahead,
    Behind,
    Corrupt,
    Denied,
    EngramError,
    Fenced,
    Foreign,
    Misuse,
    Quarantined,
    Rejected,
    Unauthenticated,
    Unavailable,
    Unsettled,
)
from engram.model.app import App
from engram.model.command import Broadcast, Command
from engram.model.context import Context
from engram.model.entity import Entity, Part, Shared
from engram.model.event import Event
from engram.model.limits import Limits
from engram.model.position import Position
from engram.model.principal import Principal, allow
from engram.model.query import Query
from engram.model.read_model import Lookup, Ranked, Ranking, Search, Tally, Totals
from engram.model.token import Token
from engram.model.upcaster import Json, at_version, upcaster
from engram.model.value import value
from engram.model.windows import Window, Windows

if TYPE_CHECKING:
    from engram.serving.client import Client

__all__ = [
    "Ahead",
    "App",
    "Behind",
    "Broadcast",
    "Client",
    "Command",
    "Context",
    "Corrupt",
    "Denied",
    "EngramError",
    "Entity",
    "Event",
    "Fenced",
    "Foreign",
    "Json",
    "Limits",
    "Lookup",
    "Misuse",
    "Part",
    "Position",
    "Principal",
    "Quarantined",
    "Query",
    "Ranked",
    "Ranking",
    "Rejected",
    "Search",
    "Shared",
    "Tally",
    "Token",
    "Totals",
    "Unauthenticated",
    "Unavailable",
    "Unsettled",
    "Window",
    "Windows",
    "allow",
    "at_version",
    "upcaster",
    "value",
]


def __getattr__(name: str) -> Any:
    """`Client` on first use: it brings an HTTP library that neither shards nor the command line's help need."""
    if name == "Client":
        from engram.serving.client import Client

        return Client
    raise AttributeError(f"module 'engram' has no attribute {name!r}")
