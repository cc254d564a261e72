"""A storm: load on an app on Spark over three Kafka brokers, which lose their leaders, stall, and shards that die.

Afterwards everything is compared: what clients were told, the live state, the log as an independent reader finds it, a
replay from zero in another process, and the events as another system reads them.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engram import App, Client, Unavailable
from engram.codec.record import CommandsHeader
from engram.dev.kafka import Brokers
from engram.log.kafka import clients
from engram.log.kafka.settings import parse_kafka_url
from engram.log.open import open_log
from engram.log.partitioner import partition_of
from engram.testing.history import Logged, Recorder, RecordingClient, check, commands_in
from kafka import TopicPartition

from tests.chaos.ledger import TALLIES, Add, Counted, Entries, app
from tests.testing.recorded import Ledgers

ROOT = Path(__file__).parents[2]
PARTITIONS = 4
SHARDS = 2
TOPIC = "storm"
LEDGER = "tests.chaos.ledger:app"
_START_S = 120.0
_SETTLE_S = 120.0
# How long the load is looked at before a fault.
_WINDOW_S = 3.0


class LoadHadStopped(AssertionError):
    """The load was not what it should be when a fault came: the run shows nothing."""


@dataclass
class Told:
    """What clients know: the numbers of each key that were acknowledged, and when."""

    numbers: dict[str, list[int]]
    moments: list[float] = field(default_factory=list)
    faults: list[tuple[str, float, float]] = field(
        default_factory=list
    )  # what, rate before it, seconds until load after it

    @property
    def acknowledged(self) -> int:
        return len(self.moments)

    def rate(self, seconds: float) -> float:
        since = time.monotonic() - seconds
        recent = 0
        for moment in reversed(self.moments):
            if moment < since:
                break
            recent += 1
        return recent / seconds


@contextmanager
def running(log: str, folder: Path, *options: str, app: str = LEDGER) -> Iterator[str]:
    """`engram run` on Spark; yields the address of its gateway."""
    command = [sys.executable, "-m", "engram.cli.main", "run", app, "--log", log, "--port", "0"]
    command += [
        "--json",
        "--shards",
        str(SHARDS),
        "--partitions",
        str(PARTITIONS),
        "--snapshots",
        str(folder / "snapshots"),
    ]
    process = subprocess.Popen([*command, *options], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        for line in process.stdout:
            told = json.loads(line)
            if told["event"] == "ready":
                yield told["url"]
                return
        raise AssertionError("the app did not start")
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=_START_S)


Fault = Callable[["Storm"], Awaitable[str]]


class Storm:
    """One run: writers, and the faults that are given, one after the other under load."""

    def __init__(self, brokers: Brokers, log: str, url: str, *, writers: int, least_rate: float) -> None:
        self.brokers = brokers
        self.log = log
        self.url = url
        self.told = Told({f"key{n}": [] for n in range(writers)})
        self.recorder = Recorder("storm")
        self._least_rate = least_rate
        self._stop = asyncio.Event()

    async def run(self, faults: list[Fault], say: Callable[[str], None]) -> None:
        async with RecordingClient(self.url, app, self.recorder, timeout=20, patience=120) as client:
            self.client = client
            writing = [asyncio.create_task(self._write(key, numbers)) for key, numbers in self.told.numbers.items()]
            for fault in faults:
                rate = await self._under_load(writing)
                before = self.told.acknowledged
                started = time.monotonic()
                what = await fault(self)
                await self._load_goes_on(before, writing)
                back = time.monotonic() - started
                self.told.faults.append((what, rate, back))
                say(f"{what}: {rate:.0f} commands/s before, load went on after {back:.1f} s")
                # The next fault is for a cluster that has got over this one.
                await asyncio.to_thread(self.brokers.wait_in_sync, _SETTLE_S)
            self._stop.set()
            await asyncio.gather(*writing)

    async def _write(self, key: str, acknowledged: list[int]) -> None:
        number = 0
        while not self._stop.is_set():
            count = await self.client.send(key, Add(number=number))
            acknowledged.append(number)
            self.told.moments.append(time.monotonic())
            number += 1
            assert count == number, f"{key} has {count} entries after {number}"

    async def _under_load(self, writing: list[asyncio.Task[None]]) -> float:
        """The rate over the last seconds, which must be that of real load; waits a while for it."""
        deadline = time.monotonic() + _SETTLE_S
        while (rate := self.told.rate(_WINDOW_S)) < self._least_rate:
            _raise_failures(writing)
            if time.monotonic() > deadline:
                for task in writing:
                    task.cancel()
                raise LoadHadStopped(
                    f"only {rate:.0f} commands/s before the fault, and {self._least_rate:.0f} are wanted"
                )
            await asyncio.sleep(0.2)
        return rate

    async def _load_goes_on(self, before: int, writing: list[asyncio.Task[None]]) -> None:
        async with asyncio.timeout(_SETTLE_S):
            while self.told.acknowledged < before + 2 * len(writing):
                _raise_failures(writing)
                await asyncio.sleep(0.05)

    # Faults

    def leader(self, partition: int) -> int | None:
        """None while there is none."""
        try:
            return self.brokers.leader(TOPIC, partition)
        except Unavailable:
            return None

    def loaded_partition(self) -> int:
        """The partition with the most keys under load."""
        return Counter(partition_of(key, PARTITIONS) for key in self.told.numbers).most_common(1)[0][0]


async def kill_leader(storm: Storm) -> str:
    """SIGKILL for the leader of a loaded partition; it is started again once somebody else leads."""
    partition = storm.loaded_partition()
    leader = storm.brokers.leader(TOPIC, partition)
    storm.brokers.kill(leader)
    await until(lambda: storm.leader(partition) not in (leader, None))
    storm.brokers.start(leader)
    return f"leader {leader} of partition {partition} killed"


def pause_leader(seconds: float) -> Fault:
    async def pause(storm: Storm) -> str:
        partition = storm.loaded_partition()
        leader = storm.brokers.leader(TOPIC, partition)
        storm.brokers.pause(leader)
        await asyncio.sleep(seconds)
        storm.brokers.resume(leader)
        return f"leader {leader} of partition {partition} paused for {seconds:.0f} s"

    return pause


async def kill_shard(storm: Storm) -> str:
    shards = (await storm.client.status())["shards"]
    victim = max(shards, key=lambda shard: sum(p["handled"] for p in shard["partitions"]))
    os.kill(victim["pid"], signal.SIGKILL)
    return f"shard {victim['shard']} killed"


async def until(holds: Callable[[], bool]) -> None:
    """Looks again and again, on another thread, until `holds`."""
    async with asyncio.timeout(_SETTLE_S):
        while not await asyncio.to_thread(holds):  # noqa: ASYNC110 - it is about another process
            await asyncio.sleep(0.2)


def _raise_failures(writing: list[asyncio.Task[None]]) -> None:
    for task in writing:
        if task.done():
            task.result()


# Comparing


async def compare(storm: Storm) -> dict[str, Any]:
    """Everything that must hold after the storm, with the figures; `AssertionError` for the first that does not."""
    told = storm.told.numbers
    afterwards = Recorder("afterwards")
    async with RecordingClient(storm.url, app, afterwards, timeout=20, patience=120) as client:
        live = {key: await client.ask(key, Entries()) for key in told}
        assert live == told, "an acknowledged command is not in the state once and in order"
        expected = sum(1 for numbers in told.values() for number in numbers if number % 10 == 0)
        counted = 0
        async with asyncio.timeout(_SETTLE_S):
            while counted < expected:
                counted = sum([await client.ask(f"tally{n}", Counted()) for n in range(TALLIES)])
        assert counted == expected, "a message came twice"
        digests = await digests_equal(client, storm.log)
    in_log = await asyncio.to_thread(_commands_in_log, storm.log)
    logged: dict[str, list[int]] = {key: [] for key in told}
    for key, number in in_log.values():
        logged[key].append(number)
    assert logged == told, "the log does not hold every acknowledged command once, in the order of its key"
    events = await asyncio.to_thread(_events_out, storm.log, told)
    history = [*storm.recorder.operations, *afterwards.operations]
    verdict = check(history, app, logged=await asyncio.to_thread(logged_commands, storm.log, app), model=Ledgers)
    verdict.raise_if_wrong()
    return {
        "acknowledged": storm.told.acknowledged,
        "in_log": len(in_log),
        "messages": expected,
        "operations_checked": verdict.commands + verdict.queries,
        "events": events,
        "digests_equal": digests,
    }


async def digests_equal(client: Client, log: str, app: str = LEDGER) -> bool:
    """Whether a replay from zero, by another process, gives the digests of the live state."""
    async with asyncio.timeout(_SETTLE_S):
        while True:
            shards = (await client.status(digests=True))["shards"]
            live = {p["partition"]: (p["offset"], p["digest"]) for shard in shards for p in shard["partitions"]}
            replayed = {p["partition"]: (p["records"], p["digest"]) for p in await asyncio.to_thread(_replay, log, app)}
            if {p: at for p, (at, _) in live.items()} == {p: at for p, (at, _) in replayed.items()}:
                assert live == replayed, "a replay from zero does not give the live state"
                return True


def logged_commands(log: str, app: App) -> dict[tuple[str, int], Logged]:
    """What a log has of clients' commands."""
    with closing(open_log(log, app.name)) as opened:
        return commands_in(opened, app)


