"""Which snapshots stay: the last ones, every savepoint, and what these go on from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from engram.snapshots.manifest import Manifest

MANIFEST = ".json"
ASIDE = ".aside"  # a manifest that somebody has set aside: its folder stays
# A folder, a manifest, or what a crash in the middle of a write has left of one.
_OURS = re.compile(r"\.?(\d{15}-[0-9a-f]{8})(\.json(\.[0-9a-f]{8})?)?")


def superfluous(names: Iterable[str], manifests: Mapping[str, Manifest], verified: Manifest, *, keep: int) -> list[str]:
    """What may go of all names in a partition's folder, in the order in which it must.

    `manifests` are those that can be read, by name without suffix. The newest `keep` of them stay, every savepoint, and
    everything that is not older than `verified`, which was read back just now; and the folders that these name.
    Of a manifest that cannot be read, it and its own folder stay, for people to look at. Manifests go first: there is
    never one without its parts.
    """
    plain = [name for name, manifest in sorted(manifests.items(), reverse=True) if not manifest.savepoint]
    gone = {name for name in plain[keep:] if name < verified.name}
    return [f"{name}{MANIFEST}" for name in sorted(gone)] + unnamed(
        names, {name: manifest for name, manifest in manifests.items() if name not in gone}, gone, verified.name
    )


def unnamed(names: Iterable[str], manifests: Mapping[str, Manifest], gone: Iterable[str], before: str) -> list[str]:
    """Folders that no manifest names, and what crashes have left; older than `before`, because what is newer may be
    another owner's, with its manifest still to come."""
    names = list(names)
    published = {name.removesuffix(MANIFEST) for name in names if _is_manifest(name)} - set(gone)
    published |= {name.removesuffix(ASIDE) for name in names if name.endswith(ASIDE)}
    named = published.union(*(manifest.folders for manifest in manifests.values()))
    return [
        name for name in names if not _is_manifest(name) and (of := _owner(name)) and of not in named and of < before
    ]


def is_ours(name: str) -> bool:
    return _OURS.fullmatch(name) is not None


def _is_manifest(name: str) -> bool:
    return name.endswith(MANIFEST) and not name.startswith(".")


def _owner(name: str) -> str | None:
    """The snapshot that a folder or a half-written file is of."""
    found = _OURS.fullmatch(name)
    return found[1] if found else None
