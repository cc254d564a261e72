"""Logs by URL: `sqlite:PATH`, or `kafka://HOST:PORT/TOPIC`."""

from __future__ import annotations

from pathlib import Path

from engram.errors import Misuse
from engram.log.base import Draft, Log, Making


def absolute_url(url: str) -> str:
    """The same log, wherever the process that opens it was started."""
    scheme, colon, place = url.partition(":")
    if scheme == "sqlite" and place:
        return f"{scheme}{colon}{Path(place).expanduser().absolute()}"
    if scheme == "kafka":
        from engram.log.kafka.settings import absolute_kafka_url

        return absolute_kafka_url(url)
    return url


def open_log(url: str, app: str, *, partitions: int | None = None, create: bool = False) -> Log:
    """Opens the log that `url` names for `app`, or makes it when `create` and it is not there.

    `partitions` None takes what the log has. Raises `NoLog` when it is not there and not to be made, and `Misuse` when
    it is another app's or has another number of partitions.
    """
    return _opened(url, app, partitions=partitions, create=create)


def make_log(url: str, app: str, *, partitions: int, making: Making) -> Draft:
    """Makes a log that nobody else may open until it is finished, or opens the one that the same plan has made."""
    return _opened(url, app, partitions=partitions, create=True, making=making)


def _opened(url: str, app: str, *, partitions: int | None, create: bool, making: Making | None = None) -> Draft:
    scheme, found, place = url.partition(":")
    if scheme == "sqlite" and found and place:
        from engram.log.sqlite import SqliteLog

        path = Path(place).expanduser().absolute()
        return SqliteLog(path, app, partitions=partitions, create=create, making=making)
    if scheme == "kafka":
        from engram.log.kafka.log import KafkaLog
        from engram.log.kafka.settings import parse_kafka_url

        return KafkaLog(parse_kafka_url(url), app, partitions=partitions, create=create, making=making)
    raise Misuse(f"{url!r} is not a log: write sqlite:PATH, such as sqlite:data/social.db, or kafka://HOST:PORT/TOPIC")


def folder_beside(url: str) -> Path:
    """Where an app keeps what belongs to a log and is not in it; a file's own path, or one named for the topic."""
    scheme, _, place = url.partition(":")
    if scheme == "kafka":
        from engram.log.kafka.settings import parse_kafka_url

        return Path("data", parse_kafka_url(url).topic).absolute()
    return Path(place).expanduser().absolute()
