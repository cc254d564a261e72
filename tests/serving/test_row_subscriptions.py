"""Subscriptions to read models: what is at a place now and after each change, of all partitions, for many readers."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from engram import App, Lookup, Position, Quarantined, Ranked, Token, Totals
from engram.codec.codec import Codec
from engram.image.found import Found, merge_rows, merge_totals
from engram.image.image import Handled, Image
from engram.image.row_index import TalliedRows
from engram.model.read_model import ReadModel, place_of
from engram.serving.read_models import rows_json
from engram.serving.topic import KEPT
from engram.shard import serve
from engram.shard.policy import Policy
from engram.shard.replay import replay_until
from engram.shard.search import FtsIndex

from tests.read_models.club import (
    Best,
    Bios,
    Fragile,
    Leave,
    Mark,
    Marked,
    Member,
    Player,
    Players,
    Points,
    Score,
    Spoil,
    Write,
)
from tests.read_models.club import app as club
from tests.serving.running import SECONDS, RunningApp
from tests.serving.streams import STREAM, Heard, Reader, next_event, streaming

BASE = "/api/club/read_models"
MEMBERS = [f"member{number:02}" for number in range(12)]


@contextmanager
def watching(
    running: RunningApp, model: type[ReadModel], place: str, *, last: str = "", **more: Any
) -> Iterator[Reader]:
    path = f"{BASE}/{model.__engram__.name}"
    with streaming(running, path, {place_of(model): place, **more}, last=last) as reader:
        yield reader


def send(running: RunningApp, key: str, command: Any, **parameters: str) -> Position:
    path = f"/api/club/member/commands/{command.__engram__.name}"
    response = running.http.post(path, params={"key": key, **parameters}, content=command.model_dump_json())
    return Position.parse(response.headers["engram-position"])


def test_first_the_answer_and_then_every_change_of_rows(running: RunningApp):
    """Rows of all partitions in their order, as a read gives them; each event has the position of what brought it."""
    send(running, "member02", Mark(mark="watched"))
    with watching(running, Marked, "watched") as reader:
        first = reader.next()
        read = running.http.get(f"{BASE}/marked", params={"key": "watched"}).json()
        positions = [send(running, key, Mark(mark="watched")) for key in ("member03", "member00")]
        send(running, "member00", Mark(mark="watched"))  # the same row once more is no change
        send(running, "member04", Mark(mark="something-else"))
        positions.append(send(running, "member02", Leave()))
        changes = [reader.next() for _ in range(3)]

    assert (first.event, first.data["rows"]) == ("answer", read["rows"])
    assert [change.data["rows"] for change in changes] == [
        ["member02", "member03"],
        ["member00", "member02", "member03"],
        ["member00", "member03"],
    ]
    for position, change in zip(positions, changes, strict=True):
        assert change.data["positions"][position.partition] == str(position)
        assert len(change.data["positions"]) == running.log.partitions


def test_every_kind_is_watched(running: RunningApp):
    """A ranking's first rows, a tally's totals, a search's finds: each as its read gives it."""
    send(running, "member00", Score(game="watched", points=1))
    with (
        watching(running, Best, "watched", limit=2) as best,
        watching(running, Points, "watched") as points,
        watching(running, Bios, "watched bio*") as bios,
    ):
        firsts = [reader.next().data for reader in (best, points, bios)]
        send(running, "member01", Score(game="watched", points=3))
        send(running, "member02", Write(bio="a watched biography"))
        seconds = [reader.next().data for reader in (best, points, bios)]
        send(running, "member03", Score(game="watched", points=2))
        thirds = [reader.next().data for reader in (best, points)]
        # Relevance depends on all texts of a partition; only what is found, and its order, is told.
        for key in MEMBERS[4:]:
            send(running, key, Write(bio="something else"))
        send(running, "member02", Write(bio=""))
        send(running, "member00", Score(game="watched", points=0))  # below the first two
        send(running, "member00", Leave(game="watched"))
        last = [reader.next().data for reader in (bios, points, points)]

    assert firsts[0]["rows"] == [{"score": 1, "row": "member00"}]
    assert (firsts[1]["count"], firsts[2]["rows"]) == (1, [])
    assert [row["row"] for row in seconds[0]["rows"]] == ["member01", "member00"]
    assert {name: seconds[1][name] for name in Totals._fields} == {"count": 2, "sum": 4, "min": 1, "max": 3}
    assert [row["row"] for row in seconds[2]["rows"]] == ["member02"]
    assert [row["row"] for row in thirds[0]["rows"]] == ["member01", "member03"]
    assert (last[0]["rows"], last[2]["count"]) == ([], 2)


