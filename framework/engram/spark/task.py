"""A shard as a Spark task: what runs in the executor's Python process."""

from __future__ import annotations

import secrets
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from engram.clock import system_clock
from engram.log.open import open_log
from engram.shard.reference import resolve_app
from engram.shard.requests import Transport
from engram.shard.shard import Policy, Shard
from engram.snapshots.files import FileSnapshots
from engram.telemetry import log_to_stderr


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSpec:
    """All that a task needs to become a shard. Travels to the executors with the job.

    `connect` makes the shard's transport in the executor's process, from the registry's address.
    """

    app: str
    path: tuple[str, ...]
    log: str
    snapshots: str
    shards: int
    registry: str
    connect: Callable[[str], Transport]
    policy: Policy

    def __call__(self, number: int, _rows: Iterable[int]) -> Iterator[int]:
        """Runs shard `number` for as long as the application lives."""
        self._prepare_process()
        app = resolve_app(self.app)
        log = open_log(self.log, app.name)
        shard = Shard(
            app,
            number=number,
            partitions=range(number, log.partitions, self.shards),
            log=log,
            store=FileSnapshots(Path(self.snapshots), app.name),
            transport=self.connect(self.registry),
            clock=system_clock,
            owner=f"{number}-{secrets.token_hex(4)}",
            policy=self.policy,
            background=True,
        )
        shard.run()
        yield number

    def _prepare_process(self) -> None:
        # Ctrl-C reaches the whole process group; the driver decides what it means.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for entry in reversed(self.path):
            if entry not in sys.path:
                sys.path.insert(0, entry)
        log_to_stderr()
