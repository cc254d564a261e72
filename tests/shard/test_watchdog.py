"""The watchdog: a handler that does not return is reported with its stack, and nothing is done to it."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
from engram import Command
from engram.image.running import running_in
from engram.image.timers import FIRED_AT_ONCE
from engram.shard.policy import Policy
from engram.shard.requests import PartitionStatus
from engram.shard.shard import Shard
from engram.shard.watchdog import Watchdog
from structlog.testing import capture_logs

from tests.shard.gates import GATES, Pass, Spin, Wait, WaitLater, app
from tests.shard.network import MemoryTransport, Network

LIMIT = 0.2
SECONDS = 20.0

Told = list[dict[str, Any]]


def eventually(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline, "it did not come true in time"
        threading.Event().wait(0.01)


class Alive:
    """A shard of all partitions on a thread of its own, with a watchdog, as in a Spark task."""

    def __init__(self, network: Network, *, limit: float = LIMIT) -> None:
        self.line = MemoryTransport("memory:alive")
        self._shard = Shard(
            app,
            number=0,
            partitions=range(network.log.partitions),
            log=network.log,
            store=network.store,
            transport=self.line,
            clock=network.clock,
            owner="alive",
            policy=Policy(stuck_after=limit),
            background=True,
        )
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        if self._shard.recover():
            while not self._ended.wait(0.001) and self._shard.step(wait=False):
                pass
        self._shard.close()

    @property
    def serves(self) -> bool:
        owned = list(self._shard.owned.values())
        return len(owned) == 2 and all(of.state == "serving" for of in owned)

    def at(self, partition: int) -> int:
        """The offset of the record that is handled next."""
        return self._shard.owned[partition].image.offset

    def stuck(self) -> PartitionStatus | None:
        """The partition that was last announced as stuck, by the watchdog."""
        announced = self.line.announced_for
        return next((p for p in announced[-1].partitions if p.stuck is not None), None) if announced else None

    def end(self) -> None:
        self._ended.set()
        self._thread.join(SECONDS)
        assert not self._thread.is_alive()


@pytest.fixture
def told() -> Iterator[Told]:
    """What is logged, by any thread."""
    with capture_logs() as lines:
        yield lines


@pytest.fixture
def network(told: Told) -> Iterator[Network]:
    """Two partitions in memory; at the end all gates are open and all shards gone."""
    GATES.clear()
    made = Network(2, app=app)
    yield made
    made.close()


@pytest.fixture
def start(network: Network) -> Iterator[Callable[..., Alive]]:
    started: list[Alive] = []

    def start_one(*, recovered: bool = True, **how: Any) -> Alive:
        started.append(Alive(network, **how))
        if recovered:
            eventually(lambda: started[-1].serves)
        return started[-1]

    yield start_one
    for gate in GATES.values():
        gate.set()
    for alive in started:
        alive.end()


def named(told: Told, event: str) -> Told:
    return [line for line in told if line["event"] == event]


# Found


@pytest.mark.parametrize(
    ("command", "line"),
    [(Wait(gate="g"), "GATES[self.gate].wait()"), (Spin(gate="g"), "run_in_circles(GATES[self.gate])")],
    ids=["blocked", "in circles"],
)
def test_a_handler_that_does_not_return_is_reported_with_its_stack(
    network: Network, start: Callable[..., Alive], told: Told, command: Command[Any, Any], line: str
):
    """The report has the position, the command's name and key, for how long, and the stack from the handler on."""
    start()
    position = network.send("ada", command)
    eventually(lambda: named(told, "handler_stuck"))
    report = named(told, "handler_stuck")[0]

    assert (report["log_level"], report["position"]) == ("error", str(position))
    assert (report["command"], report["key"]) == (command.__engram__.name, "ada")
    assert LIMIT <= report["seconds"] < SECONDS
    first, source, *_ = report["stack"].splitlines()
    assert first.endswith("in handle")
    assert source.strip() == line
    assert "image.py" not in report["stack"]


