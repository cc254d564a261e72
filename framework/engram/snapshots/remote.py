"""Snapshots in an object store, or any other file system that fsspec knows, by URL."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from engram.errors import Corrupt, EngramError, Misuse, Unavailable

# An object is there whole once it is put. Elsewhere a file is seen while it is written, so it gets its name afterwards.
_PUT_IS_ATOMIC = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "adl", "az", "oci", "oss", "memory"}
# A store that does not answer is given up in time, and tried again later by whoever wanted something from it. The
# driver tries five times by itself: at the worst, reading from a store that hangs takes two minutes.
_S3_DEADLINES = {"connect_timeout": 5, "read_timeout": 20, "retries": {"total_max_attempts": 1}}
# For writing, the driver's deadlines do not do: it waits for ever for a store's word that it may send the data.
_WRITE_S = 60.0
_SLOWEST_BYTES_S = 1_000_000
_EXTRAS = {"s3": "s3", "s3a": "s3"}


class RemoteStorage:
    """See `engram.snapshots.storage.Storage`. Credentials and other options are fsspec's own: those of the driver's
    environment (`AWS_...`), `FSSPEC_...` variables, or its configuration files."""

    def __init__(self, url: str, app: str) -> None:
        self.place = f"{re.sub(r'//[^/@]*@', '//', url.rstrip('/'))}/{app}"
        self._files, root = _open(url)
        self._root = f"{root.rstrip('/')}/{app}"
        protocols = self._files.protocol if isinstance(self._files.protocol, tuple | list) else [self._files.protocol]
        self._atomic = not _PUT_IS_ATOMIC.isdisjoint(protocols)

    def write(self, path: str, data: bytes) -> None:
        target = f"{self._root}/{path}"
        with _telling():
            if self._atomic:
                self._put(target, data)
                return
            folder, _, name = target.rpartition("/")
            temporary = f"{folder}/.{name}.{secrets.token_hex(4)}"
            self._files.makedirs(folder, exist_ok=True)
            self._put(temporary, data)
            self._files.mv(temporary, target)

    def read(self, path: str) -> bytes:
        with _telling():
            try:
                data: bytes = self._files.cat_file(f"{self._root}/{path}")
            except (FileNotFoundError, IsADirectoryError):
                raise Corrupt(f"its file {path} is not there") from None
            return data

    def size(self, path: str) -> int | None:
        with _telling():
            try:
                found = self._files.info(f"{self._root}/{path}")
            except FileNotFoundError:
                return None
            return int(found["size"]) if found["type"] == "file" else None

    def names(self, folder: str) -> list[str]:
        place = f"{self._root}/{folder}".rstrip("/")
        with _telling():
            try:
                found = self._files.ls(place, detail=False)
            except (FileNotFoundError, NotADirectoryError):
                return []
            names = {str(path).rstrip("/").rpartition("/")[2] for path in found}
            return sorted(names - {place.rpartition("/")[2]})

    def settle(self, folder: str) -> None:
        """What can be listed there is durable already."""

    def move(self, path: str, to: str) -> None:
        with _telling():
            try:
                self._files.mv(f"{self._root}/{path}", f"{self._root}/{to}")
            except FileNotFoundError:
                return

    def remove(self, path: str) -> None:
        with _telling():
            try:
                self._files.rm(f"{self._root}/{path}", recursive=True)
            except FileNotFoundError:
                return

    def _put(self, target: str, data: bytes) -> None:
        if not self._files.async_impl:
            self._files.pipe_file(target, data)
            return
        from fsspec.asyn import sync
        from fsspec.exceptions import FSTimeoutError

        deadline = _WRITE_S + len(data) / _SLOWEST_BYTES_S
        try:
            sync(self._files.loop, self._files._pipe_file, target, data, timeout=deadline)  # noqa: SLF001 - documented so
        except FSTimeoutError:
            raise Unavailable(f"no answer within {deadline:.0f} s to {len(data):,} bytes") from None


@contextmanager
def _telling() -> Iterator[None]:
    try:
        yield
    except EngramError:
        raise
    except Exception as problem:  # drivers raise what their libraries raise
        raise Unavailable(f"{type(problem).__name__}: {problem}") from problem


def _open(url: str) -> tuple[Any, str]:
    import fsspec

    protocol = url.partition("://")[0]
    # Another process may have written since a folder was listed; and a driver must not outlive a fork.
    options: dict[str, Any] = {"use_listings_cache": False, "skip_instance_cache": True}
    if protocol in _EXTRAS and "config_kwargs" not in fsspec.config.conf.get(protocol, {}):
        options["config_kwargs"] = _S3_DEADLINES
    try:
        files, root = fsspec.url_to_fs(url, **options)
    except ImportError as problem:
        extra = _EXTRAS.get(protocol)
        how = f"install engram[{extra}]" if extra else str(problem)
        raise Misuse(f"Snapshots cannot be kept in {protocol}:// without its driver: {how}.") from problem
    except Exception as problem:
        raise Misuse(f"{protocol}:// cannot be opened for snapshots: {problem}") from problem
    return files, root
