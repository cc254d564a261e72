"""Recoveries in processes of their own."""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from engram.clock import system_clock
from engram.log.open import open_log
from engram.shard.garbage import collect_rarely
from engram.shard.policy import Policy
from engram.shard.shard import Shard
from engram.snapshots.files import FileSnapshots
from engram.testing.silence import Silence

from bench.quiet import errors_only
from bench.workload import app

_DEADLINE_S = 120.0


class Recovered(NamedTuple):
    load_s: float
    entities: int
    replay_s: float
    total_s: float


def recovered(url: str, folder: Path) -> Recovered:
    """How long a new owner of partition 0 takes, with the snapshots that are in `folder`."""
    found: Recovered = _in_a_process(_recover, url, folder)
    return found


def snapshot_taken(url: str, folder: Path) -> None:
    """Puts a snapshot of all that is in the log into `folder`."""
    _in_a_process(_take, url, folder)


def _in_a_process(work: Any, url: str, folder: Path) -> Any:
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    process = spawn.Process(target=work, args=(there, url, folder))
    process.start()
    if not here.poll(_DEADLINE_S):
        process.kill()
        raise SystemExit(f"The recovery took longer than {_DEADLINE_S:.0f} s.")
    found = here.recv()
    process.join()
    return found


def _recover(line: Connection, url: str, folder: Path) -> None:
    shard = _shard(url, folder)
    collect_rarely()
    shard.recover()
    figures = shard.owned[0].recovery
    assert figures is not None
    line.send(Recovered(figures.load_ms / 1000, figures.entities, figures.replay_ms / 1000, figures.total_ms / 1000))
    shard.close()


def _take(line: Connection, url: str, folder: Path) -> None:
    shard = _shard(url, folder)
    shard.recover()
    shard.begin_snapshot(0)
    while not shard.owned[0].taking.published:
        shard.step(wait=False)
    shard.close()
    line.send(None)


def _shard(url: str, folder: Path) -> Shard:
    errors_only()
    return Shard(
        app,
        number=0,
        partitions=[0],
        log=open_log(url, app.name),
        store=FileSnapshots(folder, app.name),
        transport=Silence(),
        clock=system_clock,
        owner="bench-recovery",
        policy=Policy(snapshot_every=10**12),
        background=True,
    )