def test_a_reader_that_comes_back_gets_what_it_has_missed(running: RunningApp):
    """Every change since the event it names; also from a gateway that does not know it; then only what is new."""
    with watching(running, Marked, "resumed") as reader:
        last = reader.next()
    for key in MEMBERS[:5]:
        send(running, key, Mark(mark="resumed"))
    with watching(running, Marked, "resumed", last=last.id) as reader:
        known = [reader.next() for _ in range(5)]
    running.service.subscriptions._topics.clear()
    with watching(running, Marked, "resumed", last=last.id) as reader:
        unknown = [reader.next() for _ in range(5)]
    with watching(running, Marked, "resumed", last=unknown[-1].id) as reader:
        send(running, MEMBERS[5], Mark(mark="resumed"))
        new = reader.next()

    assert [heard.data["rows"] for heard in known] == [MEMBERS[: n + 1] for n in range(5)]
    assert [len(heard.data["rows"]) for heard in unknown] == [1, 2, 3, 4, 5]
    assert unknown[-1].data["rows"] == MEMBERS[:5]
    assert new.data["rows"] == MEMBERS[:6]


def test_a_reader_that_is_cut_off_while_shards_are_killed_sees_every_change_once(tmp_path: Path):
    """50 times at random, with shards killed while it reads and while it does not, gateways that do not know it, and
    somebody who goes on writing: each answer is that of a replay of the log at its positions, and between two answers
    there is one change in one partition, and no more."""
    random, cuts, ended, game = Random(5), 50, threading.Event(), "storm"

    def write() -> None:
        while not ended.is_set():
            send(running, random.choice(MEMBERS), Score(game=game, points=random.randint(0, 9)))

    def replace_shard(number: int) -> None:
        shard = next(shard for shard in reversed(running.shards) if shard.number == number)
        shard.kill()
        for key in MEMBERS[:6]:
            send(running, key, Score(game=game, points=random.randint(10, 19)), wait="log")
        running.start_shard(shard.number, shard.partitions)

    with RunningApp(club, tmp_path, policy=Policy(snapshot_every=40)) as running:
        seen: list[Heard] = []
        writing = threading.Thread(target=write)
        writing.start()
        for cut in range(cuts):
            if cut % 7 == 3:
                running.service.subscriptions._topics.clear()  # as if it came to another gateway
            if cut % 10 == 4:
                replace_shard(cut % 2)
            with watching(running, Players, game, last=seen[-1].id if seen else "", limit=100) as reader:
                for event in range(random.randint(1, 6)):
                    if (cut % 10, event) == (9, 1):
                        replace_shard(1 - cut % 2)
                    seen.append(reader.next())
        ended.set()
        writing.join()
        parts = _replayed(running, Players, game)

    assert not any("gap" in heard.data for heard in seen)
    assert len(running.shards) >= 2 + cuts // 10
    _check_against(parts, seen, Players, limit=100)


