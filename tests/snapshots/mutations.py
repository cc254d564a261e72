"""Damage to a folder of snapshots, of every kind, and what must come of it.

A story is told once: a network lives, and its snapshots are written. Then, again and again, its folder is as it was,
something is done to it, and it is loaded: what comes back must be a state that was published, at its offset, from which
the log leads to the live image; or nothing, and the log does so from its beginning.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from engram import Command
from engram.errors import Corrupt
from engram.image.contents import EntityRow, Memory
from engram.snapshots.base import Contents, Loaded
from engram.snapshots.files import FileSnapshots
from engram.snapshots.manifest import Manifest

from sample_apps.social.commands import Follow, Publish, Register
from tests.shard.network import Network

USERS = 36
# Entities by type and key, the rest, and the rows that read models have of each.
State = tuple[list[EntityRow], Memory, dict[str, bytes]]


class Damage(NamedTuple):
    """What was done, by kind; and whether something was set aside, another snapshot loaded than before, or rows of read
    models left out."""

    done: list[tuple[str, str]]
    detected: bool


class Story:
    """Snapshots of a network in a folder: two whole ones, a savepoint, and some that go on from these."""

    def __init__(self, folder: Path) -> None:
        self.store = FileSnapshots(folder, "social", keep=10)
        self.folder = folder / "social" / "partition-0000"
        self._states: dict[int, State] = {}
        rng = Random(7)
        network = Network(1, store=self.store)
        owner = network.start()
        numbers = count()

        def send(key: str, command: Command[Any, Any]) -> None:
            network.send(key, command, session="writer", sequence=next(numbers))

        for number in range(USERS):
            send(f"user{number}", Register(name=rng.randbytes(40).hex()))
        network.settle(owner)
        for step, savepoint in enumerate(["", "", "", "kept", "", ""]):
            send(f"user{step}", Follow(whom=f"user{step + 1}"))
            send(f"user{step}", Publish(text=rng.randbytes(20).hex()))
            network.settle(owner)
            if step == 2:  # the next one is whole
                owner.shard.owned[0].manifest = None
            owner.shard.begin_snapshot(0)
            network.settle(owner)
            if savepoint:
                newest = self.store.newest(0)
                assert newest is not None
                self.store.publish(0, newest.contents._replace(savepoint=savepoint), created=1)
        send("user0", Publish(text="after the last snapshot"))
        network.settle(owner)
        self._network = network
        self._live = owner.partition(0).digest
        self._check_replays()
        self._files = {path: path.read_bytes() for path in self.folder.rglob("*") if path.is_file()}
        self._folders = {path.parent for path in self._files}
        self._manifests = sorted(self.folder.glob("*.json"))

    def close(self) -> None:
        self._network.close()

    def restore(self) -> None:
        """The folder as it was written."""
        for path in sorted(self.folder.rglob("*"), reverse=True):
            if path.is_symlink() or (path.is_file() and path not in self._files):
                path.unlink()
            elif path.is_dir() and path not in self._folders:
                path.rmdir()
        for path, data in self._files.items():
            path.parent.mkdir(exist_ok=True)
            if not path.exists() or path.read_bytes() != data:
                path.write_bytes(data)

    def damage(self, rng: Random, *kinds: str) -> Damage:
        """Does it, after some snapshot was the newest, and raises an `AssertionError` unless all is well afterwards."""
        self.restore()
        newest = rng.randrange(len(self._manifests))
        for path in self._manifests[newest + 1 :]:
            path.unlink()
        before = Manifest.decode(self._files[self._manifests[newest]]).offset
        done = []
        for kind in kinds:
            # After others, there may be nothing left that this could be done to.
            with suppress(*((LookupError, ValueError, OSError) if done else ())):
                done.append((kind, MUTATIONS[kind](self.folder, rng)))
        try:
            offset, rows = self._load()
            if aside := set(self.folder.glob("*.damaged")):
                assert self._load()[0] == offset, "the second start finds what the first one found"
                assert set(self.folder.glob("*.damaged")) == aside, "and nothing more to set aside"
        except Exception as problem:
            raise AssertionError(f"{done}: {type(problem).__name__}: {problem}") from problem
        return Damage(done, detected=bool(aside) or offset != before or not rows)

    def go_on(self) -> None:
        """After damage: the next snapshot is written and is the newest, whatever is in the folder."""
        store = FileSnapshots(self.folder.parents[1], "social", keep=10)
        loaded = store.newest(0)
        image = self._network.replayed(0, loaded)
        freeze = image.begin_freeze(whole=loaded is None)
        while freeze.advance(1000):
            pass
        base = None if loaded is None else loaded.manifest
        manifest = store.publish(0, Contents(freeze.columns, freeze.memory, image.count(), base), created=2)
        again = store.newest(0)
        assert again is not None
        assert again.manifest == manifest
        assert self._network.replayed(0, again).digest() == self._live

    def _load(self) -> tuple[int, bool]:
        """The offset of what is loaded, and whether all rows of read models came with it."""
        loaded = FileSnapshots(self.folder.parents[1], "social").newest(0)
        if loaded is None:
            return -1, False
        entities, memory, rows = self._states[loaded.memory.offset]
        found = _rows(loaded)
        assert (sorted(loaded.contents.entities), loaded.memory) == (entities, memory)
        assert loaded.memory.offset == loaded.manifest.offset
        assert found.items() <= rows.items(), "rows are as they were published, or not there: then they are made anew"
        return loaded.manifest.offset, found == rows

    def _check_replays(self) -> None:
        """From every snapshot, and from none, the log leads to the live image. So equal contents are enough below."""
        assert self._network.replayed(0).digest() == self._live
        for manifest in self.store.manifests(0):
            loaded = self.store.read(manifest)
            assert self._network.replayed(0, loaded).digest() == self._live
            self._states[manifest.offset] = sorted(loaded.contents.entities), loaded.memory, _rows(loaded)
        assert all(rows for _, _, rows in self._states.values())


def _rows(loaded: Loaded) -> dict[str, bytes]:
    return {
        key: rows for columns in loaded.columns for key, rows in zip(columns.keys, columns.rows, strict=False) if rows
    }


# Any file


def _any_file(folder: Path, rng: Random) -> Path:
    """Mostly one that the newest snapshot needs."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)
    readable = _readable(folder)
    if not readable or rng.random() < 0.2:
        return rng.choice(files)
    path, manifest = readable[-1]
    return rng.choice([path, *(file for file in files if file.relative_to(folder).parts[0] in manifest.folders)])