def _replay(log: str, app: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "engram.cli.main", "replay", app, "--log", log, "--json"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    return list(json.loads(done.stdout)["partitions"])


def _commands_in_log(log: str) -> dict[tuple[str, int], tuple[str, int]]:
    """Key and number of every command on the topic, by session and sequence, as a plain consumer finds them.

    A command that was appended twice, because nobody knew whether the first try had succeeded, is one: it has one
    session and sequence, and the image handles it once. In the order of a key, its first append counts.
    """
    found: dict[tuple[str, int], tuple[str, int]] = {}
    for record in _topic(log, TOPIC):
        if dict(record.headers).get("engram") != b"commands":
            continue
        head, *lines = record.value.split(b"\n")
        header = CommandsHeader.read(head)
        bodies = [body for line in lines for body in json.loads(line)]
        for key, session, sequence, body in zip(header.keys, header.session, header.sequence, bodies, strict=True):
            found.setdefault((header.sessions[session], sequence), (key, body["number"]))
    return found


def _events_out(log: str, told: dict[str, list[int]]) -> int:
    """How many events a consumer that reads what is committed sees: each once, in its key's order, without a gap."""
    numbers: dict[str, list[int]] = {key: [] for key in told}
    ids = Counter()
    wanted = sum(map(len, told.values()))
    for record in _topic(log, f"{TOPIC}.events", wanted):
        headers = dict(record.headers)
        ids[headers["ce_id"]] += 1
        numbers[record.key.decode()].append(json.loads(record.value)["number"])
    assert not [i for i, count in ids.items() if count > 1], "an event is out twice"
    wrong = {
        key: f"{len(out)} of {len(told[key])} are out, the first that is wrong is {_first_difference(out, told[key])}"
        for key, out in numbers.items()
        if out != told[key]
    }
    assert not wrong, f"the events have a gap, or another order than the commands: {wrong}"
    return wanted


def _first_difference(one: list[int], other: list[int]) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _topic(log: str, topic: str, at_least: int = 0) -> Iterator[Any]:
    """The records of a topic up to its end as it is now; waits until there are so many."""
    consumer = clients.consumer(parse_kafka_url(log))
    places = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
    try:
        consumer.assign(places)
        for place in places:
            consumer.seek(place, 0)
        seen = 0
        deadline = time.monotonic() + _SETTLE_S
        while time.monotonic() < deadline:
            for records in consumer.poll(timeout_ms=500).values():
                seen += len(records)
                yield from records
            ends = consumer.end_offsets(places)
            if seen >= at_least and all(consumer.position(place) >= ends[place] for place in places):
                return
    finally:
        consumer.close()
