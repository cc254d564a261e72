"""`engram quarantine`: a person who is woken at night sees what failed, for whom, why, how often, and what to do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.cli.saying import Engram, sentence
from tests.serving.bakery import BROKEN, app
from tests.serving.running import RunningApp


@pytest.fixture(scope="module")
def shared_bakery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApp]:
    with RunningApp(app, tmp_path_factory.mktemp("bakery")) as running:
        yield running


@pytest.fixture
def bakery(shared_bakery: RunningApp) -> Iterator[RunningApp]:
    """A bakery with nothing in quarantine, for all tests together."""
    with capture_logs():  # the shards' own, which would come on the command's stdout here
        yield shared_bakery
    BROKEN.clear()
    for row in shared_bakery.http.get("/api/bakery/quarantine").json()["rows"]:
        shared_bakery.http.delete(f"/api/bakery/quarantine/{row['position']}")


def fail(running: RunningApp, key: str, **body: Any) -> str:
    """Has a command fail, and returns its position. The oven stays broken."""
    BROKEN.add(key)
    response = running.http.post("/api/bakery/oven/commands/bake", params={"key": key}, json=body)
    return str(response.json()["position"])


# list


def test_the_list_says_what_failed_for_whom_when_how_often_and_why(engram: Engram, bakery: RunningApp):
    """A table, and below it what can be done about the newest, as it has to be typed."""
    older, newer = fail(bakery, "ada"), fail(bakery, "bob")
    result = engram("quarantine", "list", "--url", bakery.url)
    title, *_ = lines = result.stdout.splitlines()
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if "│" in line]

    assert (result.exit_code, result.stderr) == (0, "")
    assert title.strip() == "bakery: 2 commands in quarantine"
    assert [(row[0], row[2:]) for row in rows] == [
        (newer, ["bake", "oven bob", "1", "RuntimeError: the oven is cold"]),
        (older, ["bake", "oven ada", "1", "RuntimeError: the oven is cold"]),
    ]
    assert lines[-3:] == [
        f"See why:      engram quarantine show {newer} --url {bakery.url}",
        f"Send again:   engram quarantine retry {newer} --url {bakery.url}",
        f"Give it up:   engram quarantine drop {newer} --url {bakery.url}",
    ]


def test_an_empty_quarantine_is_said_in_a_sentence(engram: Engram, bakery: RunningApp):
    """With how much there was, so that nobody thinks that nothing ever failed."""
    engram("quarantine", "drop", fail(bakery, "ada"), "--url", bakery.url)
    count = bakery.http.get("/api/bakery/quarantine").json()["count"]
    result = engram("quarantine", "list", "--url", bakery.url)

    assert result.exit_code == 0
    assert result.stdout == f"Nothing is in quarantine. There were {count} failures; all were retried or dropped.\n"


def test_a_limit_is_told(engram: Engram, bakery: RunningApp):
    """The title says that there are more."""
    for key in ("ada", "bob", "cid"):
        fail(bakery, key)
    result = engram("quarantine", "list", "--limit", 1, "--url", bakery.url)

    assert result.stdout.splitlines()[0].strip() == "bakery: 3 commands in quarantine, the newest 1 of them"


def test_json_is_what_the_gateway_says(engram: Engram, bakery: RunningApp):
    """One object, in one line."""
    position = fail(bakery, "ada")
    (line,) = engram("quarantine", "list", "--json", "--url", bakery.url).stdout.splitlines()
    (shown,) = engram("quarantine", "show", position, "--json", "--url", bakery.url).stdout.splitlines()

    assert json.loads(line) == bakery.http.get("/api/bakery/quarantine").json()
    assert json.loads(shown) == bakery.http.get(f"/api/bakery/quarantine/{position}").json()


def test_what_others_wrote_is_neither_markup_nor_control(engram: Engram, bakery: RunningApp):
    """Keys come from outside: they are shown as they are, and do nothing to the terminal."""
    position = fail(bakery, "[red]:fire:[/] \x1b[31mx")
    told = engram("quarantine", "list", "--url", bakery.url).stdout
    shown = engram("quarantine", "show", position, "--url", bakery.url).stdout

    assert r"oven [red]:fire:[/] \x1b[31mx" in told
    assert r"oven [red]:fire:[/] \x1b[31mx" in shown
    assert "\x1b" not in told + shown


def test_a_partition_that_is_not_served_is_told(engram: Engram, tmp_path: Path):
    """An empty list of the others is not taken for an empty quarantine; `--all` then ends with exit code 3."""
    folder = tmp_path / "stopped"
    folder.mkdir()
    with RunningApp(app, folder) as running:
        running.spoil(1)
        running.wait_until(lambda: bool(running.registry.problem(1)))
        listed = engram("quarantine", "list", "--url", running.url)
        dropped = engram("quarantine", "drop", "--all", "--url", running.url)

    for result in (listed, dropped):
        (line,) = result.stdout.splitlines()
        assert line.startswith("Partition 1 could not be asked, and may have more. Partition 1 is stopped. ")
    assert (listed.exit_code, dropped.exit_code) == (0, 3)


# show


def test_a_command_is_shown_with_its_fields_traceback_and_what_to_do(engram: Engram, bakery: RunningApp):
    """From the position to the command line that sends it again."""
    position = fail(bakery, "ada", loaves=7)
    lines = engram("quarantine", "show", position, "--url", bakery.url).stdout.splitlines()

    assert lines[0] == f"{position}  bake v1 for oven ada"
    assert lines[1].startswith("  failed    once at 20")
    assert lines[2:6] == [
        "  error     RuntimeError: the oven is cold",
        '  fields    {"loaves": 7}',
        "",
        "Traceback (most recent call last):",
    ]
    assert '    raise RuntimeError("the oven is cold")' in lines
    assert lines[-3:] == [
        "The state is as if it had never been sent. When the cause is removed:",
        f"  send it again   engram quarantine retry {position} --url {bakery.url}",
        f"  give it up      engram quarantine drop {position} --url {bakery.url}",
    ]


def test_what_cannot_be_retried_is_not_said_to_be(engram: Engram, bakery: RunningApp):
    """A command whose fields are not known can only be given up."""
    sent = bakery.http.post("/api/bakery/oven/commands/crumble", params={"key": "ada"}, json={})
    shown = engram("quarantine", "show", sent.json()["position"], "--url", bakery.url).stdout
    refused = engram("quarantine", "retry", sent.json()["position"], "--url", bakery.url)

    assert "  fields    not known" in shown
    assert "retry" not in shown
    assert (refused.exit_code, "NOT DONE: The fields of crumble at" in refused.stdout) == (2, True)


# retry and drop


def test_a_retry_says_what_became_of_it(engram: Engram, bakery: RunningApp):
    """Done with its reply, or failed again with its new position and how often; the exit code tells them apart."""
    position = fail(bakery, "retried")
    again = engram("quarantine", "retry", position, "--url", bakery.url)
    ((now, _),) = [(r["position"], r) for r in bakery.http.get("/api/bakery/quarantine").json()["rows"]]
    BROKEN.clear()
    done = engram("quarantine", "retry", now, "--url", bakery.url)

    assert again.exit_code == 2
    assert again.stdout == (
        f"{position}: FAILED AGAIN, 2 times now: RuntimeError: the oven is cold "
        f"(it is {now} now: engram quarantine show {now} --url {bakery.url})\n"
    )
    assert done.exit_code == 0
    assert done.stdout.startswith(f"{now}: done, at {now.split(':')[0]}:")
    assert done.stdout.endswith("; the reply is 1\n")


def test_all_are_retried_in_the_order_of_the_log(engram: Engram, bakery: RunningApp):
    """Each is told with its command and entity; one that is rejected or fails does not keep the others."""
    sent = [fail(bakery, "order", loaves=101), fail(bakery, "order", loaves=2), fail(bakery, "cold")]
    BROKEN.discard("order")
    result = engram("quarantine", "retry", "--all", "--url", bakery.url)
    lines = {line.partition(" ")[0]: line.partition(": ")[2] for line in result.stdout.splitlines()}

    assert result.exit_code == 2
    assert set(lines) == set(sent)
    assert list(lines).index(sent[0]) < list(lines).index(sent[1])
    assert "rejected, at " in lines[sent[0]]
    assert ": too_many: They do not fit. (it is not in quarantine any more)" in lines[sent[0]]
    assert lines[sent[1]].endswith("the reply is 2")
    assert lines[sent[2]].startswith("FAILED AGAIN, 2 times now")
    assert f"{sent[0]}  bake for oven order: " in result.stdout


def test_all_are_dropped(engram: Engram, bakery: RunningApp):
    """And told one by one; a second time there is nothing left."""
    sent = [fail(bakery, "ada"), fail(bakery, "bob")]
    result = engram("quarantine", "drop", "--all", "--json", "--url", bakery.url)
    again = engram("quarantine", "drop", "--all", "--url", bakery.url)

    assert (result.exit_code, again.exit_code) == (0, 0)
    assert sorted(json.loads(line)["of"] for line in result.stdout.splitlines()) == sorted(sent)
    assert again.stdout == "Nothing is in quarantine.\n"


def test_an_unknown_position_does_not_keep_the_others(engram: Engram, bakery: RunningApp):
    """It is told, and the exit code is 2."""
    position = fail(bakery, "ada")
    result = engram("quarantine", "drop", "0:999.0", position, "--url", bakery.url)

    assert result.exit_code == 2
    assert result.stdout.splitlines() == [
        "0:999.0: NOT DONE: There is no command 0:999.0 in quarantine: it was retried or dropped, or never failed.",
        f"{position}: dropped; it stays in the log",
    ]


# Mistakes


@pytest.mark.parametrize("what", ["retry", "drop"])
@pytest.mark.parametrize("arguments", [(), ("--all", "0:1.0")])
def test_positions_or_all_and_not_both(engram: Engram, bakery: RunningApp, what: str, arguments: tuple[str, ...]):
    """Nothing is done to all by mistake."""
    said = sentence(engram("quarantine", what, *arguments, "--url", bakery.url), 2)

    assert said == "Name the positions, such as 3:1042.0, or write --all."


@pytest.mark.parametrize(
    ("position", "said"),
    [("0:999.0", "There is no command 0:999.0 in quarantine"), ("nonsense", "'nonsense' is not a position")],
)
def test_showing_what_is_not_there_is_exit_code_2(engram: Engram, bakery: RunningApp, position: str, said: str):
    """One sentence."""
    assert said in sentence(engram("quarantine", "show", position, "--url", bakery.url), 2)


@pytest.mark.parametrize("arguments", [("list",), ("show", "0:1.0"), ("retry", "0:1.0"), ("drop", "--all")])
def test_nothing_that_listens_is_exit_code_3(engram: Engram, nobody: str, arguments: tuple[str, ...]):
    """The sentence asks the right question."""
    said = sentence(engram("quarantine", *arguments, "--url", nobody), 3)

    assert said.endswith("is `engram run` running there?")
