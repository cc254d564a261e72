"""A shard as a Spark task: what runs in the executor's Python process."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from engram.clock import system_clock
from engram.image.home import Cold
from engram.log.open import open_log
from engram.shard.policy import Policy
from engram.shard.reference import resolve_app
from engram.shard.requests import Transport
from engram.shard.shard import Shard
from engram.shard.spill import Spill
from engram.snapshots.open import open_store
from engram.spark.worker import prepare_worker
from engram.tracing import flush_spans, start_tracing


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSpec:
    """All that a task needs to become a shard. Travels to the executors with the job.

    `snapshots` is the store's URL, `keep` how many of each partition stay there, and `copy` the folder for a copy of it
    on the machine that a task runs on.
    `connect` makes the shard's transport in the executor's process, from the registry's address. `spill` is a folder of
    the executor's machine; its own temporary one if it is empty.
    """

    app: str
    path: tuple[str, ...]
    log: str
    snapshots: str
    keep: int
    copy: str
    shards: int
    registry: str
    connect: Callable[[str], Transport]
    policy: Policy
    spill: str = ""

    def __call__(self, number: int, _rows: Iterable[int]) -> Iterator[int]:
        """Runs shard `number` for as long as the application lives."""
        prepare_worker(self.path)
        app = resolve_app(self.app)
        start_tracing(app.name)
        log = open_log(self.log, app.name)
        shard = Shard(
            app,
            number=number,
            partitions=range(number, log.partitions, self.shards),
            log=log,
            store=open_store(self.snapshots, app.name, keep=self.keep, copy=Path(self.copy)),
            transport=self.connect(self.registry),
            clock=system_clock,
            owner=f"{number}-{secrets.token_hex(4)}",
            policy=self.policy,
            cold=self._cold,
            background=True,
        )
        try:
            shard.run()
        finally:
            flush_spans()  # Spark ends its workers without asking them
        yield number

    def _cold(self) -> Cold:
        """A place for encoded entities: on the disk of the executor's machine only if there may be many."""
        if not self.policy.hot_entities:
            return {}
        return Spill(Path(self.spill or tempfile.gettempdir()))