def _any_manifest(folder: Path, rng: Random) -> Path:
    """Mostly the newest of those that can be read."""
    paths = [path for path, _ in _readable(folder)]
    return paths[-1] if rng.random() < 0.8 else rng.choice(paths)


def _readable(folder: Path) -> list[tuple[Path, Manifest]]:
    found = []
    for path in sorted(folder.glob("*.json")):
        with suppress(Corrupt, OSError):
            found.append((path, Manifest.decode(path.read_bytes())))
    return found


def flip(folder: Path, rng: Random) -> str:
    path = _any_file(folder, rng)
    data = bytearray(path.read_bytes())
    place, bit = rng.randrange(len(data)), rng.randrange(8)
    data[place] ^= 1 << bit
    path.write_bytes(data)
    return f"{path.name} byte {place} bit {bit}"


def truncate(folder: Path, rng: Random) -> str:
    path = _any_file(folder, rng)
    data = path.read_bytes()
    end = rng.choice([0, 1, len(data) - 1, rng.randrange(len(data))])
    path.write_bytes(data[:end])
    return f"{path.name} to {end} of {len(data)}"


def grow(folder: Path, rng: Random) -> str:
    path = _any_file(folder, rng)
    more = rng.choice([b" ", b"\0" * 4096, rng.randbytes(rng.randrange(1, 99)), path.read_bytes()])
    path.write_bytes(path.read_bytes() + more)
    return f"{path.name} by {len(more)}"


def blank(folder: Path, rng: Random) -> str:
    """A sector that reads as zeros."""
    path = _any_file(folder, rng)
    data = bytearray(path.read_bytes())
    start = rng.randrange(len(data))
    data[start : start + 512] = bytes(len(data[start : start + 512]))
    path.write_bytes(data)
    return f"{path.name} from {start}"


def garbage(folder: Path, rng: Random) -> str:
    path = _any_file(folder, rng)
    data = rng.choice([rng.randbytes(200), b"[" * 100_000, b'{"format":2}', b"PAR1", b"null", b"\xff\xfe", b'"' * 999])
    path.write_bytes(data)
    return f"{path.name} is {data[:12]!r}"


def swap(folder: Path, rng: Random) -> str:
    """Two files of one name: parts of two snapshots, or two manifests."""
    path = _any_file(folder, rng)
    same = [p for p in sorted(folder.rglob("*")) if p.is_file() and (p.name == path.name or p.suffix == path.suffix)]
    other = rng.choice(same)
    data, other_data = path.read_bytes(), other.read_bytes()
    path.write_bytes(other_data)
    other.write_bytes(data)
    return f"{path.relative_to(folder)} and {other.relative_to(folder)}"


def remove(folder: Path, rng: Random) -> str:
    path = rng.choice([_any_file(folder, rng), *(p for p in sorted(folder.iterdir()) if p.is_dir())])
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    return str(path.relative_to(folder))


def obstruct(folder: Path, rng: Random) -> str:
    """A folder or a link to nowhere where a file should be."""
    path = _any_file(folder, rng)
    path.unlink()
    if rng.random() < 0.5:
        path.mkdir()
    else:
        path.symlink_to(folder / "nowhere")
    return f"{path.relative_to(folder)}"


# Manifests


def misname(folder: Path, rng: Random) -> str:
    """A stale manifest under the name of a newer snapshot, with that snapshot's parts or without."""
    path = _any_manifest(folder, rng)
    name = f"{rng.choice([7, 70, 10**9, 10**14]):015}-{rng.randbytes(4).hex()}"
    shutil.copy(path, folder / f"{name}.json")
    if rng.random() < 0.5:
        shutil.copytree(path.with_suffix(""), folder / name)
    return f"{path.name} as {name}"


