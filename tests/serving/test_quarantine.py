"""The quarantine over HTTP and by the client: what failed is listed, shown, retried and dropped."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from engram import App, Client, Misuse, Position, Unavailable
from engram.clock import system_clock
from engram.codec.codec import Codec
from engram.codec.record import Kind, PlainHeader, encode_plain
from engram.image import quarantine as bounds
from engram.image.image import Image
from engram.image.outcome import Verdict
from engram.log.base import Entry
from engram.log.partitioner import partition_of
from engram.model.entity import EVERYWHERE
from engram.serving.failed import Dropped, FailedCommands, Retried
from engram.shard.replay import replay_until

from tests.serving.bakery import BROKEN, SET, Bake, Loaves, app
from tests.serving.running import RunningApp

QUARANTINE = "/api/bakery/quarantine"


@pytest.fixture
def bakery(tmp_path: Path) -> Iterator[RunningApp]:
    with RunningApp(app, tmp_path) as running:
        yield running
    BROKEN.clear()
    SET.clear()


def send(running: RunningApp, command: str, key: str, *, entity: str = "oven", **body: Any) -> httpx.Response:
    parameters = {"key": key} if entity == "oven" else {}
    return running.http.post(f"/api/bakery/{entity}/commands/{command}", params=parameters, json=body)


def fail(running: RunningApp, key: str = "ada", **body: Any) -> str:
    """Has a command fail, and returns its position. The oven stays broken."""
    BROKEN.add(key)
    response = send(running, "bake", key, **body)
    assert response.status_code == 500
    return str(response.json()["position"])


def listed(running: RunningApp, **parameters: Any) -> dict[str, Any]:
    response = running.http.get(QUARANTINE, params=parameters)
    assert response.status_code == 200
    return dict(response.json())


def positions(running: RunningApp) -> list[str]:
    return [row["position"] for row in listed(running)["rows"]]


def retry(running: RunningApp, position: str) -> httpx.Response:
    return running.http.post(f"{QUARANTINE}/{position}/retry")


def loaves(running: RunningApp, key: str = "ada") -> int:
    return int(running.http.get("/api/bakery/oven/queries/loaves", params={"key": key}).json()["answer"])


def problem(response: httpx.Response, status: int, kind: str) -> str:
    assert (response.status_code, response.json()["type"]) == (status, f"urn:engram:{kind}")
    assert response.headers["content-type"] == "application/problem+json"
    return str(response.json()["detail"])


def wait_for_rows(running: RunningApp, count: int) -> list[dict[str, Any]]:
    """The rows, once there are so many: of what is sent or fired, nobody waits for the outcome."""
    running.wait_until(
        lambda: sum(p.quarantined for shard in running.registry.shards() for p in shard.partitions) >= count
    )
    return list(listed(running)["rows"])


# Looking


def test_an_app_without_failures_has_an_empty_quarantine(bakery: RunningApp):
    """Rejections and replies are not failures."""
    send(bakery, "bake", "ada")
    send(bakery, "bake", "ada", loaves=101)

    assert listed(bakery) == {"count": 0, "listed": 0, "rows": [], "not_served": []}


def test_failed_commands_of_all_partitions_are_listed_newest_first(bakery: RunningApp):
    """Each with its position, command, entity, key, time, error and number of failures; no bodies, no tracebacks."""
    before = datetime.now(UTC) - timedelta(seconds=1)
    sent = [fail(bakery, key) for key in ("ada", "bob", "cid", "dan")]
    found = listed(bakery)
    row = found["rows"][0]

    assert len({position.split(":")[0] for position in sent}) > 1
    assert sorted(positions(bakery)) == sorted(sent)
    times = [datetime.fromisoformat(row["time"]) for row in found["rows"]]
    assert times == sorted(times, reverse=True)
    assert (found["count"], found["listed"], found["not_served"]) == (4, 4, [])
    assert row.keys() == {"position", "command", "entity", "key", "time", "error", "failures"}
    assert (row["command"], row["entity"], row["failures"]) == ("bake", "oven", 1)
    assert row["error"] == "RuntimeError: the oven is cold"
    assert before < times[0] < datetime.now(UTC) + timedelta(seconds=1)
    assert loaves(bakery) == 0


def test_a_limit_leaves_out_the_oldest(bakery: RunningApp):
    """Of all and not of each partition; the numbers tell of those that are left out."""
    sent = [fail(bakery, "ada") for _ in range(3)]
    sent.append(fail(bakery, "bob"))
    found = listed(bakery, limit=2)

    assert [row["position"] for row in found["rows"]] == [sent[3], sent[2]]
    assert (found["count"], found["listed"]) == (4, 4)


def test_the_list_of_a_partition_is_bounded(bakery: RunningApp, monkeypatch: pytest.MonkeyPatch):
    """Beyond the bound failures are counted, and the list says how many it has."""

    async def storm() -> None:
        async with bakery.client() as client:
            await asyncio.gather(*(client.submit("ada", Bake()) for _ in range(8)))

    monkeypatch.setattr(bounds, "LISTED", 5)
    BROKEN.add("ada")
    asyncio.run(storm())
    wait_for_rows(bakery, 8)
    found = listed(bakery, limit=10_000)

    assert (found["count"], found["listed"], len(found["rows"])) == (8, 5, 5)


def test_a_failed_command_is_shown_with_its_fields_and_traceback(bakery: RunningApp):
    """The body as it was sent, and where the handler raised; the framework's own lines are left out."""
    position = fail(bakery, loaves=7)
    response = bakery.http.get(f"{QUARANTINE}/{position}")
    row = response.json()

    assert response.status_code == 200
    assert (row["position"], row["command"], row["version"], row["body"]) == (position, "bake", 1, {"loaves": 7})
    first, *_, last = row["traceback"].splitlines()
    assert (first, last) == ("Traceback (most recent call last):", "RuntimeError: the oven is cold")
    assert "bakery.py" in row["traceback"]
    assert "image.py" not in row["traceback"]


