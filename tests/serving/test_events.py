"""Events over HTTP: pages and streams from any cursor, and the typed client's."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from engram import App, Client, Command, Context, Corrupt, Entity, Event, Json, Misuse, Unavailable, upcaster
from engram.log.cursor import Cursor
from engram.serving import events as door
from engram.serving.client import EventReceived

from tests.log.emitting import emit
from tests.serving.running import SECONDS, RunningApp


@dataclass(slots=True, kw_only=True)
class Bell(Entity, name="bell"):
    rings: int = 0


class Rang(Event, name="rang", version=2):
    times: int


class Broke(Event, name="broke"):
    pass


class Ring(Command[Bell, int], name="ring"):
    def handle(self, bell: Bell, ctx: Context) -> int:
        bell.rings += 1
        ctx.emit(Rang(times=bell.rings))
        if bell.rings % 5 == 0:
            ctx.emit(Broke())
        return bell.rings


@upcaster(Rang, from_version=1)
def rings_were_called_count(old: Json) -> Json:
    return {"times": old["count"]}


app = App("bells", commands=[Ring], events=[Rang, Broke], upcasters=[rings_were_called_count])
EVENTS = "/api/bells/events"


@pytest.fixture
def bells(tmp_path: Path) -> Iterator[RunningApp]:
    with RunningApp(app, tmp_path) as running:
        yield running


def ring(bells: RunningApp, key: str, times: int = 1) -> None:
    for _ in range(times):
        assert bells.http.post("/api/bells/bell/commands/ring", params={"key": key}).status_code == 200


def page(bells: RunningApp, **asked: Any) -> dict[str, Any]:
    response = bells.http.get(EVENTS, params=asked)
    assert response.status_code == 200, response.text
    return response.json()


def pages(bells: RunningApp, count: int, **asked: Any) -> list[dict[str, Any]]:
    """The next events, however many pages it takes."""
    found: list[dict[str, Any]] = []
    after = asked.pop("after", "start")
    while len(found) < count:
        got = page(bells, after=after, wait=SECONDS, **asked)
        assert got["events"] or got["more"], f"only {len(found)} of {count} came"
        found += got["events"]
        after = got["cursor"]
    return found


# Pages


def test_events_come_in_pages_with_a_cursor(bells: RunningApp):
    """Each with its id, time, name, version, key, body and what caused it; the cursor of a page leads to the next."""
    ring(bells, "a", 5)
    first = pages(bells, 4, limit=2)[:4]
    rest = page(bells, after=first[-1]["cursor"], limit=10, wait=SECONDS)
    partition = bells.partition_of("a")
    one = first[0]

    assert [event["body"] for event in first] == [{"times": 1}, {"times": 2}, {"times": 3}, {"times": 4}]
    assert one.keys() == {"id", "time", "name", "version", "key", "body", "cause", "root", "cursor"}
    assert (one["name"], one["version"], one["key"]) == ("rang", 2, "a")
    assert one["id"] == f"{one['cause']}.0"
    assert one["cause"] == one["root"]
    assert one["cause"].startswith(f"{partition}:")
    assert one["time"].endswith("Z")
    assert rest["events"][0]["body"] == {"times": 5}
    assert not rest["more"]


def test_a_page_is_waited_for(bells: RunningApp):
    """Nothing there: it is answered as soon as there is, or when the time is over."""
    end = page(bells, after="end")
    started = time.monotonic()
    empty = page(bells, after=end["cursor"], wait=0.3)
    waited = time.monotonic() - started
    threading.Timer(0.2, ring, (bells, "a")).start()
    found = page(bells, after=end["cursor"], wait=SECONDS)

    assert (end["events"], empty["events"], empty["cursor"]) == ([], [], end["cursor"])
    assert 0.3 <= waited < SECONDS / 2
    assert [event["body"] for event in found["events"]] == [{"times": 1}]
    assert time.monotonic() - started < SECONDS / 2


def test_every_event_comes_once_to_many_readers(bells: RunningApp):
    """Readers that come and go with their cursors have the same events, those of a key in order."""

    def read(limit: int) -> list[dict[str, Any]]:
        return pages(bells, 48, limit=limit)

    async def gather() -> list[list[dict[str, Any]]]:
        reading = [asyncio.create_task(asyncio.to_thread(read, limit)) for limit in (1, 7, 1000)]
        await asyncio.gather(*(asyncio.to_thread(ring, bells, key, 10) for key in "abcd"))
        return await asyncio.gather(*reading)

    readers = asyncio.run(gather())

    for found in readers:
        assert sorted(event["id"] for event in found) == sorted(event["id"] for event in readers[0])
        for key in "abcd":
            own = [event["body"]["times"] for event in found if event["key"] == key and event["name"] == "rang"]
            assert own == list(range(1, 11))


def test_names_choose_events(bells: RunningApp):
    """One name or several; the cursor goes on over the others."""
    ring(bells, "a", 10)
    pages(bells, 12)
    broke = page(bells, name="broke")
    after = page(bells, name="broke", after=broke["cursor"])
    both = bells.http.get(EVENTS, params=[("name", "broke"), ("name", "rang")]).json()

    assert [event["name"] for event in broke["events"]] == ["broke", "broke"]
    assert (after["events"], broke["cursor"]) == ([], both["cursor"])
    assert len(both["events"]) == 12


def test_a_long_search_is_given_out_in_parts(bells: RunningApp, monkeypatch: pytest.MonkeyPatch):
    """A page of a rare name does not take for ever: it may be empty, says that there is more, and leads on."""
    monkeypatch.setattr(door, "_LOOKED_THROUGH", 3)
    ring(bells, "a", 5)
    pages(bells, 6)
    first = page(bells, name="broke", limit=2)
    found = pages(bells, 1, name="broke", limit=2)

    assert (first["events"], first["more"]) == ([], True)
    assert [event["name"] for event in found] == ["broke"]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"after": "x"}, "'x' is not a cursor, or is not whole: take one as it was given, or write start or end."),
        ({"after": str(Cursor("shop", 4))}, "The cursor is of app shop with 4 partitions; this is bells with 4"),
        ({"after": str(Cursor("bells", 8))}, "The cursor is of app bells with 8 partitions; this is bells with 4"),
        ({"limit": "0"}, "limit=0 is not a whole number from 1 to 1000."),
        ({"limit": "1001"}, "limit=1001 is not a whole number"),
        ({"limit": "2.5"}, "limit=2.5 is not a whole number"),
        ({"wait": "61"}, "wait=61 is not a number of seconds from 0 to 60."),
        ({"wait": "nan"}, "wait=nan is not a number of seconds"),
        ({"name": "rung"}, "App bells has no event 'rung'. It has: rang."),
        ({"name": "zzz"}, "App bells has no event 'zzz'. It has: broke, rang."),
        ({"from": "start"}, "Unknown parameter from: there are after, limit, name, wait."),
    ],
)
def test_a_mistake_is_a_422_with_a_sentence(bells: RunningApp, asked: dict[str, str], said: str):
    """It says what to write; for a stream as well."""
    for headers in ({}, {"Accept": "text/event-stream"}):
        response = bells.http.get(EVENTS, params=asked, headers=headers)
        assert (response.status_code, response.json()["type"]) == (422, "urn:engram:misuse")
        if not headers:
            assert said in response.json()["detail"]


def test_a_cursor_of_another_log_of_the_app_is_refused(bells: RunningApp):
    """It is ahead of everything that is there."""
    (event,) = emit(bells.log, [1])
    ahead = Cursor("bells", 4).past(event._replace(offset=1_000_000))
    response = bells.http.get(EVENTS, params={"after": str(ahead)})

    assert response.status_code == 422
    assert "it is of another log" in response.json()["detail"]


def test_events_are_only_read(bells: RunningApp):
    """Any other method is refused with the one that is right."""
    response = bells.http.post(EVENTS)

    assert (response.status_code, response.headers["allow"]) == (405, "GET")


def test_the_document_describes_a_page_as_it_comes(bells: RunningApp):
    """Every field of a real page is in the OpenAPI document, with the events' own bodies."""
    ring(bells, "a")
    got = {"events": pages(bells, 1), "cursor": "", "more": False}
    document = bells.http.get("/openapi.json").json()
    operation = document["paths"][EVENTS]["get"]
    schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
    event = schema["properties"]["events"]["items"]
    bodies = [reference["$ref"].rsplit("/", 1)[1] for reference in event["properties"]["body"]["anyOf"]]

    assert set(schema["required"]) == got.keys()
    assert set(event["properties"]) == got["events"][0].keys()
    assert document["components"]["schemas"][bodies[0]]["properties"].keys() == {"times"}
    assert {p["name"] for p in operation["parameters"]} == {"after", "name", "limit", "wait", "Last-Event-ID"}