def test_a_handler_that_returns_in_time_is_not_reported(network: Network, start: Callable[..., Alive], told: Told):
    """A shard that goes from one record to the next is not stuck, however long it runs."""
    alive = start(limit=0.05)
    until = time.monotonic() + 0.5
    while time.monotonic() < until:
        network.send("ada", Pass())
        eventually(lambda: alive.at(network.home("ada")) == network.log.end(network.home("ada")))

    assert (named(told, "handler_stuck"), alive.line.announced_for) == ([], [])


def test_the_command_of_a_batch_is_named(network: Network, start: Callable[..., Alive], told: Told):
    """Of many commands in a record, the report says which one it is."""
    start()
    batch = [network.envelope("ada", Pass()), network.envelope("ada", Pass()), network.envelope("ada", Wait(gate="g"))]
    position = network.send_all([*batch, network.envelope("ada", Pass())])[2]
    eventually(lambda: named(told, "handler_stuck"))

    assert named(told, "handler_stuck")[0]["position"] == str(position)
    assert position.index == 2


def test_the_command_of_a_timer_is_named(network: Network, start: Callable[..., Alive], told: Told):
    """It is in no record: the report has its index below 0, its name and its key all the same."""
    start()
    network.send("ada", WaitLater(gate="g"))
    eventually(lambda: network.log.end(network.home("ada")) == 2)
    network.clock.now += 10
    eventually(lambda: named(told, "handler_stuck"))
    report = named(told, "handler_stuck")[0]

    assert (report["position"], report["command"]) == (f"{network.home('ada')}:2.{-FIRED_AT_ONCE}", "wait")
    assert report["key"] == "ada"


def test_a_handler_is_found_during_recovery(network: Network, start: Callable[..., Alive], told: Told):
    """A record that a shard got stuck at holds up its successor's replay, and is reported there again."""
    position = network.send("ada", Wait(gate="g"))
    alive = start(recovered=False)
    eventually(alive.stuck)
    assert named(told, "handler_stuck")[0]["position"] == str(position)
    GATES["g"].set()
    eventually(lambda: alive.serves)
    assert alive.at(network.home("ada")) == position.offset + 2


def test_a_thread_that_handles_nothing_runs_no_command():
    """Nothing is made up for a stack without a handler."""
    assert running_in(sys._getframe()) is None


# Told


def test_the_registry_is_told_in_place_of_the_shard(network: Network, start: Callable[..., Alive]):
    """The partition is stuck, with the stack; the other one of the shard is as it was, and named as waiting."""
    alive = start()
    key = network.key_in(1)
    position = network.send(key, Wait(gate="g"))
    eventually(alive.stuck)
    status = alive.line.announced_for[-1]
    other, stuck = status.partitions

    assert (other.state, other.stuck, stuck.state) == ("serving", None, "stuck")
    assert stuck.stuck is not None
    assert "in handle" in stuck.stuck.stack
    assert stuck.problem == (
        f"The handling of wait for {key!r} at {position} has not ended for {stuck.stuck.seconds:.0f} s. "
        "All of shard 0 waits for it, partition 0 too."
    )
    assert (status.owner, status.address) == ("alive", "memory:alive")


def test_it_is_said_again_with_growing_pauses(network: Network, start: Callable[..., Alive], told: Told):
    """Each report comes after twice the time of the one before; the registry hears of it at every look."""
    alive = start(limit=0.1)
    network.send("ada", Wait(gate="g"))
    eventually(lambda: len(named(told, "handler_stuck")) == 4)
    seconds = [report["seconds"] for report in named(told, "handler_stuck")]

    assert all(later >= 1.8 * earlier for earlier, later in pairwise(seconds))
    assert len(alive.line.announced_for) > 2 * len(seconds)


