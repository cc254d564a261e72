"""How fast does an image come back, from the beginning of the log and from a snapshot?

The same commands, on the same SQLite log: handled live by a shard that has recovered already, and replayed by a new one
in a process of its own, from the beginning, and after a snapshot in which all tweets are and none of these commands.
"""

from __future__ import annotations

import random
import statistics
import tempfile
from pathlib import Path

from engram.log.open import open_log

from bench.recovery import Recovered, recovered, snapshot_taken
from bench.result import Aim, Result, Row
from bench.shards import shards
from bench.workload import BATCH, Sender, app, every_tweet, traffic

TWEETS = 200_000
MEASURED = 400_000
REPETITIONS = 3


def measure() -> Result:
    rng = random.Random(13)
    live: list[float] = []
    zero: list[Recovered] = []
    after: list[Recovered] = []
    for _ in range(REPETITIONS):
        with tempfile.TemporaryDirectory(prefix="engram-bench-") as name:
            folder = Path(name)
            url = f"sqlite:{folder}/log.db"
            log = open_log(url, app.name, partitions=1, create=True)
            sender = Sender()
            log.append(sender.entries(list(every_tweet(TWEETS))))
            snapshot_taken(url, folder / "kept")
            with shards(url, 1, folder / "live") as running:
                log.append(sender.entries(list(traffic(rng, MEASURED, tweets=TWEETS))))
                live.append(MEASURED / running.seconds())
            log.close()
            zero.append(recovered(url, folder / "none"))
            after.append(recovered(url, folder / "kept"))
    result = Result(
        f"Replay: {TWEETS:,} tweets, then {REPETITIONS} x {MEASURED:,} commands, {BATCH} a record, one partition"
    )
    replayed = [(TWEETS + MEASURED) / each.replay_s for each in zero]
    result.rows += [
        Row.of("live", live, "commands/s"),
        Row.of("replay from the beginning", replayed, "commands/s"),
        Row.of("replay after a snapshot of all tweets", [MEASURED / each.replay_s for each in after], "commands/s"),
        Row.of("load of that snapshot", [each.entities / each.load_s for each in after], "entities/s"),
        Row.of("whole recovery from the beginning", [each.total_s for each in zero], "s"),
        Row.of("whole recovery from the snapshot", [each.total_s for each in after], "s"),
    ]
    ratio = round(statistics.median(a / b for a, b in zip(replayed, live, strict=True)), 3)
    result.aims.append(Aim("replay from the beginning over live", ">= 1", ratio, ratio >= 1))
    return result
