"""One command that sends very many messages: each arrives once, whatever crashes, and what goes too far is stopped."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from engram import App, Command, Context, Entity, Event
from engram.codec.record import Kind, Origin
from engram.log.base import RECORD_BYTES, RECORD_COMMANDS
from engram.log.partitioner import partition_of
from engram.log.sqlite import SqliteLog
from engram.model.limits import Limits

from tests.shard.network import Faulty, Network, Owner
from tests.shard.societies import CutLog

ROOT = Path(__file__).parents[2]
PARTITIONS = 8
MESSAGES = 10_000
MANY = 100_000
INBOXES = 100
# What 100,000 messages may take on top of what the process has before; measured: 43 MiB.
MEMORY_MIB = 130


@dataclass(slots=True, kw_only=True)
class Hub(Entity, name="hub"):
    told: int = 0


@dataclass(slots=True, kw_only=True)
class Inbox(Entity, name="inbox"):
    got: list[int] = field(default_factory=list)


class Sent(Event, name="sent"):
    number: int


class Note(Command[Inbox, None], name="note"):
    number: int
    text: str = ""

    def handle(self, inbox: Inbox, ctx: Context) -> None:
        inbox.got.append(self.number)


class Tell(Command[Hub, int], name="tell"):
    """Sends so many notes to the inboxes in turn, and emits every thousandth."""

    times: int
    inboxes: int = INBOXES
    text: str = ""

    def handle(self, hub: Hub, ctx: Context) -> int:
        hub.told += 1
        for number in range(self.times):
            ctx.send(f"inbox{number % self.inboxes}", Note(number=number, text=self.text))
            if number % 1000 == 0:
                ctx.emit(Sent(number=number))
        return hub.told


class Answer(Command[Hub, None], name="answer"):
    """Is answered by the other, which is answered, and so on."""

    by: str

    def handle(self, hub: Hub, ctx: Context) -> None:
        hub.told += 1
        ctx.send(self.by, Answer(by=hub.key))


app = App("fan_out", commands=[Tell, Note, Answer], events=[Sent])
careful = App("fan_out", commands=[Tell, Note, Answer], events=[Sent], limits=Limits(1000, 1_000_000, 20))

# How many records the messages of each partition take.
RECORDS = [0] * PARTITIONS
for _partition, _count in Counter(partition_of(f"inbox{n % INBOXES}", PARTITIONS) for n in range(MESSAGES)).items():
    RECORDS[_partition] = -(-_count // RECORD_COMMANDS)


def one_after_the_other(appended: int) -> list[int]:
    """How many records of each partition are there when so many are: those of the first partition first."""
    return [max(0, min(count, appended - sum(RECORDS[:partition]))) for partition, count in enumerate(RECORDS)]


def in_turns(appended: int) -> list[int]:
    """The same when partitions take one record each, and then the next."""
    order = sorted((turn, partition) for partition, count in enumerate(RECORDS) for turn in range(count))
    there = Counter(partition for _, partition in order[:appended])
    return [there[partition] for partition in range(PARTITIONS)]


def inboxes(network: Network, owner: Owner, count: int = INBOXES) -> dict[str, list[int]]:
    """What every inbox has, in its order."""
    found = {}
    for key in (f"inbox{n}" for n in range(count)):
        inbox = owner.image(network.home(key)).entities["inbox"].get(key, Inbox(key=key))
        found[key] = list(cast("Inbox", inbox).got)
    return found


def each_once(messages: int = MESSAGES, count: int = INBOXES) -> dict[str, list[int]]:
    return {f"inbox{n}": list(range(n, messages, count)) for n in range(count)}


def check_fan_out(network: Network, owner: Owner) -> None:
    """Every receiver has each message once and in order, every event is out once, and a replay says the same."""
    assert inboxes(network, owner) == each_once()
    hub = network.home("hub")
    events = network.log.events(hub, after=(-1, 0, 0), limit=1000)
    assert [json.loads(event.body)["number"] for event in events] == list(range(0, MESSAGES, 1000))
    assert [network.replayed(p).digest() for p in range(PARTITIONS)] == [
        owner.partition(p).digest for p in range(PARTITIONS)
    ]


@pytest.fixture
def network() -> Iterator[Network]:
    made = Network(app=app, log=CutLog("fan_out", PARTITIONS))
    yield made
    made.close()


POINTS = [
    pytest.param(order, appended, id=f"{order.__name__}-{appended}")
    for order in (one_after_the_other, in_turns)
    for appended in range(sum(RECORDS) + 1)
]


@pytest.mark.parametrize(("order", "appended"), POINTS)
def test_a_crash_at_each_point_of_a_fan_out(network: Network, order: Callable[[int], list[int]], appended: int):
    """Before, between and after the records of 10,000 messages: the next owner sends what is missing, and no more."""
    log = cast("CutLog", network.log)
    owner = network.start()
    network.send("hub", Tell(times=MESSAGES))
    log.cuts = order(appended)
    owner.step()
    log.cuts = None
    there = [r for p in range(PARTITIONS) for r in log.read(p, 0, limit=100) if r.kind is Kind.MESSAGES]
    owner.kill()

    owner = network.start()
    network.settle(owner)

    assert len(there) == appended
    check_fan_out(network, owner)


@pytest.mark.parametrize("appended", range(0, sum(RECORDS) + 1, 3))
def test_a_fan_out_that_is_cut_off_is_tried_again(network: Network, appended: int):
    """A shard that does not know what got there appends all of it again: receivers drop what they have."""
    log = cast("CutLog", network.log)
    owner = network.start()
    network.send("hub", Tell(times=MESSAGES))
    log.cuts = in_turns(appended)
    for _ in range(3):  # the third time is for those that came with the first: they are handled before
        owner.step()
    log.cuts = None
    network.settle(owner)

    check_fan_out(network, owner)


class Forgetful(CutLog):
    """Cannot say which messages it has: that is allowed, and costs."""

    def last_origin(self, partition: int, origin_partition: int) -> Origin | None:
        return None


def test_a_log_that_does_not_know_its_origins_gets_everything_again():
    """After a crash everything is sent a second time, and dropped by those who have it."""
    network = Network(app=app, log=Forgetful("fan_out", PARTITIONS))
    first = network.start()
    network.send("hub", Tell(times=MESSAGES))
    network.settle(first)
    first.kill()
    second = network.start()
    network.settle(second)
    records = [r for p in range(PARTITIONS) for r in network.log.read(p, 0, limit=100) if r.kind is Kind.MESSAGES]

    assert len(records) == 2 * sum(RECORDS)
    check_fan_out(network, second)
    network.close()


class FaultySqlite(Faulty, SqliteLog):
    """A log in a file that fails when told to."""


@pytest.mark.parametrize("fault", ["full", "unsure"])
def test_a_crash_before_or_after_the_append_on_sqlite(tmp_path: Path, fault: str):
    """There a fan-out is in the log as a whole or not at all: the next owner, which opens the file anew, sees which."""
    path = tmp_path / "log.db"
    with closing(SqliteLog(path, "fan_out", partitions=PARTITIONS, create=True)) as log:
        network = Network(app=app, log=log, reopen=lambda: SqliteLog(path, "fan_out"))
        with closing(FaultySqlite(path, "fan_out")) as faulty:
            owner = network.start(log=faulty)
            network.send("hub", Tell(times=MESSAGES))
            setattr(faulty, fault, True)
            owner.step()
            owner.kill()
        owner = network.start()
        network.settle(owner)

        check_fan_out(network, owner)
        network.close()


# Size


def measure(folder: str) -> dict[str, Any]:
    """A fan-out in this process, with its memory in MiB before it and at the worst moment."""
    path, count = Path(folder, "log.db"), 1000
    with closing(SqliteLog(path, "fan_out", partitions=PARTITIONS, create=True)) as log:
        network = Network(app=app, log=log, reopen=lambda: SqliteLog(path, "fan_out"))
        owner = network.start()
        before = _memory("VmRSS")
        network.send("hub", Tell(times=MANY, inboxes=count))
        network.settle(owner)
        most = _memory("VmHWM")
        records = [
            (len(content.commands), len(record.payload))
            for partition in range(PARTITIONS)
            for record in log.read(partition, 0, limit=10_000)
            if record.kind is Kind.MESSAGES
            for content in [network.codec.decode_record(record)]
        ]
        whole = inboxes(network, owner, count) == each_once(MANY, count)
        network.close()
    return {"before": before, "most": most, "records": records, "whole": whole}


def _memory(name: str) -> float:
    """Of this process since it was started as a program, unlike what `getrusage` says."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[name].split()[0]) / 1024


