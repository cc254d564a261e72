"""Traces: from a client's command to its effects, in whichever shards, as an OpenTelemetry SDK collects them."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from engram import App, Misuse
from engram.codec.record import Kind
from engram.log.base import Entry
from engram.log.memory import MemoryLog
from engram.log.spans import CommandIds
from engram.model.position import Position
from engram.tracing import EXPORTER_ENV, TraceIds, start_tracing, tracer
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ParentBased, Sampler, TraceIdRatioBased

from sample_apps.social import app as social
from sample_apps.social.commands import Follow, PublishLater, Register
from sample_apps.social.queries import Profile
from sample_apps.social.read_models import EVERYBODY, MostFollowed
from tests.serving.counter import Add
from tests.serving.counter import app as counters
from tests.serving.running import SECONDS, RunningApp

Collect = Callable[..., InMemorySpanExporter]


@pytest.fixture
def collect(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collect]:
    """Sets an SDK up for one test; there is one for a process, and tests of others must not have it."""
    made: list[TracerProvider] = []

    def set_up(ids: Any = None, sampler: Sampler | None = None) -> InMemorySpanExporter:
        provider = TracerProvider(id_generator=ids or TraceIds(), sampler=sampler)
        exporter = InMemorySpanExporter()
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
        made.append(provider)
        return exporter

    yield set_up
    for provider in made:
        provider.shutdown()


class Spans:
    """What was collected, once it has all come."""

    def __init__(self, exporter: InMemorySpanExporter, *names: str) -> None:
        deadline = time.monotonic() + 3 * SECONDS
        while not {*names} <= {span.name for span in exporter.get_finished_spans()}:
            assert time.monotonic() < deadline, [span.name for span in exporter.get_finished_spans()]
            time.sleep(0.01)
        self.all: tuple[ReadableSpan, ...] = exporter.get_finished_spans()

    def named(self, name: str, **attributes: Any) -> ReadableSpan:
        wanted = {f"engram.{key}": value for key, value in attributes.items()}
        (found,) = [s for s in self.all if s.name == name and wanted.items() <= dict(s.attributes or {}).items()]
        return found

    def parent(self, span: ReadableSpan) -> ReadableSpan | None:
        above = [s for s in self.all if span.parent and s.context.span_id == span.parent.span_id]
        return above[0] if above else None

    def way(self, span: ReadableSpan | None) -> list[str]:
        """The names from the root of a trace down to a span."""
        return [] if span is None else [*self.way(self.parent(span)), span.name]


def two_of_different_shards(running: RunningApp) -> tuple[str, str]:
    one = "ada"
    others = (f"bob{number}" for number in range(100))
    return one, next(other for other in others if running.shard_of(other) is not running.shard_of(one))


def test_a_tree_from_a_command_to_its_effects_over_two_shards(tmp_path: Path, collect: Collect):
    """Logged, handled by one shard, its message by the other, with the timer's effects below what has scheduled it; and
    the trace of who has sent it leads there and back."""
    exporter = collect()

    async def talk(running: RunningApp, ada: str, bob: str) -> None:
        async with running.client() as client:
            for key in (ada, bob):
                await client.send(key, Register(name=key))
            await client.send(bob, Follow(whom=ada), wait="effects")
            await client.send(ada, PublishLater(text="later", at=datetime.now(UTC) + timedelta(seconds=1)))

    with RunningApp(social, tmp_path) as running:
        ada, bob = two_of_different_shards(running)
        asyncio.run(talk(running, ada, bob))
        spans = Spans(exporter, "handle gain_follower", "handle deliver", "append publish_later")
        shards = {key: running.shard_of(key).number for key in (ada, bob)}

    follow, gained = spans.named("handle follow"), spans.named("handle gain_follower")
    logged, appended = spans.named("log follow"), spans.named("append follow")
    assert spans.way(gained) == ["log follow", "handle follow", "handle gain_follower"]
    assert spans.way(appended)[0] == "send follow"
    assert spans.way(appended)[-2:] == ["POST /api/social/user/commands/follow", "append follow"]
    assert [link.context.span_id for link in appended.links] == [logged.context.span_id]
    request = spans.parent(appended)
    assert request is not None
    assert [link.context.span_id for link in logged.links] == [request.context.span_id]
    told = {
        name: (follow.attributes or {})[f"engram.{name}"] for name in ("shard", "entity", "key", "outcome", "messages")
    }
    assert told == {"shard": shards[bob], "entity": "user", "key": bob, "outcome": "reply", "messages": 1}
    assert (gained.attributes or {})["engram.shard"] == shards[ada] != shards[bob]
    assert (follow.attributes or {})["engram.position"] == (logged.attributes or {})["engram.position"]
    assert [event.name for event in follow.events] == ["followed"]
    later = ["log publish_later", "handle publish_later", "handle publish_draft", "handle deliver"]
    assert spans.way(spans.named("handle deliver")) == later


def test_reads_are_spans_of_the_trace_that_asks(tmp_path: Path, collect: Collect):
    """Client, request, and what the gateway asks the shards: one trace, also for one that somebody else began."""
    exporter = collect()
    with RunningApp(social, tmp_path) as running:
        running.on_loop(running.service.send("ada", Register(name="Ada"), seconds=SECONDS))

        async def talk() -> None:
            async with running.client() as client:
                await client.ask("ada", Profile())
                await client.top(MostFollowed, EVERYBODY)

        asyncio.run(talk())
        parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        path = "/api/social/user/queries/profile"
        running.http.get(path, params={"key": "nobody"}, headers={"traceparent": parent})
        spans = Spans(exporter, f"GET {path}", f"POST {path}", "GET /api/social/read_models/most_followed")

    post = spans.named(f"POST {path}")
    inner = [span for span in spans.all if span.name == "ask profile" and spans.parent(span) is post]
    assert len(inner) == 1
    assert spans.way(inner[0]) == ["ask profile", f"POST {path}", "ask profile"]
    foreign = spans.named(f"GET {path}")
    assert foreign.context.trace_id == 0x0AF7651916CD43DD8448EB211C80319C
    assert (foreign.attributes or {})["http.response.status_code"] == 409
    assert any(span.name == "look most_followed" and len(spans.way(span)) == 3 for span in spans.all)


def test_a_command_that_failed_has_its_error_and_one_sent_again_is_told_once(tmp_path: Path, collect: Collect):
    """A quarantined command's span has the exception; a repeated one is handled once, and so told."""
    exporter = collect()
    with RunningApp(counters, tmp_path) as running:
        running.http.post("/api/counters/counter/commands/fail", params={"key": "c"})
        for _ in range(2):
            headers = {"Idempotency-Key": "once"}
            running.http.post("/api/counters/counter/commands/add", params={"key": "c"}, headers=headers)
        running.on_loop(running.service.send("c", Add(by=-1), seconds=SECONDS))
        spans = Spans(exporter, "handle add", "handle fail")

    failed = spans.named("handle fail")
    assert (failed.attributes or {})["engram.outcome"] == "quarantined"
    assert [(event.attributes or {})["exception.type"] for event in failed.events] == ["ZeroDivisionError"]
    added = [(span.attributes or {})["engram.outcome"] for span in spans.all if span.name == "handle add"]
    assert added == ["reply", "rejected"]