@pytest.mark.parametrize("position", ["0:999.0", "0:0.0", "99:1.0", "0:1.-5"])
def test_a_position_where_nothing_failed_is_404(bakery: RunningApp, position: str):
    """To look at, to retry and to drop: one sentence, and nothing is logged."""
    ends = [bakery.log.end(p) for p in range(4)]
    there = f"{QUARANTINE}/{position}"
    for response in (bakery.http.get(there), bakery.http.post(f"{there}/retry"), bakery.http.delete(there)):
        assert problem(response, 404, "not_in_quarantine") == (
            f"There is no command {position} in quarantine: it was retried or dropped, or never failed."
        )
    assert [bakery.log.end(p) for p in range(4)] == ends


@pytest.mark.parametrize(
    ("path", "parameters", "said"),
    [
        ("/nonsense", {}, "'nonsense' is not a position"),
        ("/3:1", {}, "'3:1' is not a position"),
        ("", {"limit": 0}, "limit=0 is not a whole number from 1 to 10000"),
        ("", {"limit": "all"}, "limit=all is not a whole number"),
        ("", {"key": "ada"}, "Unknown parameter key: there are limit, timeout"),
        ("/0:1.0", {"timeout": "soon"}, "timeout=soon is not a number of seconds"),
    ],
)
def test_what_does_not_fit_is_422(bakery: RunningApp, path: str, parameters: dict[str, Any], said: str):
    """The sentence names what is wrong."""
    assert said in problem(bakery.http.get(f"{QUARANTINE}{path}", params=parameters), 422, "misuse")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [("POST", "", "GET"), ("PUT", "/0:1.0", "GET, DELETE"), ("GET", "/0:1.0/retry", "POST")],
)
def test_a_wrong_method_is_405(bakery: RunningApp, method: str, path: str, allowed: str):
    """The answer says which are right."""
    response = bakery.http.request(method, f"{QUARANTINE}{path}")

    problem(response, 405, "wrong_method")
    assert response.headers["allow"] == allowed