def test_a_fan_out_of_100_000_messages_fits_into_memory_and_records(tmp_path: Path):
    """All arrive, in records of bounded size, and the process grows by less than a stated bound."""
    code = "import sys, json; from tests.shard.test_fan_out import measure; print(json.dumps(measure(sys.argv[1])))"
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True)
    told = json.loads(done.stdout.splitlines()[-1])
    grown = told["most"] - told["before"]

    assert told["whole"]
    assert sum(commands for commands, _ in told["records"]) == MANY
    assert max(commands for commands, _ in told["records"]) <= RECORD_COMMANDS
    assert max(size for _, size in told["records"]) <= RECORD_BYTES
    assert grown < MEMORY_MIB, f"{grown:.0f} MiB more at the worst moment"


def test_large_messages_are_spread_over_records(network: Network):
    """A record takes 8 MiB of messages at most, however few these are."""
    owner = network.start()
    network.send("hub", Tell(times=60, inboxes=1, text="x" * 400_000))
    network.settle(owner)
    home = network.home("inbox0")
    records = [record for at in range(network.log.end(home)) for record in network.log.read(home, at, limit=1)]
    sizes = [len(record.payload) for record in records if record.kind is Kind.MESSAGES]

    assert inboxes(network, owner, 1) == each_once(60, 1)
    assert len(sizes) >= 3
    assert max(sizes) <= RECORD_BYTES + 10_000  # and a header


