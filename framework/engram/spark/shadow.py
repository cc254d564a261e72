"""A new version of an app over the real log, beside the old one, as a Spark job: a task for each partition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import NamedTuple

from engram.codec.codec import Codec
from engram.errors import Misuse
from engram.image.image import Image
from engram.log.open import open_log
from engram.log.scan import scan
from engram.shard.reference import resolve_app_at
from engram.shard.shadow import Difference, Kind, Shadow
from engram.snapshots.base import SnapshotStore
from engram.snapshots.open import open_store
from engram.spark.batch import Run, run_batch
from engram.spark.progress import Progress, Tell
from engram.spark.spark import Spark


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowJob:
    """Which apps, over which log, from where. `old_path` is the folder of the old version's code, if that has the same
    module names as the new one's. `ends` is where each partition's comparison ends."""

    old: str
    new: str
    old_path: str
    log: str
    snapshots: str
    savepoint: str
    ends: tuple[int, ...]
    examples: int

    def __call__(self, partition: int, tell: Tell) -> Compared:
        """Runs in an executor."""
        old, new = resolve_app_at(self.old, self.old_path), resolve_app_at(self.new)
        store = open_store(self.snapshots, old.name, create=False) if self.savepoint else None
        images = [Image(partition, Codec(app)) for app in (old, new)]
        if store is not None:
            for image in images:
                _load(image, store, self.savepoint)
        shadow = Shadow(*images, examples=self.examples)
        begin, end = images[0].offset, self.ends[partition]
        with closing(open_log(self.log, old.name)) as log:
            for record in scan(log, partition, begin, end):
                if not shadow.handle(record):
                    break
                tell(record.offset - begin, end - begin + 1)  # one more for what comes at the end
        shadow.finish()
        tell(end - begin + 1, end - begin + 1)
        records = images[0].offset - begin
        return Compared(partition, records, shadow.foreign, shadow.compared, shadow.different, shadow.examples)


class Compared(NamedTuple):
    """What came out for a partition, or for all of them."""

    partition: int
    records: int
    foreign: int
    compared: Counter[tuple[Kind, str]]
    different: Counter[tuple[Kind, str]]
    examples: list[Difference]


def compare_versions(
    spark: Spark, job: ShadowJob, *, on_progress: Callable[[Progress], None], run: Run = run_batch
) -> list[Compared]:
    """The comparison of each partition. Nothing is written anywhere: run again, it says the same."""
    return run(spark, list(range(len(job.ends))), job, on_progress=on_progress)


def _load(image: Image, store: SnapshotStore, savepoint: str) -> None:
    manifest = store.savepoint(image.partition, savepoint)
    if manifest is None:
        raise Misuse(
            f"Partition {image.partition} has no savepoint {savepoint}: `engram snapshot list` shows what there is."
        )
    loaded = store.read(manifest)
    image.load_encoded(loaded.columns, loaded.memory)