# Streams


class Stream:
    """A reader of server-sent events: a message at a time."""

    def __init__(self, bells: RunningApp, *, last: str = "", **asked: str) -> None:
        headers = {"Accept": "text/event-stream", **({"Last-Event-ID": last} if last else {})}
        self._http = httpx.Client(base_url=bells.url, timeout=SECONDS, trust_env=False)
        self._context = self._http.stream("GET", EVENTS, params=asked, headers=headers)
        self.response = self._context.__enter__()
        self._lines = self.response.iter_lines()

    def message(self) -> dict[str, str]:
        """The next message with data or an id; comments are under "comment"."""
        fields: dict[str, str] = {}
        for line in self._lines:
            if not line and fields:
                return fields
            name, _, value = line.partition(": ")
            if line:
                fields[name or "comment"] = value
        return fields

    def rest(self) -> list[str]:
        return list(self._lines)

    def close(self) -> None:
        self._context.__exit__(None, None, None)
        self._http.close()


def test_a_stream_gives_events_as_they_come(bells: RunningApp):
    """First when to come back, then a message for each event: its name, its JSON, and the cursor as its id."""
    ring(bells, "a")
    stream = Stream(bells)
    hello, first = stream.message(), stream.message()
    ring(bells, "a")
    second = stream.message()
    stream.close()
    data = json.loads(first["data"])

    assert stream.response.headers["content-type"].startswith("text/event-stream")
    assert hello == {"retry": "1000"}
    assert first.keys() == {"id", "event", "data"}
    assert (first["event"], data["body"], data["key"]) == ("rang", {"times": 1}, "a")
    assert json.loads(second["data"])["body"] == {"times": 2}
    assert page(bells, after=first["id"])["events"][0]["id"] == json.loads(second["data"])["id"]