# Limits


@pytest.mark.parametrize(
    ("of", "command", "says"),
    [
        (app, Tell(times=10**9), "One command may send 200,000 messages and 67,108,864 bytes at most: send to fewer"),
        (careful, Tell(times=1001), "One command may send 1,000 messages and 1,000,000 bytes at most: send to fewer"),
        (careful, Tell(times=20, text="x" * 50_000), "One command may send 1,000 messages and 1,000,000 bytes at most"),
    ],
    ids=["a message bomb", "one too many", "too large together"],
)
def test_a_command_that_sends_too_much_is_stopped(of: App, command: Tell, says: str):
    """It is quarantined, with a message that says the limits; nothing is sent or emitted, and the partition goes on."""
    network = Network(app=of, log=CutLog("fan_out", PARTITIONS))
    owner = network.start()
    network.send("hub", command)
    network.settle(owner)
    image = owner.image(network.home("hub"))
    (row,) = image.quarantine.listed

    assert says in row.error
    assert (row.command, row.key) == ("tell", "hub")
    assert [r.kind for p in range(PARTITIONS) for r in network.log.read(p, 0, limit=100)].count(Kind.MESSAGES) == 0
    assert network.log.events(network.home("hub"), after=(-1, 0, 0), limit=10) == []
    network.send("hub", Tell(times=1000, text="x"))
    network.settle(owner)
    assert inboxes(network, owner) == each_once(1000)
    assert cast("Hub", image.entities["hub"]["hub"]).told == 1
    network.close()


def test_as_much_as_the_limits_say_may_be_sent():
    """The last message that is allowed is sent, by number and by size."""
    network = Network(app=careful, log=CutLog("fan_out", PARTITIONS))
    owner = network.start()
    size = len(Note(number=0, text="").model_dump_json())
    network.send("hub", Tell(times=1000, text="x" * (900 - size)))
    network.settle(owner)

    assert inboxes(network, owner) == each_once(1000)
    network.close()


def test_two_entities_that_answer_each_other_for_ever_are_stopped():
    """At the depth that the limits say one answer is quarantined, with where it all began; what was before stays."""
    network = Network(app=careful, log=CutLog("fan_out", PARTITIONS))
    owner = network.start()
    here, there = network.key_in(0), network.key_in(1)
    began = network.send(here, Answer(by=there))
    network.settle(owner)
    hubs = [cast("Hub", owner.image(p).entities["hub"][key]).told for p, key in enumerate((here, there))]
    rows = [row for p in range(PARTITIONS) for row in owner.image(p).quarantine.listed]

    assert sum(hubs) == 20
    assert len(rows) == 1
    assert f"This would be the message number 21 that follows from another, since {began}" in rows[0].error
    assert "do two entities answer each other for ever?" in rows[0].error
    network.close()