def test_a_partition_that_is_not_served_is_told(bakery: RunningApp):
    """The failures of the others are listed, and the one that could not be asked is named with the reason."""
    key, other = bakery.key_in(1), bakery.key_in(2)
    fail(bakery, key)
    position = fail(bakery, other)
    bakery.spoil(1)
    bakery.wait_until(lambda: bool(bakery.registry.problem(1)))
    found = listed(bakery)

    assert [row["position"] for row in found["rows"]] == [position]
    ((partition, why),) = [(missing["partition"], missing["problem"]) for missing in found["not_served"]]
    assert (partition, found["count"]) == (1, 1)
    assert why.startswith("Partition 1 is stopped.")


# Retrying


def test_a_retry_after_the_cause_is_gone_is_handled_as_a_new_command(bakery: RunningApp):
    """It has a position of its own and its reply; it takes effect once, and is off the list."""
    position = fail(bakery, loaves=3)
    BROKEN.clear()
    response = retry(bakery, position)
    retried = response.json()

    assert response.status_code == 200
    assert (retried["outcome"], retried["reply"], retried["error"]) == ("reply", 3, "")
    assert Position.parse(retried["position"]) > Position.parse(position)
    assert response.headers["engram-position"] == retried["position"]
    at = Position.parse(retried["position"])
    header = Codec(app).decode_record(bakery.log.read(at.partition, at.offset, limit=1)[0]).header
    assert (header.idempotency, header.keys) == ({0: f"retry {position}"}, ["ada"])
    assert header.releases == [Position.parse(position)[1:]]
    assert (loaves(bakery), positions(bakery), listed(bakery)["count"]) == (3, [], 1)
    assert problem(retry(bakery, position), 404, "not_in_quarantine")
    assert loaves(bakery) == 3


def test_a_retry_that_is_rejected_says_so(bakery: RunningApp):
    """A rejection is an outcome with its code and text; the command is off the list."""
    position = fail(bakery, loaves=101)
    BROKEN.clear()
    retried = retry(bakery, position).json()

    assert (retried["outcome"], retried["code"], retried["error"]) == ("rejected", "too_many", "They do not fit.")
    assert positions(bakery) == []


def test_a_retry_that_fails_again_is_in_quarantine_again(bakery: RunningApp):
    """At its new position, with the number of failures; the reply says both, and why."""
    position = fail(bakery, loaves=2)
    for failures in (2, 3):
        retried = retry(bakery, position).json()
        assert (retried["outcome"], retried["failures"]) == ("quarantined", failures)
        assert retried["error"] == "RuntimeError: the oven is cold"
        position = retried["position"]
    (row,) = listed(bakery)["rows"]

    assert (row["position"], row["failures"]) == (position, 3)
    assert bakery.http.get(f"{QUARANTINE}/{position}").json()["body"] == {"loaves": 2}


def test_retries_at_the_same_time_have_it_handled_once(bakery: RunningApp):
    """All of them get the same outcome, with the same position."""
    position = fail(bakery)
    BROKEN.clear()

    async def together() -> list[dict[str, Any]]:
        async with httpx.AsyncClient(base_url=bakery.url, timeout=20, trust_env=False) as http:
            path = f"{QUARANTINE}/{position}/retry"
            responses = await asyncio.gather(*(http.post(path) for _ in range(10)))
            return [response.json() for response in responses if response.status_code == 200]

    outcomes = asyncio.run(together())

    assert outcomes
    assert all(outcome == outcomes[0] for outcome in outcomes)
    assert (outcomes[0]["reply"], loaves(bakery)) == (1, 1)


def test_commands_of_messages_and_timers_can_be_retried(bakery: RunningApp):
    """Nobody waited for them when they failed; retried, they are handled by the entity that they were for."""
    BROKEN.update(("ada", "bob"))
    send(bakery, "order", "bob", of="ada")
    send(bakery, "bake_later", "bob")
    rows = {row["key"]: row for row in wait_for_rows(bakery, 2)}
    BROKEN.clear()
    by_message = retry(bakery, rows["ada"]["position"]).json()
    by_timer = retry(bakery, rows["bob"]["position"]).json()

    assert Position.parse(rows["bob"]["position"]).index < 0
    assert (by_message["reply"], by_timer["reply"], positions(bakery)) == (1, 1, [])
    assert (loaves(bakery, "ada"), loaves(bakery, "bob")) == (1, 1)