def test_what_a_new_owner_replays_is_not_told_again(tmp_path: Path, collect: Collect):
    """A shard that is killed has told of what it handled; its successor tells of what is new."""
    exporter = collect()
    with RunningApp(counters, tmp_path, shards=1, partitions=1) as running:
        for _ in range(3):
            running.on_loop(running.service.send("c", Add(), seconds=SECONDS))
        epoch = _epoch(running)
        running.shards[0].kill()
        running.start_shard(0, [0])
        running.wait_until(lambda: _epoch(running) != epoch)
        running.on_loop(running.service.send("c", Add(), seconds=SECONDS))
    handled = [span for span in Spans(exporter, "handle add").all if span.name == "handle add"]

    assert len(handled) == len({span.context.span_id for span in handled}) == 4


def _epoch(running: RunningApp) -> list[int]:
    return [p.epoch for shard in running.registry.shards() for p in shard.partitions if p.state == "serving"]


def test_all_shards_agree_on_which_traces_are_sampled(tmp_path: Path, collect: Collect):
    """Of a share of traces each is whole or not there at all."""
    exporter = collect(sampler=ParentBased(TraceIdRatioBased(0.5)))
    with RunningApp(social, tmp_path) as running:
        names = [f"user{number}" for number in range(20)]
        for name in names:
            running.on_loop(running.service.send(name, Register(name=name), seconds=SECONDS))
        for name in names[1:]:
            position, _ = running.on_loop(running.service.send(name, Follow(whom="user0"), seconds=SECONDS))
            running.on_loop(running.service.settle(position, seconds=SECONDS))
    spans = exporter.get_finished_spans()
    by_name = {
        name: {span.context.trace_id for span in spans if span.name == name}
        for name in ("log follow", "handle follow", "handle gain_follower")
    }

    assert 0 < len(by_name["handle follow"]) < 19
    assert by_name["log follow"] == by_name["handle follow"] == by_name["handle gain_follower"]