def test_a_stream_is_resumed_by_its_last_id(bells: RunningApp):
    """As browsers do: the same address as before, and the id of the last message that was seen."""
    ring(bells, "a", 3)
    stream = Stream(bells, after="start")
    _, first, _, _ = (stream.message() for _ in range(4))
    stream.close()
    again = Stream(bells, after="start", last=first["id"])
    again.message()
    seen = [json.loads(again.message()["data"])["body"] for _ in range(2)]
    again.close()

    assert seen == [{"times": 2}, {"times": 3}]


def test_a_silent_stream_is_kept_alive(bells: RunningApp, monkeypatch: pytest.MonkeyPatch):
    """By comments; and over events that are not wanted, by an id alone that moves the reader on."""
    monkeypatch.setattr(door, "_KEEP_ALIVE_S", 0.1)
    stream = Stream(bells, name="broke", after="end")
    hello, silence = stream.message(), stream.message()
    ring(bells, "a", 2)
    moved = next(message for message in iter(stream.message, None) if "id" in message)
    ring(bells, "a", 3)
    broke = next(message for message in iter(stream.message, None) if "data" in message)
    stream.close()

    assert (hello.keys(), silence) == ({"retry"}, {"comment": "still here"})
    assert moved.keys() == {"id"}
    assert all(event["body"] != {"times": 1} for event in page(bells, after=moved["id"])["events"])
    assert broke["event"] == "broke"


def test_a_client_that_goes_ends_its_stream(bells: RunningApp):
    """Nothing is read for somebody who is not there."""
    streams = [Stream(bells) for _ in range(3)]
    for stream in streams:
        stream.message()
    there = bells.service.events._streams
    for stream in streams:
        stream.close()
    deadline = time.monotonic() + SECONDS
    while bells.service.events._streams:
        assert time.monotonic() < deadline
        ring(bells, "a")

    assert there == 3


