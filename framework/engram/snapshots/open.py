"""Snapshot stores by URL: a folder, or anything that fsspec knows, such as `s3://BUCKET/PREFIX`."""

from __future__ import annotations

import re
from pathlib import Path

import structlog

from engram.errors import Misuse
from engram.snapshots.files import FileStorage
from engram.snapshots.parted import KEEP, PartedSnapshots
from engram.snapshots.storage import Storage

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]+(?=:)", re.IGNORECASE)

_logger = structlog.get_logger()


def absolute_store(url: str) -> str:
    """The same store, wherever the process that opens it was started."""
    folder = local_folder(url)
    return url if folder is None else str(folder)


def local_folder(url: str) -> Path | None:
    """The folder that a plain path or a `file:` URL names; None for all else. Raises `Misuse` for what is neither."""
    scheme = _SCHEME.match(url)
    if scheme is None or Path(url).exists():
        return Path(url).expanduser().absolute()
    if scheme[0].lower() in {"file", "local"}:
        return Path(url[scheme.end() + 1 :].removeprefix("//")).expanduser().absolute()
    if "://" not in url:
        raise Misuse(f"{url!r} is no place for snapshots: write a folder, or a URL such as s3://BUCKET/PREFIX.")
    return None


def open_store(
    url: str, app: str, *, keep: int = KEEP, copy: Path | None = None, create: bool = True
) -> PartedSnapshots:
    """The snapshots of `app` at `url`.

    A remote store has a `copy` in that folder, if one is named and can be made. A local folder is made when `create`;
    otherwise one that is not there is `Misuse`.
    """
    folder = local_folder(url)
    if folder is not None and not create and not (folder / app).is_dir():
        raise Misuse(f"There are no snapshots of {app} in {url}: check the path.")
    return PartedSnapshots(open_storage(url, app), app, keep=keep, copy=_copy(copy if folder is None else None, app))


def open_storage(url: str, app: str) -> Storage:
    """The place of an app's files at `url`; a local folder is made."""
    folder = local_folder(url)
    if folder is not None:
        return FileStorage(folder / app)
    from engram.snapshots.remote import RemoteStorage

    return RemoteStorage(url, app)


def _copy(folder: Path | None, app: str) -> Storage | None:
    if folder is None:
        return None
    try:
        return FileStorage(folder / app)
    except Misuse as problem:
        _logger.warning("snapshot_copy_failed", problem=str(problem))
        return None