def test_with_other_ids_everything_is_in_the_right_trace(tmp_path: Path, collect: Collect):
    """An SDK that was set up without `TraceIds` loses the parents, not the trace."""
    other: IdGenerator = RandomIdGenerator()
    exporter = collect(ids=other)
    with RunningApp(social, tmp_path) as running:
        for name in ("ada", "bob"):
            running.on_loop(running.service.send(name, Register(name=name), seconds=SECONDS))
        running.on_loop(running.service.send("bob", Follow(whom="ada"), seconds=SECONDS))
        spans = Spans(exporter, "handle gain_follower", "log follow")

    names = ("log follow", "handle follow", "handle gain_follower")
    assert len({spans.named(name).context.trace_id for name in names}) == 1


def test_ids_follow_from_the_log():
    """The same for whoever has the log; of another log of the same app, or another position, others."""
    logs = [MemoryLog("social", 2), MemoryLog("social", 2)]
    for number, log in enumerate(logs):
        log.append([Entry(partition, Kind.TICK, number, b"") for partition in range(2)])
    root, other = Position(0, 5, 0), Position(1, 5, 0)
    first, again, elsewhere = CommandIds(logs[0]), CommandIds(logs[0]), CommandIds(logs[1])

    assert first.handled(root, other) == again.handled(root, other)
    assert first.handled(root, other).trace == first.logged(root).trace
    ids = [first.handled(root, other), first.logged(root), first.handled(root, root), first.logged(other)]
    assert len({each.span for each in [*ids, elsewhere.logged(root)]}) == 5
    assert len({first.logged(root).trace, first.logged(other).trace, elsewhere.logged(root).trace}) == 3


def test_without_an_sdk_there_are_no_spans(tmp_path: Path):
    """Neither shards nor gateway have anything that makes them."""
    made = App("counters", commands=[Add], queries=[])
    with RunningApp(made, tmp_path, shards=1, partitions=1) as running:
        assert running.service.spans._tracer is None
        assert running.service.spans.carried() == {}
    assert tracer() is None


def test_an_exporter_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch):
    """With what to install."""
    monkeypatch.setenv(EXPORTER_ENV, "nonsense")
    with pytest.raises(Misuse, match=r"no such exporter is installed: pip install 'engram\[tracing\]'"):
        start_tracing("counters")


def test_an_exporter_is_set_up_by_its_name():
    """In a process of its own: spans have ids that can be chosen, and go where the variable says, in the app's name."""
    code = (
        "from engram.tracing import *\n"
        "start_tracing('counters')\n"
        "how = {'parent': None, 'kind': SpanKind.CLIENT, 'attributes': {}, 'span': (1, 2)}\n"
        "with span_with_ids(tracer(), 'told', SpanIds(17, 4), **how): pass\n"
        "flush_spans()\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, EXPORTER_ENV: "console"}, capture_output=True, check=True
    )
    (span,) = [json.loads(told.stdout)]

    assert (span["name"], span["resource"]["attributes"]["service.name"]) == ("told", "counters")
    assert (int(span["context"]["trace_id"], 16), int(span["context"]["span_id"], 16)) == (17, 4)
    assert span["parent_id"] is None


def test_without_an_exporter_nothing_is_set_up(monkeypatch: pytest.MonkeyPatch):
    """Neither by default nor when it is switched off."""
    for value in ("", "none"):
        monkeypatch.setenv(EXPORTER_ENV, value)
        start_tracing("counters")

    assert tracer() is None