@pytest.mark.parametrize(("model", "limit"), [(Best, 3), (Points, 100)])
def test_what_is_cut_to_the_first_rows_is_told_when_these_change(tmp_path: Path, model: type[ReadModel], limit: int):
    """Of a ranking's first rows, or a tally, while a shard is killed: what does not change them is not told, and each
    answer is that of a replay of the log at its positions."""
    random = Random(3)
    with RunningApp(club, tmp_path, partitions=3) as running:
        more = {} if model is Points else {"limit": limit}
        with watching(running, model, "top", **more) as reader:
            seen = [reader.next()]
            for turn in range(40):
                if turn % 15 == 7:
                    shard = running.shard_of("member00")
                    shard.kill()
                    running.start_shard(shard.number, shard.partitions)
                send(running, random.choice(MEMBERS), Score(game="top", points=random.randint(0, 99)))
            send(running, "member00", Score(game="top", points=1000))
            while "1000" not in json.dumps(seen[-1].data):
                seen.append(reader.next())
        parts = _replayed(running, model, "top")

    answers = [_without_positions(heard.data) for heard in seen]
    assert all(one != next_ for one, next_ in pairwise(answers))
    _check_against(parts, seen, model, limit=limit)


Part = list[tuple[int, Any]]


def _replayed(running: RunningApp, model: type[ReadModel], place: str) -> list[Part]:
    """What each partition had at a place with each record that changed it, and the offset of that."""
    found: list[Part] = []
    for partition in range(running.log.partitions):
        image, part = Image(partition, Codec(club), new_text_index=FtsIndex), []

        def note(_handled: Handled | None, image: Image = image, part: Part = part) -> None:
            assert image.read_models is not None
            index = image.read_models.index(model.__engram__.name or "")
            now = index.find(place) if isinstance(index, TalliedRows) else index.find(place, None, 1000)
            if not part or part[-1][1] != now:
                part.append((image.offset - 1, now))

        note(None)
        replay_until(image, running.log, running.log.end(partition), effects=note, progress=lambda: None)
        found.append(part)
    return found


def _check_against(parts: list[Part], seen: list[Heard], model: type[ReadModel], *, limit: int) -> None:
    before: list[int] | None = None
    for heard in seen:
        positions = [Position.parse(text) for text in heard.data["positions"]]
        offsets = [position.offset for position in positions]
        assert str(Token.of("club", len(parts), positions)) == heard.id
        assert _without_positions(heard.data) == _answer_at(parts, offsets, model, limit)
        if before is not None:
            steps = [_changes_between(part, *span) for part, span in zip(parts, zip(before, offsets), strict=True)]  # noqa: B905
            assert all(now >= then for then, now in zip(before, offsets, strict=True))
            assert sum(map(len, steps)) >= 1
            if model is Players:  # all rows are seen, so every change is
                assert sum(map(len, steps)) == 1, (before, offsets, steps)
                changed = next(partition for partition, found in enumerate(steps) if found)
                assert offsets[changed] == steps[changed][0]
        before = offsets


def _changes_between(part: Part, after: int, upto: int) -> list[int]:
    return [offset for offset, _ in part if after < offset <= upto]


def _answer_at(parts: list[Part], offsets: list[int], model: type[ReadModel], limit: int) -> Any:
    found = [next(now for at, now in reversed(part) if at <= upto) for part, upto in zip(parts, offsets, strict=True)]
    if model is Points:
        return merge_totals(found)._asdict()
    rows: list[Found] = merge_rows(found, limit)[0]
    return {"rows": json.loads(rows_json(model, rows))}


def _without_positions(data: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in data.items() if name != "positions"}


def test_what_cannot_be_found_out_says_so(tmp_path: Path):
    """Here no record may be replayed for it: changes come as one, with a word that there may have been others."""
    with (
        RunningApp(club, tmp_path, partitions=2, shards=1, policy=Policy(missed_records=0)) as running,
        watching(running, Marked, "unknown") as reader,
    ):
        reader.next()
        running.shards[0].kill()
        for key in MEMBERS[:3]:
            send(running, key, Mark(mark="unknown"), wait="log")
        running.start_shard(0, [0, 1])
        heard = [reader.next()]
        while len(heard[-1].data["rows"]) < 3:
            heard.append(reader.next())

    assert all(each.data["gap"] for each in heard)
    assert heard[-1].data["rows"] == MEMBERS[:3]