def test_there_are_only_so_many_streams(bells: RunningApp, monkeypatch: pytest.MonkeyPatch):
    """One more gets a 503, the others go on."""
    monkeypatch.setattr(door, "_MAX_STREAMS", 2)
    streams = [Stream(bells) for _ in range(2)]
    for stream in streams:
        stream.message()
    refused = bells.http.get(EVENTS, headers={"Accept": "text/event-stream"})
    ring(bells, "a")
    seen = [stream.message()["event"] for stream in streams]
    for stream in streams:
        stream.close()

    assert (refused.status_code, refused.json()["type"]) == (503, "urn:engram:unavailable")
    assert seen == ["rang", "rang"]


def test_readers_do_not_hold_up_the_end(tmp_path: Path):
    """A stream ends and a page that waits is answered when the server stops; it does not wait for its readers."""
    with RunningApp(app, tmp_path) as bells:
        stream = Stream(bells)
        stream.message()
        waiting = threading.Thread(target=page, args=(bells,), kwargs={"wait": 60, "after": "end"})
        waiting.start()
        deadline = time.monotonic() + SECONDS
        while bells.service.events._bell._waiting < 2:
            assert time.monotonic() < deadline
        http = bells.http
        bells.http = httpx.Client()
        started = time.monotonic()
    stopped = time.monotonic() - started
    waiting.join(SECONDS)
    rest = stream.rest()
    stream.close()
    http.close()

    assert rest == []
    assert not waiting.is_alive()
    assert stopped < 4


# The typed client


def receive(bells: RunningApp, count: int, **how: Any) -> list[EventReceived]:
    async def talk() -> list[EventReceived]:
        found: list[EventReceived] = []
        async with bells.client() as client:
            async with asyncio.timeout(SECONDS):
                async for received in client.events(**how):
                    found.append(received)
                    if len(found) == count:
                        return found
        raise AssertionError

    return asyncio.run(talk())


def test_the_client_gives_events_of_the_apps_own_classes(bells: RunningApp):
    """Typed, with where each comes from; any of their cursors leads to the rest."""
    ring(bells, "a", 5)
    found = receive(bells, 6)
    rest = receive(bells, 3, after=found[2].cursor)

    assert [received.event for received in found] == [*(Rang(times=n) for n in range(1, 6)), Broke()]
    assert [received.id for received in rest] == [received.id for received in found[3:]]
    assert (found[0].key, found[0].id, found[0].root) == ("a", f"{found[0].cause}.0", found[0].cause)
    assert found[0].time.tzinfo is not None


def test_the_client_waits_for_events(bells: RunningApp):
    """From the end on, only what is emitted from then on, and only what was asked for."""
    ring(bells, "a", 4)
    pages(bells, 4)

    async def talk() -> EventReceived:
        async with bells.client(timeout=0.5) as client:
            coming = aiter(client.events(after="end", names=["broke"]))
            task = asyncio.ensure_future(anext(coming))
            done, _ = await asyncio.wait([task], timeout=1.2)  # more than one request: it asks again
            assert not done
            await client.send("a", Ring())
            return await asyncio.wait_for(task, SECONDS)

    assert asyncio.run(talk()).event == Broke()


def test_the_client_brings_old_events_up(bells: RunningApp):
    """An event of an old version is upcast, as the log's are everywhere; one that the app does not know is told."""
    emit(bells.log, [1], name="rang", body={"count": 7})
    assert receive(bells, 1)[0].event == Rang(times=7)

    emit(bells.log, [1], name="rung")
    with pytest.raises(Corrupt, match="app bells has no event named 'rung'"):
        receive(bells, 2)


def test_the_client_raises_what_the_gateway_says(bells: RunningApp, nobody: str):
    """A cursor that is none is a mistake; nobody there is told after the client's patience."""
    with pytest.raises(Misuse, match="is not a cursor"):
        receive(bells, 1, after="x")

    async def talk() -> None:
        async with Client(nobody, app, patience=0.2) as client:
            await anext(aiter(client.events()))

    with pytest.raises(Unavailable, match="could not be reached"):
        asyncio.run(talk())


def test_the_status_has_the_sinks(bells: RunningApp):
    """As they tell it; without any, there are none."""
    assert bells.http.get("/api/bells").json()["sinks"] == []
    bells.service.sinks = lambda: [{"name": "sqlite:x", "delivered": 3}]

    assert bells.http.get("/api/bells").json()["sinks"] == [{"name": "sqlite:x", "delivered": 3}]
