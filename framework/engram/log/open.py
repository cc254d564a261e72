"""Logs by URL: `sqlite:PATH`."""

from __future__ import annotations

from pathlib import Path

from engram.errors import Misuse
from engram.log.base import Log
from engram.log.sqlite import SqliteLog


def absolute_url(url: str) -> str:
    """The same log, wherever the process that opens it was started."""
    scheme, colon, place = url.partition(":")
    return f"{scheme}{colon}{Path(place).expanduser().absolute()}" if scheme == "sqlite" and place else url


def open_log(url: str, app: str, *, partitions: int | None = None, create: bool = False) -> Log:
    """Opens the log that `url` names for `app`; see the log's own class for what is refused."""
    scheme, found, place = url.partition(":")
    if scheme == "sqlite" and found and place:
        return SqliteLog(Path(place).expanduser().absolute(), app, partitions=partitions, create=create)
    raise Misuse(f"{url!r} is not a log: write sqlite:PATH, such as sqlite:data/social.db")