def test_a_handler_that_returns_after_all_is_told_and_the_shard_goes_on(
    network: Network, start: Callable[..., Alive], told: Told
):
    """Nothing was done to it: it ends as it would have, what waited behind it is handled, the status is as before."""
    alive = start()
    network.send("ada", Wait(gate="g"))
    position = network.send("ada", Pass())
    eventually(alive.stuck)
    GATES["g"].set()
    eventually(lambda: named(told, "handler_returned"))
    said = len(alive.line.announced_for)
    network.clock.now += 1000
    eventually(lambda: alive.line.announced[-1].partitions[network.home("ada")].offset == position.offset + 1)

    (returned,) = named(told, "handler_returned")
    before = position._replace(offset=position.offset - 1)
    assert (returned["position"], returned["command"], returned["key"]) == (str(before), "wait", "ada")
    assert returned["seconds"] >= LIMIT
    assert {p.state for p in alive.line.announced[-1].partitions} == {"serving"}
    assert {p.stuck for p in alive.line.announced[-1].partitions} == {None}
    assert len(alive.line.announced_for) == said


def test_the_end_is_told_though_nothing_follows(network: Network, start: Callable[..., Alive], told: Told):
    """The watchdog sees that the shard has nothing in hand any more."""
    alive = start()
    network.send("ada", Wait(gate="g"))
    eventually(alive.stuck)
    GATES["g"].set()
    eventually(lambda: named(told, "handler_returned"))

    assert alive.at(network.home("ada")) == network.log.end(network.home("ada"))


def test_the_outcome_is_that_of_a_handler_that_was_not_watched(network: Network, start: Callable[..., Alive]):
    """A replay without a watchdog comes to the same."""
    alive = start()
    network.send("ada", Wait(gate="g"))
    network.send("ada", Spin(gate="g"))
    eventually(alive.stuck)
    GATES["g"].set()
    home = network.home("ada")
    eventually(lambda: alive.at(home) == network.log.end(home))

    assert network.replayed(home).digest() == alive._shard.owned[home].image.digest()


def test_a_failure_to_announce_does_not_end_the_watchdog(told: Told, network: Network):
    """It is logged, and the next look may do better."""
    attempts: list[int] = []

    def fail() -> Any:
        attempts.append(1)
        raise OSError("no line")

    owner = network.start()
    watchdog = Watchdog(owner.shard.owned, limit=0.02, status=owner.shard.status, announcer=fail)
    network.send("ada", Wait(gate="g"))

    def handle() -> None:
        watchdog.start()
        network.settle(owner)

    thread = threading.Thread(target=handle)
    thread.start()
    eventually(lambda: len(attempts) > 2)
    GATES["g"].set()
    thread.join(SECONDS)
    watchdog.close()

    assert named(told, "watchdog_failed")


# A handler that lets no other thread run

_HOLDING = """
import re, sys
from dataclasses import dataclass
from engram import App, Command, Context, Entity
from tests.shard.network import MemoryTransport, Network
from engram.shard.policy import Policy
from engram.shard.shard import Shard

@dataclass(slots=True, kw_only=True)
class Text(Entity, name="text"):
    found: bool = False

class Search(Command[Text, None], name="search"):
    def handle(self, text: Text, ctx: Context) -> None:
        text.found = bool(re.match("(a+)+$", "a" * 60 + "b"))

app = App("texts", commands=[Search])
network = Network(1, app=app)
network.send("ada", Search())
shard = Shard(app, number=0, partitions=[0], log=network.log, store=network.store, transport=MemoryTransport("m"),
              clock=network.clock, owner="o", policy=Policy(stuck_after=0.3), background=True)
shard.recover()
"""


def test_a_handler_that_lets_no_thread_run_leaves_its_stack_on_stderr():
    """A regular expression without end holds the whole interpreter; its stack is written without Python's help."""
    process = subprocess.Popen([sys.executable, "-c", _HOLDING], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        lines: list[str] = []
        for line in iter(process.stderr.readline, ""):
            lines.append(line.strip())
            if "in handle" in line:
                break
    finally:
        process.kill()
        process.wait()
        process.stderr.close()

    assert any(line.endswith("in handle") for line in lines), lines
