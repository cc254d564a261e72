"""Snapshots of a running app, over HTTP: on request while it goes on, and as savepoints at its end."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from engram import Misuse, Unavailable
from engram.serving.taken import SnapshotsTaken
from engram.snapshots.files import FileSnapshots

from tests.serving.counter import Add, Value, app
from tests.serving.running import SECONDS, RunningApp

ADD = "/api/counters/counter/commands/add"
SNAPSHOTS = "/api/counters/snapshots"
STOP = "/api/counters/stop"


def _store(running: RunningApp) -> FileSnapshots:
    return FileSnapshots(running.folder / "snapshots", running.app.name)


def test_a_client_has_a_savepoint_taken_of_every_partition(fragile: RunningApp):
    """Under commands that go on; each partition's is whole, has the name, and the digest of its own contents."""

    async def talk() -> tuple[SnapshotsTaken, int]:
        async with fragile.client() as client:
            await asyncio.gather(*(client.send(f"key{n}", Add()) for n in range(40)))
            sending = asyncio.gather(*(client.send("busy", Add()) for _ in range(100)))
            taken = await client.take_snapshots("before-lunch")
            await sending
            return taken, await client.ask("busy", Value())

    taken, busy = asyncio.run(talk())
    found = [_store(fragile).savepoint(partition, "before-lunch") for partition in range(4)]

    assert [(one.partition, one.offset, one.digest) for one in taken.snapshots] == [
        (m.partition, m.offset, m.digest) for m in found if m is not None
    ]
    assert sum(one.entities for one in taken.snapshots) in (40, 41)  # whether "busy" was there yet
    assert busy == 100


def test_a_snapshot_without_a_name_is_of_one_partition_if_that_is_asked_for(fragile: RunningApp):
    """The others are left alone."""
    fragile.http.post(ADD, params={"key": fragile.key_in(2)})
    response = fragile.http.post(SNAPSHOTS, params={"partition": 2})

    assert response.status_code == 200
    (one,) = response.json()["snapshots"]
    assert (one["partition"], one["entities"], one["savepoint"]) == (2, 1, "")
    assert [len(_store(fragile).manifests(p)) for p in range(4)] == [0, 0, 1, 0]


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"savepoint": "a b"}, "'a b' cannot name a savepoint: use 1 to 64 of the characters A-Z a-z 0-9 . _ -"),
        ({"savepoint": "x" * 65}, "cannot name a savepoint"),
        ({"partition": "9"}, "There is no partition 9: the log has 0 to 3."),
        ({"partition": "one"}, "partition=one is not a whole number"),
        ({"name": "x"}, "Unknown parameter name: there are partition, savepoint, timeout."),
    ],
)
def test_what_does_not_fit_is_refused(counters: RunningApp, parameters: dict[str, str], said: str):
    """With the way out in its detail."""
    response = counters.http.post(SNAPSHOTS, params=parameters)

    assert response.status_code == 422
    assert said in response.json()["detail"]


def test_the_same_name_twice_is_refused(fragile: RunningApp):
    """By both doors; it says of which record the first one is, and nothing is stopped."""
    fragile.http.post(SNAPSHOTS, params={"savepoint": "once"})
    again = [fragile.http.post(path, params={"savepoint": "once"}) for path in (SNAPSHOTS, STOP)]

    said = "There is a savepoint once of partition 0 already, of record 1 and version 1: choose another name."
    assert [(response.status_code, response.json()["detail"]) for response in again] == [(422, said)] * 2
    assert fragile.http.get("/health").status_code == 200


def test_get_is_not_for_these_paths(counters: RunningApp):
    """They change something."""
    assert [counters.http.get(path).headers["Allow"] for path in (SNAPSHOTS, STOP)] == ["POST", "POST"]


def test_an_app_is_stopped_with_a_savepoint(tmp_path: Path):
    """Whoever asks hears of every partition, and nothing is left to replay."""
    with RunningApp(app, tmp_path) as running:
        for number in range(20):
            running.http.post(ADD, params={"key": f"key{number}"})
        response = running.http.post(STOP, params={"savepoint": "v1-end"})
        running._thread.join(SECONDS)

    ended = response.json()
    store = FileSnapshots(tmp_path / "snapshots", "counters")
    newest = [store.manifests(p)[0] for p in range(4)]
    assert (response.status_code, ended["savepoint"], ended["app_version"]) == (200, "v1-end", 1)
    assert [(s["partition"], s["offset"], s["entities"]) for s in ended["snapshots"]] == [
        (m.partition, m.offset, m.entities) for m in newest
    ]
    assert {m.savepoint for m in newest} == {"v1-end"}
    assert sum(m.entities for m in newest) == 20


def test_an_app_is_not_stopped_while_a_partition_is_not_served(fragile: RunningApp):
    """A savepoint is of all partitions, so nothing is stopped for one that cannot be whole."""
    fragile.spoil(1)
    fragile.wait_until(lambda: bool(fragile.registry.problem(1)))
    response = fragile.http.post(STOP, params={"savepoint": "v1-end"})

    assert response.status_code == 503
    assert "1 of 4 partitions are not served now (1), so nothing was stopped" in response.json()["detail"]
    assert fragile.http.post(ADD, params={"key": fragile.key_in(0)}).status_code == 200


def test_a_stop_needs_a_name(counters: RunningApp):
    """An app is not stopped by a request that says nothing."""
    response = counters.http.post(STOP)

    assert (response.status_code, response.json()["detail"]) == (
        422,
        "Say how the savepoint is to be called: savepoint=NAME.",
    )


def test_a_store_that_fails_is_told_to_the_client(fragile: RunningApp):
    """What the store says comes to who asked, and the app goes on."""
    for partition in range(4):
        place = fragile.folder / "snapshots" / "counters" / f"partition-{partition:04}"
        place.write_text("a file where a folder should be")

    async def talk() -> int:
        async with fragile.client() as client:
            with pytest.raises(Unavailable, match=r"0 of 4 partitions have it\. The snapshot of partition 0 could not"):
                await client.take_snapshots("nowhere")
            with pytest.raises(Misuse):
                await client.take_snapshots("no/name")
            return await client.send("on", Add())

    assert asyncio.run(talk()) == 1
