"""Logs by URL: `sqlite:PATH`, or `kafka://HOST:PORT/TOPIC`; with `?archive=URL` together with what was archived."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path

from engram.errors import Misuse
from engram.log.base import Draft, Log, Making

# The last option of a URL, as it is: a URL may have any characters.
_ARCHIVE = re.compile(r"(.*?)[?&]archive=(.+)")


def without_archive(url: str) -> tuple[str, str]:
    """The URL of the log alone, and that of its archive; empty if it names none."""
    found = _ARCHIVE.fullmatch(url)
    return (found[1], found[2]) if found else (url, "")


def absolute_url(url: str) -> str:
    """The same log, wherever the process that opens it was started."""
    alone, archive = without_archive(url)
    if archive:
        from engram.snapshots.open import absolute_store

        joined = absolute_url(alone)
        return f"{joined}{'&' if '?' in joined else '?'}archive={absolute_store(archive)}"
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
    alone, archive = without_archive(url)
    log = _opened(alone, app, partitions=partitions, create=create)
    return join_archive(log, archive) if archive else log


def join_archive(log: Log, url: str) -> Log:
    """A log together with its archive, which must be there. Closes the log when it is not."""
    from engram.log.archive.archive import Archive
    from engram.log.archive.log import ArchivedLog
    from engram.snapshots.open import local_folder, open_storage

    folder = local_folder(url)
    if folder is not None and not (folder / log.app).is_dir():
        log.close()
        raise Misuse(f"There is no archive of {log.app} in {url}: check the path.")
    return ArchivedLog(log, Archive(open_storage(url, log.app), log.app, log.partitions))


def check_log(url: str, app: str) -> list[int]:
    """Opens a log to look whether a job may read all of it; where each partition ends. Raises as `open_log` does, and
    when its archive, if it names one, does not belong to it or is not whole."""
    from engram.log.archive.log import ArchivedLog

    with closing(open_log(url, app)) as log:
        if isinstance(log, ArchivedLog):
            log.check()
        return [log.end(partition) for partition in range(log.partitions)]


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
    url, _ = without_archive(url)
    scheme, _, place = url.partition(":")
    if scheme == "kafka":
        from engram.log.kafka.settings import parse_kafka_url

        return Path("data", parse_kafka_url(url).topic).absolute()
    return Path(place).expanduser().absolute()
