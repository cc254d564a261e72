"""Code epochs: old records must not be handled by new code unnoticed."""

from __future__ import annotations

from engram.codec.record import Epoch, Kind
from engram.errors import Misuse
from engram.log.base import Log
from engram.model.app import App
from engram.snapshots.base import SnapshotStore

_READ_RECORDS = 256


def check_code_epoch(app: App, log: Log, store: SnapshotStore) -> None:
    """Raises `Misuse` when records after the last snapshot belong to another version of the app."""
    for partition in range(log.partitions):
        newest = next(iter(store.manifests(partition)), None)
        offset = newest.offset if newest else 0
        version = newest.app_version if newest else 0
        foreign: dict[int, int] = {}
        while records := log.read(partition, offset, limit=_READ_RECORDS):
            for record in records:
                if record.kind is Kind.EPOCH:
                    version = Epoch.model_validate_json(record.payload).app_version
                elif record.kind.is_work and version not in (0, app.version):
                    foreign[version] = foreign.get(version, 0) + 1
            offset = records[-1].offset + 1
        if foreign:
            old, count = next(iter(foreign.items()))
            raise Misuse(
                f"This is version {app.version} of {app.name}, but {count} records of partition {partition} after "
                f"its last snapshot belong to version {old}. Run version {old} once more and stop it cleanly "
                f"(Ctrl-C): it takes a snapshot at its end. Then start version {app.version}."
            )