def test_a_broadcast_that_failed_at_home_is_broadcast_again(bakery: RunningApp):
    """All partitions hear of it."""
    BROKEN.add("prices")
    position = send(bakery, "set_price", "", entity="prices", loaf=-5).json()["position"]
    (row,) = listed(bakery)["rows"]
    BROKEN.clear()
    retried = retry(bakery, position).json()
    bakery.wait_until(lambda: sum(p.handled for s in bakery.registry.shards() for p in s.partitions) >= 5)
    prices = [
        image.entities["prices"][EVERYWHERE].loaf  # type: ignore[attr-defined]
        for image in (_replayed(bakery, partition) for partition in range(4))
    ]

    assert (row["command"], row["entity"], retried["reply"]) == ("set_price", "prices", -5)
    assert prices == [-5] * 4


def test_a_broadcast_that_failed_elsewhere_alone_is_not_sent_again(bakery: RunningApp):
    """All others have handled it already; the sentence says what to do instead, and it can be dropped."""
    assert send(bakery, "set_price", "", entity="prices", loaf=9, only_at_home=True).json()["reply"] == 9
    rows = wait_for_rows(bakery, 3)
    said = problem(retry(bakery, rows[0]["position"]), 422, "misuse")

    assert str(partition_of(EVERYWHERE, 4)) not in [row["position"].split(":")[0] for row in rows]
    assert "would be handled twice in all others" in said
    assert "drop this one" in said
    assert bakery.http.delete(f"{QUARANTINE}/{rows[0]['position']}").status_code == 200


def test_a_record_that_nobody_could_read_can_only_be_dropped(bakery: RunningApp):
    """It has no command to retry: the sentence says what to do instead."""
    header = PlainHeader(name="", version="1", key="ada")
    place = bakery.log.append([Entry(2, Kind.PLAIN, system_clock(), encode_plain(header, b"{}"))])[0]
    (row,) = wait_for_rows(bakery, 1)
    shown = bakery.http.get(f"{QUARANTINE}/2:{place}.0").json()
    said = problem(retry(bakery, row["position"]), 422, "misuse")
    dropped = bakery.http.delete(f"{QUARANTINE}/{row['position']}")

    assert (row["position"], row["command"], row["entity"]) == (f"2:{place}.0", "", "")
    assert "has no header `name`" in shown["error"]
    assert shown["body"] is None
    assert said == f"2:{place}.0 is a record that nobody could read: write it anew as it should be, and drop this."
    assert (dropped.status_code, positions(bakery)) == (200, [])


def test_a_command_whose_fields_are_lost_can_only_be_dropped(bakery: RunningApp):
    """Its handler has put something into it that cannot be written down."""
    position = send(bakery, "crumble", "ada").json()["position"]
    shown = bakery.http.get(f"{QUARANTINE}/{position}").json()
    said = problem(retry(bakery, position), 422, "misuse")

    assert shown["body"] is None
    assert "send it anew, and drop this one" in said
    assert bakery.http.delete(f"{QUARANTINE}/{position}").status_code == 200


def test_a_command_that_the_app_no_longer_has_is_not_logged(tmp_path: Path):
    """A newer version of the app without it lists it, and refuses to retry it: its partition would stop."""
    with RunningApp(app, tmp_path) as old:
        position = fail(old)
    BROKEN.clear()
    newer = App("bakery", version=2, commands=[c for c in app.commands.values() if c is not Bake], queries=[Loaves])
    with RunningApp(newer, tmp_path) as new:
        (row,) = listed(new)["rows"]
        ends = [new.log.end(p) for p in range(4)]
        said = problem(retry(new, position), 422, "misuse")

        assert (row["position"], row["command"], row["entity"], row["key"]) == (position, "bake", "", "ada")
        assert "cannot be read any more: app bakery has no command named 'bake'" in said
        assert [new.log.end(p) for p in range(4)] == ends
        assert new.http.delete(f"{QUARANTINE}/{position}").status_code == 200


