"""Read models over HTTP and with the client: all partitions are asked, and what they have is one answer."""

from __future__ import annotations

import asyncio
import base64
import json

import pytest
from engram import Ahead, Client, Misuse, Position, Quarantined, Ranked, Totals

from tests.read_models.club import (
    Best,
    Bios,
    Fragile,
    Leave,
    Mark,
    Marked,
    Player,
    Players,
    Points,
    Score,
    Spoil,
    Write,
)
from tests.read_models.club import app as club
from tests.serving.running import RunningApp

BASE = "/api/club/read_models"
MEMBERS = [f"member{number:02}" for number in range(12)]


async def play(client: Client, game: str) -> None:
    """All members have points in a game, from 0 up."""
    await asyncio.gather(*(client.send(m, Score(game=game, points=n)) for n, m in enumerate(MEMBERS)))


def test_every_kind_is_read_as_its_class_declares(running: RunningApp):
    """Rows of all partitions come in their order, with their own types, and include what was just sent."""

    async def story() -> None:
        async with running.client() as client:
            await play(client, "typed")
            await client.send("member03", Mark(mark="typed"))
            await client.send("member01", Mark(mark="typed"))
            await client.send("member05", Write(bio="a typed biography"))
            assert await client.look_up(Marked, "typed") == ["member01", "member03"]
            assert (await client.look_up(Players, "typed", limit=1)) == [Player(who="member00", points=0)]
            assert await client.top(Best, "typed", 2) == [Ranked(11, "member11"), Ranked(10, "member10")]
            assert await client.tally(Points, "typed") == Totals(12, 66, 0, 11)
            assert await client.search(Bios, "typed bio*") == ["member05"]
            await client.send("member01", Leave())
            assert await client.look_up(Marked, "typed") == ["member03"]
            assert await client.tally(Points, "typed") == Totals(11, 65, 0, 11)

    asyncio.run(story())


def test_an_answer_says_the_position_of_every_partition(running: RunningApp):
    """Body and header have a position for each partition, and they can be asked for again."""
    response = running.http.get(f"{BASE}/marked", params={"key": "positions"})
    positions = response.json()["positions"]
    again = running.http.get(f"{BASE}/marked", params={"key": "positions", "at_least": ",".join(positions)})

    assert [Position.parse(p).partition for p in positions] == [0, 1, 2, 3]
    assert response.headers["engram-position"] == ",".join(positions)
    assert again.status_code == 200


def test_pages_are_cut_by_a_cursor(running: RunningApp):
    """Page by page there is every row once, while scores of rows behind the cursor come and go."""

    async def story() -> list[str]:
        async with running.client() as client:
            await play(client, "paged")
            seen: list[str] = []
            page = await client.top(Best, "paged", 5)
            while True:
                seen += [ranked.row for ranked in page]
                if page.cursor is None:
                    return seen
                await client.send("late", Score(game="paged", points=100))
                page = await client.top(Best, "paged", 5, after=page.cursor)

    assert asyncio.run(story()) == MEMBERS[::-1]


@pytest.mark.parametrize(
    ("model", "place", "empty"),
    [
        ("marked", "key", {"rows": [], "cursor": None}),
        ("best", "board", {"rows": [], "cursor": None}),
        ("bios", "words", {"rows": [], "cursor": None}),
        ("points", "group", {"count": 0, "sum": 0, "min": None, "max": None}),
    ],
)
def test_what_nothing_is_known_of_is_empty(running: RunningApp, model: str, place: str, empty: dict[str, object]):
    """An unknown key, board, group or word is an empty answer, not an error."""
    response = running.http.get(f"{BASE}/{model}", params={place: "nowhere"})
    content = response.json()
    del content["positions"]

    assert (response.status_code, content) == (200, empty)


def cursor_of(running: RunningApp, game: str) -> str:
    async def story() -> str | None:
        async with running.client() as client:
            await play(client, game)
            return (await client.top(Best, game, 2)).cursor

    cursor = asyncio.run(story())
    assert cursor is not None
    return cursor