# The typed client


def test_the_client_watches_read_models(running: RunningApp):
    """Every kind with its own type, from what the client has sent itself on."""

    async def story() -> list[Any]:
        async with running.client() as client:
            await client.submit("member00", Mark(mark="by-client"))
            await client.submit("member00", Score(game="by-client", points=4))
            await client.submit("member00", Write(bio="client biography"))
            streams: list[AsyncGenerator[Any]] = [
                client.watch(Marked, "by-client"),
                client.watch(Players, "by-client", limit=5),
                client.watch(Best, "by-client"),
                client.watch(Points, "by-client"),
                client.watch(Bios, "client"),
            ]  # type: ignore[list-item]  # they are generators
            found = [await anext(stream) for stream in streams]
            await client.send("member01", Mark(mark="by-client"))
            found.append(await anext(streams[0]))
            for stream in streams:
                await stream.aclose()
            return found

    player = Player(who="member00", points=4)
    one = [["member00"], [player], [Ranked(4, "member00")], Totals(1, 4, 4, 4), ["member00"]]
    assert asyncio.run(story()) == [*one, ["member00", "member01"]]


# What is refused


@pytest.mark.parametrize(
    ("path", "parameters", "last", "problem"),
    [
        ("marked", {}, "", (422, "write key=...")),
        ("marked", {"key": "x", "cursor": "x"}, "", (422, "Unknown parameter cursor")),
        ("marked", {"key": "x", "limit": "1001"}, "", (422, "limit=1001 is not a whole number from 1 to 1000")),
        ("points", {"group": "x", "limit": "1"}, "", (422, "Unknown parameter limit")),
        ("marked", {"key": "x"}, "nonsense", (400, "is not a token")),
        (
            "marked",
            {"key": "x"},
            str(Token("other", 4, dict.fromkeys(range(4), 0))),
            (400, "The token is of app other"),
        ),
        ("marked", {"key": "x"}, str(Token("club", 4, {0: 0})), (400, "does not name all partitions")),
        ("marked", {"key": "x"}, str(Token("club", 4, dict.fromkeys(range(4), 99_999))), (409, "the log ends with")),
        ("marked", {"key": "x", "at_least": "99:0.0"}, "", (422, "There is no partition 99")),
    ],
)
def test_what_does_not_fit_is_told_before_the_stream_begins(
    running: RunningApp, path: str, parameters: dict[str, str], last: str, problem: tuple[int, str]
):
    """A wrong parameter is as for the read; an event of another app or log is 400; one of the future is 409."""
    headers = {**STREAM, "Last-Event-ID": last} if last else STREAM
    response = running.http.get(f"{BASE}/{path}", params=parameters, headers=headers)

    assert response.status_code == problem[0]
    assert problem[1] in response.json()["detail"]


def test_one_that_is_broken_says_so(tmp_path: Path):
    """Who reads it then gets an event with the reason; who comes later gets 500; the client raises `Quarantined`."""

    async def ask(running: RunningApp) -> None:
        async with running.client() as client:
            async for _ in client.watch(Fragile, "before"):
                pass

    with RunningApp(club, tmp_path, partitions=2) as running:
        send(running, "ada", Mark(mark="x"))
        with watching(running, Fragile, "before") as reader:
            first = reader.next()
            send(running, "ada", Spoil())
            second = reader.next()
        later = running.http.get(f"{BASE}/fragile", params={"key": "before"}, headers=STREAM)
        with pytest.raises(Quarantined, match="fragile is broken"):
            asyncio.run(ask(running))

    assert first.data["rows"] == ["ada"]
    assert (second.event, second.data["refused"]["kind"]) == ("refused", "failed")
    assert "fragile is broken" in second.data["refused"]["text"]
    assert later.status_code == 500


READY = threading.Event()


