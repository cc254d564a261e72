"""Code epochs: old records must not be handled by new code unnoticed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from engram.codec.record import Epoch, Kind
from engram.errors import Misuse
from engram.log.base import Log
from engram.log.scan import scan
from engram.model.app import App
from engram.snapshots.base import SnapshotStore
from engram.snapshots.manifest import Manifest


def check_code_epoch(app: App, log: Log, store: SnapshotStore, *, run: str = "engram run MODULE:APP --log URL") -> None:
    """Raises `Misuse` when records after the last snapshots were handled by another version of the app.

    `run` is how the app is started, for what it says.
    """
    foreign: Counter[int] = Counter()
    partitions = []
    for partition in range(log.partitions):
        found = handled_after(log, partition, next(iter(store.manifests(partition)), None))
        found.pop(app.version, None)
        foreign += found
        partitions += [str(partition)] if found else []
    if foreign:
        old = min(foreign)
        which = f"partition{'' if len(partitions) == 1 else 's'} {', '.join(partitions)}"
        were = "was" if foreign.total() == 1 else "were"
        raise Misuse(
            f"This is version {app.version} of {app.name}, but {_records(foreign.total())} of {which} after the last "
            f"snapshot {were} handled by {_versions(foreign)}. End version {old} with `engram savepoint`; if it is not "
            f"running, start it once more, with its own code (`{run}`), and end it so. Then start version "
            f"{app.version}. If the code of version {old} is gone, write version={old} into App(...) of this code for "
            "one such run: then its handlers decide what these records mean."
        )


def handled_after(
    log: Log,
    partition: int,
    snapshot: Manifest | None,
    *,
    see_epoch: Callable[[Epoch], None] = lambda _: None,
) -> Counter[int]:
    """How many records after a snapshot, or of the whole log, were handled by each version of the app.

    Those that were appended after the end of an epoch, or before the first, are the next owner's, if there is one.
    """
    offset = 0 if snapshot is None else snapshot.offset
    epoch = -1 if snapshot is None else snapshot.epoch
    version = 0 if snapshot is None else snapshot.app_version
    found: Counter[int] = Counter()
    unowned = 0
    for record in scan(log, partition, offset):
        if record.kind is Kind.EPOCH:
            word = Epoch.model_validate_json(record.payload)
            if word.counts_after(epoch):
                epoch, version = record.offset, word.app_version
                see_epoch(word)
        elif record.kind.is_work:
            unowned += 1
        if version and unowned:
            found[version] += unowned
            unowned = 0
    return found


def _versions(foreign: Counter[int]) -> str:
    if len(foreign) == 1:
        return f"version {next(iter(foreign))}"
    return "others: " + " and ".join(f"{count:,} by version {version}" for version, count in sorted(foreign.items()))


def _records(count: int) -> str:
    return f"{count:,} record{'' if count == 1 else 's'}"
