"""Snapshots as local files: parts in Parquet and JSON, the manifest last.

    FOLDER/APP/partition-0003/000000000001042-9f2c.json         the manifest
    FOLDER/APP/partition-0003/000000000001042-9f2c/entities.parquet
    FOLDER/APP/partition-0003/000000000001042-9f2c/memory.json

Anything reads the entities without the app's classes: columns entity, key, version, state (JSON text).
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import structlog
from pydantic import ValidationError

from engram.errors import Corrupt, Misuse, Unavailable
from engram.image.contents import EntityRow, Memory, digest_of
from engram.snapshots.base import Contents, Loaded
from engram.snapshots.manifest import FORMAT, Manifest, PartEntry

_ENTITIES = "entities.parquet"
_MEMORY = "memory.json"
# Parquet keeps a row group's column in memory: this bounds it for large entities.
_ROW_GROUP = 50_000

_logger = structlog.get_logger()


class FileSnapshots:
    """See `engram.snapshots.base.SnapshotStore`."""

    def __init__(self, folder: Path, app: str, *, keep: int = 3) -> None:
        self._folder = folder / app
        self._app = app
        self._keep = keep
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise Misuse(f"Snapshots cannot be kept in {folder}: {problem.strerror}.") from problem
        if not os.access(self._folder, os.W_OK):
            raise Misuse(f"The snapshot folder {self._folder} is not writable: choose another, or change its rights.")

    def publish(self, partition: int, contents: Contents, *, created: int) -> Manifest:
        folder = self._partition(partition)
        memory = contents.memory
        name = f"{memory.offset:015}-{secrets.token_hex(4)}"
        try:
            parts_folder = folder / name
            parts_folder.mkdir(parents=True)
            parts = [
                _write_entities(parts_folder / _ENTITIES, contents.entities),
                _write(parts_folder / _MEMORY, memory.model_dump_json().encode()),
            ]
            _sync_folder(parts_folder)
            manifest = contents.manifest(self._app, partition, created=created, parts=parts)
            _write(folder / f"{name}.json", manifest.model_dump_json(indent=2).encode())
            _sync_folder(folder)
        except OSError as problem:
            shutil.rmtree(folder / name, ignore_errors=True)
            raise Unavailable(f"A snapshot of partition {partition} could not be written: {problem}.") from problem
        self._retire(folder)
        return manifest

    def newest(self, partition: int) -> Loaded | None:
        for path in self._manifest_paths(self._partition(partition)):
            try:
                return self._load(path, partition)
            except (Corrupt, OSError, ValidationError, ValueError) as problem:
                aside = path.with_suffix(".damaged")
                with suppress(FileNotFoundError):  # another owner has retired it meanwhile
                    path.rename(aside)
                _logger.error("snapshot_damaged", partition=partition, set_aside=str(aside), problem=str(problem))
        return None

    def manifests(self, partition: int) -> list[Manifest]:
        found = []
        for path in self._manifest_paths(self._partition(partition)):
            # Retired meanwhile, or damaged: `newest` sets it aside.
            with suppress(OSError, ValidationError):
                found.append(Manifest.model_validate_json(path.read_bytes()))
        return found

    def _load(self, path: Path, partition: int) -> Loaded:
        manifest = Manifest.model_validate_json(path.read_bytes())
        of = manifest.app, manifest.partition, manifest.format
        if of != (self._app, partition, FORMAT):
            raise Corrupt(f"it is of app {of[0]}, partition {of[1]}, format {of[2]}")
        parts_folder = path.with_suffix("")
        data = {part.name: _read_checked(parts_folder, part) for part in manifest.parts}
        if data.keys() != {_ENTITIES, _MEMORY}:
            raise Corrupt(f"it has the parts {', '.join(data) or 'none'}")
        contents = Contents(_read_entities(data[_ENTITIES]), Memory.model_validate_json(data[_MEMORY]))
        digest = digest_of(*contents)
        if digest != manifest.digest or contents.memory.offset != manifest.offset:
            raise Corrupt(f"its contents have digest {digest}, the manifest says {manifest.digest}")
        return Loaded(manifest, contents)

    def _partition(self, partition: int) -> Path:
        return self._folder / f"partition-{partition:04}"

    def _manifest_paths(self, folder: Path) -> list[Path]:
        return sorted(folder.glob("*.json"), reverse=True)

    def _retire(self, folder: Path) -> None:
        """Removes what is older than the newest `keep` snapshots. The manifest goes first: no half snapshot."""
        kept = self._manifest_paths(folder)
        for path in kept[self._keep :]:
            path.unlink(missing_ok=True)
            shutil.rmtree(path.with_suffix(""), ignore_errors=True)


def _write_entities(path: Path, rows: list[EntityRow]) -> PartEntry:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([("entity", pa.string()), ("key", pa.string()), ("version", pa.int32()), ("state", pa.string())])
    rows = sorted(rows, key=lambda row: row[:2])
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, schema, compression="zstd") as writer:
        for start in range(0, len(rows), _ROW_GROUP):
            columns = zip(*rows[start : start + _ROW_GROUP], strict=True)
            writer.write_batch(pa.record_batch([list(column) for column in columns], schema=schema))
    return _write(path, sink.getvalue().to_pybytes())


def _read_entities(data: bytes) -> list[EntityRow]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(pa.BufferReader(data), use_threads=False)
        columns: list[list[Any]] = [table[name].to_pylist() for name in ("entity", "key", "version")]
        states = table["state"].cast(pa.large_binary()).to_pylist()
    except (pa.ArrowException, KeyError) as problem:
        raise Corrupt(f"its entities cannot be read: {problem}") from problem
    return [EntityRow(*row) for row in zip(*columns, states, strict=True)]


def _read_checked(folder: Path, part: PartEntry) -> bytes:
    if Path(part.name).name != part.name:
        raise Corrupt(f"it names a part outside its folder: {part.name}")
    data = (folder / part.name).read_bytes()
    if len(data) != part.size or hashlib.sha256(data).hexdigest() != part.sha256:
        raise Corrupt(f"its part {part.name} does not match its checksum")
    return data


def _write(path: Path, data: bytes) -> PartEntry:
    """Writes a file so that it is there whole or not at all: temporary name, fsync, rename."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    return PartEntry(name=path.name, size=len(data), sha256=hashlib.sha256(data).hexdigest())


def _sync_folder(folder: Path) -> None:
    """A rename is durable only once its folder is."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