def orphan(folder: Path, rng: Random) -> str:
    """A stale manifest: its snapshot is gone, in whole or in part."""
    path = _any_manifest(folder, rng)
    named = sorted(Manifest.decode(path.read_bytes()).folders)
    gone = rng.sample(named, rng.randint(1, len(named)))
    for name in gone:
        shutil.rmtree(folder / name)
    return f"{path.name} without {', '.join(gone)}"


def foreign(folder: Path, rng: Random) -> str:
    """A manifest that is well sealed, and of something else."""
    fields = rng.choice([{"app": "banking"}, {"partition": 1}, {"partition": -1}, {"offset": 3}, {"format": 3}])
    path = _any_manifest(folder, rng)
    _seal(path, fields)
    return f"{path.name} with {fields}"


_ABSURD = [-1, 0, 2**31, 2**63 - 1, 2**63, 10**30]


def absurd(folder: Path, rng: Random) -> str:
    """Absurd numbers, sealed or not."""
    path = _any_manifest(folder, rng)
    raw = json.loads(path.read_text())
    value = rng.choice(_ABSURD)
    if rng.random() < 0.7:
        part, field = rng.choice(raw["parts"]), rng.choice(["size", "rows"])
        part[field] = value
    else:
        field = rng.choice(["offset", "entities", "changed", "created", "epoch", "app_version"])
        raw[field] = value
    return _write_raw(path, raw, sealed=rng.random() < 0.7) + f" with {field} {value}"


def misorder(folder: Path, rng: Random) -> str:
    """Its parts in another order, twice, of another kind or elsewhere; sealed."""
    path = _any_manifest(folder, rng)
    raw = json.loads(path.read_text())
    before, parts = json.dumps(raw["parts"]), raw["parts"]
    match rng.randrange(5):
        case 0:
            rng.shuffle(parts)
        case 1:
            parts[0]["name"] = rng.choice(["../../../etc/passwd", "/etc/passwd", "", "x" * 5000, "a\0b"])
        case 2:
            parts[0]["kind"] = "memory"
        case 3:
            parts.clear()
        case 4:
            parts.pop()
    if json.dumps(parts) == before:
        return "nothing"
    return _write_raw(path, raw, sealed=True)


def reform(folder: Path, rng: Random) -> str:
    """Parts of a form that this Engram does not know; sealed."""
    path = _any_manifest(folder, rng)
    raw = json.loads(path.read_text())
    rng.choice(raw["parts"])["form"] = rng.choice(["parquet-json-2", "pickle", "?" * 1000])
    return _write_raw(path, raw, sealed=True)


def forge(folder: Path, rng: Random) -> str:
    """A part is changed, and its checksum and the seal with it: only the digest can tell."""
    path = _any_manifest(folder, rng)
    raw = json.loads(path.read_text())
    part = rng.choice(raw["parts"])
    file = folder / part["name"]
    data = bytearray(file.read_bytes())
    for _ in range(rng.randint(1, 3)):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    file.write_bytes(data)
    part["sha256"] = hashlib.sha256(data).hexdigest()
    return _write_raw(path, raw, sealed=True) + f" {part['kind']}"


def misread(folder: Path, rng: Random) -> str:
    """Rows of read models are changed, or no JSON at all, in a part that is well-formed; with its checksum, sealed."""
    path = _any_manifest(folder, rng)
    raw = json.loads(path.read_text())
    part = rng.choice(raw["parts"][:-1])
    file = folder / part["name"]
    table = pq.read_table(file)
    rows = table["rows"].to_pylist()
    for place in rng.sample(range(len(rows)), rng.randint(1, len(rows))):
        rows[place] = rng.choice(
            ["{", "[]", "null", "7", '{"a":', rows[0], (rows[place] or "").replace("user1", "user2") + " "]
        )
    metadata = rng.choice([table.schema.metadata, None])
    table = table.set_column(4, "rows", pa.array(rows, pa.string())).replace_schema_metadata(metadata)
    pq.write_table(table, file)
    part["size"], part["sha256"] = file.stat().st_size, hashlib.sha256(file.read_bytes()).hexdigest()
    return _write_raw(path, raw, sealed=True) + f" {part['name']}"


def _seal(path: Path, fields: dict[str, Any]) -> None:
    _write_raw(path, {**json.loads(path.read_text()), **fields}, sealed=True)


def _write_raw(path: Path, raw: dict[str, Any], *, sealed: bool) -> str:
    text = json.dumps(raw)
    if sealed:
        text = Manifest.model_validate_json(text).sealed().encode().decode()
    path.write_text(text)
    return path.name


MUTATIONS: dict[str, Callable[[Path, Random], str]] = {
    mutation.__name__: mutation
    for mutation in (
        flip,
        truncate,
        grow,
        blank,
        garbage,
        swap,
        remove,
        obstruct,
        misname,
        orphan,
        foreign,
        absurd,
        misorder,
        reform,
        forge,
        misread,
    )
}