# Dropping


def test_a_dropped_command_is_off_the_list_and_was_never_handled(bakery: RunningApp):
    """One record without commands does it; the count of failures stays, and a replay comes to the same."""
    position, kept = fail(bakery, "ada"), fail(bakery, "ada")
    BROKEN.clear()
    dropped = bakery.http.delete(f"{QUARANTINE}/{position}")
    at = Position.parse(dropped.json()["position"])
    record = bakery.log.read(at.partition, at.offset, limit=1)[0]

    assert (dropped.status_code, positions(bakery), listed(bakery)["count"]) == (200, [kept], 2)
    content = Codec(app).decode_record(record)
    assert (record.kind, content.commands) == (Kind.COMMANDS, [])
    assert loaves(bakery) == 0
    problem(bakery.http.delete(f"{QUARANTINE}/{position}"), 404, "not_in_quarantine")


def test_a_successor_has_the_same_list(bakery: RunningApp):
    """What was retried and dropped is so after a crash too."""
    kept, dropped, retried = fail(bakery), fail(bakery), fail(bakery)
    bakery.http.delete(f"{QUARANTINE}/{dropped}")
    again = retry(bakery, retried).json()["position"]
    before = listed(bakery)
    lost = bakery.shard_of("ada")
    lost.kill()
    bakery.start_shard(lost.number, lost.partitions)
    owners = {f"{lost.number}-3"}
    bakery.wait_until(
        lambda: any(s.owner in owners and s.partitions[-1].state == "serving" for s in bakery.registry.shards())
    )

    assert positions(bakery) == [again, kept]
    assert listed(bakery) == before


# The client


def test_the_client_lists_shows_retries_and_drops(bakery: RunningApp):
    """With types: positions, times and outcomes are not texts."""
    one, other = fail(bakery, "ada", loaves=4), fail(bakery, "bob")

    async def talk() -> tuple[FailedCommands, Any, Retried, Retried, Dropped, int]:
        async with bakery.client() as client:
            found = await client.quarantined(limit=10)
            detail = await client.quarantine_row(Position.parse(one))
            again = await client.retry(Position.parse(other))
            BROKEN.clear()
            retried = await client.retry(detail.position)
            dropped = await client.drop(again.position)
            return found, detail, again, retried, dropped, await client.ask("ada", Loaves())

    found, detail, again, retried, dropped, there = asyncio.run(talk())

    assert {row.position for row in found.rows} == {Position.parse(one), Position.parse(other)}
    assert (found.count, found.listed, found.not_served) == (2, 2, [])
    assert (detail.body, detail.version, detail.time.tzinfo) == ({"loaves": 4}, 1, UTC)
    assert (again.outcome, again.failures) == (Verdict.QUARANTINED, 2)
    assert (retried.outcome, retried.reply, there) == (Verdict.REPLY, 4, 4)
    assert dropped.position > again.position
    assert positions(bakery) == []


def test_the_client_raises_misuse_for_what_is_not_there(bakery: RunningApp):
    """To look at, to retry and to drop."""

    async def talk() -> None:
        nowhere = Position(0, 999, 0)
        async with bakery.client() as client:
            for asked in (client.quarantine_row, client.retry, client.drop):
                with pytest.raises(Misuse, match=r"There is no command 0:999\.0 in quarantine"):
                    await asked(nowhere)

    asyncio.run(talk())


def test_the_client_raises_unavailable_without_a_gateway(nobody: str):
    """A retry is tried once: whether it was done is for the caller to look at."""

    async def talk() -> None:
        async with Client(nobody, app, patience=30) as client:
            with pytest.raises(Unavailable, match="could not be reached"):
                await client.retry(Position(0, 1, 0))

    asyncio.run(talk())


def _replayed(running: RunningApp, partition: int) -> Image:
    image = Image(partition, Codec(app))
    end = running.log.end(partition)
    replay_until(image, running.log, end, effects=lambda *_: None, progress=lambda: None)
    return image
