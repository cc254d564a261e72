"""A snapshot as it is read: part after part, the newest first, and verified on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from engram.errors import Corrupt
from engram.image.contents import EntityColumns, digest_with
from engram.snapshots.base import Loaded
from engram.snapshots.hashes import Hashes
from engram.snapshots.manifest import Manifest, PartEntry
from engram.snapshots.serializer import Serializers


class Reading:
    """The entities of a snapshot, each once, as often as one goes through them; its memory is read at once.

    In memory are a part and the keys of what has changed since the base, never all of it. `problem` is what was found
    to be wrong. With `keep_hashes`, `hashes` are there when all was gone through for the first time.
    """

    def __init__(
        self,
        manifest: Manifest,
        read: Callable[[PartEntry], bytes],
        serializers: Serializers,
        *,
        keep_hashes: bool = False,
    ) -> None:
        self._manifest = manifest
        self._read = read
        self._serializers = serializers
        self._keep_hashes = keep_hashes
        self.hashes: Hashes | None = None
        self.problem: Corrupt | None = None
        self._whole = False
        *_, of_memory = ordered(manifest)
        self._memory = serializers.of(of_memory).decode_memory(read(of_memory))
        # The digest leaves these out: they say who owned the partition, not what is in it.
        for name in ("offset", "epoch", "app_version"):
            found, said = getattr(self._memory, name), getattr(manifest, name)
            if found != said:
                raise Corrupt(f"its contents have {name} {found}, the manifest says {said}")

    @property
    def loaded(self) -> Loaded:
        return Loaded(self._manifest, self, self._memory)

    def __iter__(self) -> Iterator[EntityColumns]:
        hashes = Hashes(kept=self._keep_hashes)
        try:
            for columns in self._newest_rows():
                hashes.add(columns)
                yield columns
            self._check(hashes)
        except Corrupt as problem:  # ours: what goes wrong with whoever is given them is not raised here
            self.problem = problem
            raise
        self._whole = True
        if self._keep_hashes:
            self.hashes, self._keep_hashes = hashes, False

    def finish(self) -> None:
        """Returns when all of it was gone through, and is as it was published."""
        if not self._whole:
            for _ in self:
                pass

    def _newest_rows(self) -> Iterator[EntityColumns]:
        newer: dict[str, set[str]] = {}
        for number, step in reversed(list(enumerate(self._manifest.steps))):
            of_step: dict[str, set[str]] = {}
            for part in step:
                for columns in self._serializers.of(part).decode(self._read(part), newer):
                    if number:  # nothing is older than the base
                        of_step.setdefault(columns.entity, set()).update(columns.keys)
                    yield columns
            for entity, keys in of_step.items():
                newer.setdefault(entity, set()).update(keys)

    def _check(self, hashes: Hashes) -> None:
        manifest = self._manifest
        if hashes.count != manifest.entities:
            raise Corrupt(f"it has {hashes.count:,} entities, the manifest says {manifest.entities:,}")
        if manifest.digest and digest_with(hashes.total, self._memory) != manifest.digest:
            raise Corrupt(f"its contents do not have the digest {manifest.digest}")


def ordered(manifest: Manifest) -> list[PartEntry]:
    """Its parts: entities from the oldest to its own, then its own memory. Raises `Corrupt` for any others."""
    parts, own = manifest.parts, manifest.name
    kinds = [part.kind for part in parts]
    offsets = [part.name[:15] for part in parts]
    if kinds != ["entities"] * (len(parts) - 1) + ["memory"] or len(parts) < 2:
        raise Corrupt(f"its parts are {', '.join(kinds) or 'none'}, not entities and then memory")
    if offsets != sorted(offsets) or not parts[-2].name.startswith(f"{own}/"):
        raise Corrupt("its parts are not in their order")
    return parts