def test_a_cursor_that_was_changed_is_400(running: RunningApp):
    """A cursor that was tampered with in any place, is of another board, or is none at all, is refused."""
    cursor = cursor_of(running, "sealed")
    good = running.http.get(f"{BASE}/best", params={"board": "sealed", "cursor": cursor})
    changed = [cursor[:at] + ("A" if cursor[at] != "A" else "B") + cursor[at + 1 :] for at in range(len(cursor) - 1)]
    forged = base64.urlsafe_b64encode(b"12345678" + json.dumps([0, "a", '"b"']).encode()).decode()

    assert good.status_code == 200
    for wrong in [*changed, forged, "", "!", "x" * 50, "é"]:
        response = running.http.get(f"{BASE}/best", params={"board": "sealed", "cursor": wrong})
        assert (response.status_code, response.json()["type"]) == (400, "urn:engram:foreign"), wrong
    elsewhere = running.http.get(f"{BASE}/best", params={"board": "other", "cursor": cursor})
    assert elsewhere.status_code == 400
    assert "not one of best at 'other' in app club" in elsewhere.json()["detail"]


def test_the_client_says_that_a_cursor_is_wrong(running: RunningApp):
    """A wrong cursor is the caller's mistake."""

    async def story() -> None:
        async with running.client() as client:
            with pytest.raises(Misuse, match="The cursor is not one of best"):
                await client.top(Best, "go", 2, after="wrong")

    asyncio.run(story())


@pytest.mark.parametrize(
    ("path", "parameters", "status", "text"),
    [
        ("marked", {}, 422, "write key=..."),
        ("best", {"key": "x"}, 422, "Unknown parameter key: there are at_least, board, cursor, limit, timeout"),
        ("points", {"group": "x", "limit": "1"}, 422, "Unknown parameter limit"),
        ("marked", {"key": "x", "limit": "0"}, 422, "limit=0 is not a whole number from 1 to 10000"),
        ("marked", {"key": "x", "at_least": "now"}, 422, "'now' is not a position"),
        ("marked", {"key": "x", "at_least": "99:0.0"}, 422, "There is no partition 99: the log has 0 to "),
        ("market", {"key": "x"}, 404, "There is no read model named 'market'. Did you mean marked"),
        ("", {}, 404, "There is no read model named ''. There are: best, bios"),
    ],
)
def test_what_does_not_fit_is_told(running: RunningApp, path: str, parameters: dict[str, str], status: int, text: str):
    """A wrong parameter or name is refused with what would be right."""
    response = running.http.get(f"{BASE}/{path}", params=parameters)

    assert response.status_code == status
    assert text in response.json()["detail"]


def test_another_method_is_405(running: RunningApp):
    """Read models are only read."""
    response = running.http.post(f"{BASE}/marked", params={"key": "x"})

    assert (response.status_code, response.headers["allow"]) == (405, "GET")


def test_a_bound_from_the_future_is_refused(running: RunningApp):
    """One partition that cannot come that far is enough: a position that the log does not have is 409, with both."""

    async def story() -> None:
        async with running.client(timeout=0.3) as client:
            with pytest.raises(Ahead, match="Record 999999 of partition 2 was asked for, and the log ends with"):
                await client.look_up(Marked, "x", at_least=Position(2, 999_999, 0))

    asyncio.run(story())


def test_one_that_is_broken_says_so(tmp_path):
    """The command stands and gets its reply; the read model is an error, with the traceback in the status."""

    async def story(running: RunningApp) -> None:
        async with running.client() as client:
            await client.send("ada", Mark(mark="x"))
            assert await client.look_up(Fragile, "before") == ["ada"]
            assert await client.send("ada", Spoil()) == "ada"
            with pytest.raises(Quarantined, match=r"fragile is broken.*ValueError: ada is spoiled"):
                await client.look_up(Fragile, "before")
            assert await client.look_up(Marked, "x") == ["ada"]
            status = await client.status(digests=True)
            told = [m for s in status["shards"] for p in s["partitions"] for m in p["read_models"] if m[3]]
            assert [model[0] for model in told] == ["fragile"]
            assert "Traceback" in told[0][3]

    with RunningApp(club, tmp_path) as running:
        asyncio.run(story(running))


def test_rows_are_there_again_after_a_restart(tmp_path):
    """A shard that comes back builds what it needs, and answers as before."""

    async def before(running: RunningApp) -> None:
        async with running.client() as client:
            await play(client, "go")

    async def after(running: RunningApp) -> None:
        async with running.client() as client:
            assert await client.tally(Points, "go") == Totals(12, 66, 0, 11)
            assert [ranked.row for ranked in await client.top(Best, "go", 100)] == MEMBERS[::-1]

    with RunningApp(club, tmp_path) as running:
        asyncio.run(before(running))
        running.shards[0].kill()
        running.start_shard(0, running.shards[0].partitions)
        asyncio.run(after(running))