class Slow(Lookup[Member, str], name="slow"):
    """Takes its time until it is let go."""

    def rows(self, member: Member) -> Iterator[tuple[str, str]]:
        READY.wait(0.05)
        yield "all", member.key


def test_while_it_is_being_built_it_is_503(tmp_path: Path):
    """A read model that is new, with how far it is; then it is watched as any other."""
    path, parameters = f"{BASE}/slow", {"key": "all", "limit": 1000}
    with RunningApp(App("club", commands=[Mark]), tmp_path, partitions=1, shards=1) as running:
        for number in range(100):
            send(running, f"m{number}", Mark(mark="x"), wait="log")
    with RunningApp(App("club", commands=[Mark], read_models=[Slow]), tmp_path, partitions=1, shards=1) as running:
        early = running.http.get(path, params=parameters, headers=STREAM)
        READY.set()
        deadline = time.monotonic() + 3 * SECONDS
        while running.http.get(path, params=parameters).status_code == 503:
            assert time.monotonic() < deadline
        with watching(running, Slow, "all", limit=1000) as reader:
            found = reader.next()

    assert early.status_code == 503
    assert "slow is being built: " in early.json()["detail"]
    assert "of 100 entities are done" in early.json()["detail"]
    assert len(found.data["rows"]) == 100


# Many readers, and slow ones


async def _subscribed(running: RunningApp, mark: str) -> AsyncGenerator[bytes]:
    nothing = Token("club", running.log.partitions)
    return await running.service.subscribe_rows(Marked, mark, limit=1000, at_least=nothing, last=None, seconds=20)


async def _next(stream: AsyncGenerator[bytes]) -> bytes:
    async with asyncio.timeout(SECONDS):
        return await next_event(stream)


def test_thousands_of_readers_cost_one_evaluation_per_change(running: RunningApp, monkeypatch: pytest.MonkeyPatch):
    """2,000 subscribers of one place see ten changes, and its shard has looked ten times more; changes at other places
    cost nothing."""
    looked: list[str] = []
    look_into: Callable[..., bytes] = serve.look_into

    def counted(image: Image, look: Any) -> bytes:
        looked.append(look.place)
        return look_into(image, look)

    monkeypatch.setattr(serve, "look_into", counted)

    async def watch() -> int:
        streams = [await _subscribed(running, "popular") for _ in range(2000)]
        for stream in streams:
            await _next(stream)
        before = looked.count("popular")
        for number, key in enumerate(MEMBERS[:10], 1):
            await running.service.send(key, Mark(mark="unpopular"), seconds=20)
            await running.service.send(key, Mark(mark="popular"), seconds=20)
            for stream in streams:
                assert json.loads((await _next(stream)).split(b"data: ")[1])["rows"] == MEMBERS[:number]
        for stream in streams:
            await stream.aclose()
        return looked.count("popular") - before

    # Some more if the machine is so busy that the lease has ended meanwhile.
    assert 10 <= running.on_loop(watch()) < 20


def test_a_reader_that_is_too_slow_is_dropped_with_the_reason(running: RunningApp):
    """It gets no gap: either what comes next, or the word that it is too far behind. Both are counted."""

    async def dawdle() -> list[bytes]:
        slow, fast = await _subscribed(running, "slow"), await _subscribed(running, "slow")
        heard = [await _next(slow)]
        await _next(fast)
        for number in range(KEPT + 10):
            key = f"slow{number:03}"
            await running.service.send(key, Mark(mark="slow"), seconds=20)
            await _next(fast)
        heard += [message async for message in slow]
        await fast.aclose()
        return heard

    heard = running.on_loop(dawdle())
    figures = running.http.get("/metrics").text

    assert b"266 changes behind, and 256 are kept" in heard[-1]
    assert len(heard) == 2
    assert 'engram_subscribers_dropped_total{app="club",reason="slow"} 1.0' in figures
    assert "engram_changes_told_total" in figures
