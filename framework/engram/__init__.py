"""Engram: event sourcing on Spark. Commands change plain objects in memory; the log is the truth."""

from typing import TYPE_CHECKING, Any

from engram.errors import Behind, Corrupt, EngramError, Fenced, Misuse, Quarantined, Rejected, Unavailable
from engram.model.app import App
from engram.model.command import Command
from engram.model.context import Context
from engram.model.entity import Entity, Part
from engram.model.event import Event
from engram.model.position import Position
from engram.model.query import Query
from engram.model.upcaster import Json, upcaster

if TYPE_CHECKING:
    from engram.serving.client import Client

__all__ = [
    "App",
    "Behind",
    "Client",
    "Command",
    "Context",
    "Corrupt",
    "EngramError",
    "Entity",
    "Event",
    "Fenced",
    "Json",
    "Misuse",
    "Part",
    "Position",
    "Quarantined",
    "Query",
    "Rejected",
    "Unavailable",
    "upcaster",
]


def __getattr__(name: str) -> Any:
    """`Client` on first use: it brings an HTTP library that neither shards nor the command line's help need."""
    if name == "Client":
        from engram.serving.client import Client

        return Client
    raise AttributeError(f"module 'engram' has no attribute {name!r}")
