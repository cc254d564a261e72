"""`engram schema`: shapes are recorded, a forgotten version is caught, and the upcaster is drafted."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from engram.codec.codec import Codec
from engram.codec.record import Envelope, Kind, PlainHeader, encode_commands, encode_plain
from engram.image.image import Image
from engram.log.base import Entry
from engram.log.sqlite import SqliteLog
from engram.model.effects import OutEvent
from engram.snapshots.base import Contents
from engram.snapshots.files import FileSnapshots

from tests.cli.saying import Engram, sentence

SHOP = """
from dataclasses import dataclass, field
from datetime import timedelta

from engram import App, Command, Context, Entity, Event, value


@value(name="money")
@dataclass(frozen=True, slots=True)
class Money:
    amount: int


@dataclass(slots=True, kw_only=True)
class Cart(Entity, name="cart"):
    owner: str = ""
    prices: list[Money] = field(default_factory=list)


class Add(Command[Cart, None], name="add"):
    price: Money

    def handle(self, cart: Cart, ctx: Context) -> None:
        if self.price.amount < 0:
            raise ValueError("a price below nothing")
        cart.prices.append(self.price)
        ctx.schedule(timedelta(hours=1), self)


class Added(Event, name="added"):
    price: Money


app = App("shop", commands=[Add], events=[Added])
"""

Written = Callable[..., str]


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Written]:
    """Writes the shop, with texts replaced, and returns its reference; every time it is a new module."""
    names: list[str] = []

    def write(*changes: tuple[str, str]) -> str:
        text = SHOP
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        names.append(f"shop_{tmp_path.name.replace('-', '_')}_{len(names)}")
        (tmp_path / f"{names[-1]}.py").write_text(text)
        return f"{names[-1]}:app"

    yield write
    for name in names:
        sys.modules.pop(name, None)


@pytest.fixture
def recorded(engram: Engram, written: Written) -> str:
    """A shop with a baseline."""
    reference = written()
    assert engram("schema", "record", reference).exit_code == 0
    return reference


def unwrapped(text: str) -> str:
    return " ".join(text.split())


def test_a_baseline_is_written_beside_the_app(engram: Engram, written: Written, tmp_path: Path):
    """`record` says what it wrote and that it belongs into the repository; a second time there is nothing to do."""
    reference = written()
    first, second = engram("schema", "record", reference), engram("schema", "record", reference)

    assert (first.exit_code, first.stdout) == (0, "Recorded 4 types of shop in schema.json: commit it.\n")
    assert (second.exit_code, second.stdout) == (0, "schema.json is up to date.\n")
    assert json.loads((tmp_path / "schema.json").read_text())["entities"]["cart"]["version"] == 1


def test_an_app_as_it_was_recorded_passes(engram: Engram, recorded: str):
    """`check` has exit code 0 and one line."""
    result = engram("schema", "check", recorded)

    assert (result.exit_code, result.stdout, result.stderr) == (0, "shop: 4 types, as in schema.json.\n", "")


def test_a_forgotten_version_is_caught(engram: Engram, recorded: str, written: Written):
    """A shape that changed without a version has a paragraph, and exit code 2."""
    changed = written(
        ("owner: str", "holder: str"), ("amount: int", "cents: int"), ("self.price.amount", "self.price.cents")
    )
    result = engram("schema", "check", changed)
    text = unwrapped(result.stdout)

    assert result.exit_code == 2
    assert "! entity cart changed, and is still at version 1: field owner is gone and holder is new" in text
    assert f"`engram schema draft {changed} entity:cart` drafts it." in text
    assert "! value money changed, and is still at version 1: field amount is gone and cents is new" in text
    assert "It is in entity cart, command add and event added." in text
    assert result.stderr == "engram: 2 to be put right; schema.json is the baseline.\n"


def test_json_has_the_findings(engram: Engram, recorded: str, written: Written):
    """For programs: a list, empty if all is well, with the same exit codes."""
    fine = engram("schema", "check", recorded, "--json")
    bad = engram("schema", "check", written(("owner: str", "holder: str")), "--json")
    (finding,) = json.loads(bad.stdout)["findings"]

    assert (fine.exit_code, json.loads(fine.stdout)["findings"]) == (0, [])
    assert (bad.exit_code, finding["kind"], finding["name"], finding["problem"]) == (2, "entity", "cart", True)


def test_a_baseline_that_is_behind_is_not_passed(engram: Engram, recorded: str, written: Written):
    """Otherwise the next change would be compared with a shape from long ago, and a forgotten version not be seen."""
    newer = written(('App("shop",', 'App("shop", version=2,'))
    result = engram("schema", "check", newer)

    assert (result.exit_code, result.stdout) == (2, "  app shop went from version 1 to 2.\n")
    assert (
        result.stderr == f"engram: schema.json is behind the code: run `engram schema record {newer}`, and commit it.\n"
    )
    assert engram("schema", "record", newer).exit_code == 0
    assert engram("schema", "check", newer).exit_code == 0


def test_a_baseline_with_problems_is_not_written(engram: Engram, recorded: str, written: Written, tmp_path: Path):
    """A forgotten version must not disappear by recording it; one may insist."""
    before = (tmp_path / "schema.json").read_text()
    changed = written(("owner: str", "holder: str"))
    refused = engram("schema", "record", changed)

    assert refused.exit_code == 2
    assert "add --accept if nothing of it was ever written" in refused.stderr
    assert (tmp_path / "schema.json").read_text() == before
    assert engram("schema", "record", changed, "--accept").exit_code == 0
    assert engram("schema", "check", changed).exit_code == 0


@pytest.fixture
def held(recorded: str, tmp_path: Path) -> tuple[str, Path]:
    """A log of the shop with 3 commands of version 1, one of them plain, and an event; and a snapshot with a cart, a
    timer and a quarantined command."""
    from engram.shard.reference import resolve_app

    sys.path.insert(0, str(tmp_path))
    codec = Codec(resolve_app(recorded))
    image = Image(0, codec)
    log = SqliteLog(tmp_path / "log.db", "shop", partitions=2, create=True)
    prices = [1, -1]
    envelopes = [
        Envelope("add", 1, "ada", b'{"price":{"amount":%d}}' % price, "s", n) for n, price in enumerate(prices)
    ]
    plain = encode_plain(PlainHeader(name="add", version="1", key="bob"), b'{"price":{"amount":1}}')
    event = OutEvent(0, 0, 0, 0, "added", 1, 5, "ada", b'{"price":{"amount":1}}')
    log.append([Entry(0, Kind.COMMANDS, 5, encode_commands(envelopes, "w")), Entry(1, Kind.PLAIN, 5, plain)], [event])
    for record in log.read(0, 0, limit=9):
        image.handle(record)
    log.close()
    frozen = image.begin_freeze()
    while frozen.advance(10):
        pass
    FileSnapshots(tmp_path / "snapshots", "shop").publish(
        0, Contents(frozen.columns, frozen.memory, len(frozen.rows)), created=1
    )
    return f"sqlite:{tmp_path / 'log.db'}", tmp_path / "snapshots"


def test_what_would_be_affected_is_counted(engram: Engram, written: Written, held: tuple[str, Path]):
    """With a log and snapshots, by name and version: commands, events, entities, timers and the quarantine."""
    log, snapshots = held
    changed = written(("amount: int", "cents: int"), ("self.price.amount", "self.price.cents"))
    text = unwrapped(engram("schema", "check", changed, "--log", log, "--snapshots", snapshots).stdout)

    assert "in the log 3 of command add version 1 and 1 of event added version 1;" in text
    assert "in the newest snapshots 2 of command add version 1 and 1 of entity cart version 1." in text


def test_a_type_that_vanished_is_told_with_what_has_it(engram: Engram, written: Written, held: tuple[str, Path]):
    """A class may go when nothing has it any more; the log tells."""
    log, snapshots = held
    gone = written(("events=[Added]", "events=[]"))
    with_log = engram("schema", "check", gone, "--log", log)
    without = engram("schema", "check", gone, "--snapshots", snapshots)

    assert "! event added (version 1) is not in the app any more. Affected: in the log 1 of event added version 1." in (
        unwrapped(with_log.stdout)
    )
    assert "  event added (version 1) is not in the app any more, and the newest snapshots have nothing of it." in (
        without.stdout
    )


def test_a_draft_is_printed_or_written(engram: Engram, recorded: str, written: Written, tmp_path: Path):
    """The skeleton is Python; a file that is there is left alone."""
    changed = written(("owner: str", "holder: str"))
    printed = engram("schema", "draft", changed, "cart")
    said = engram("schema", "draft", changed, "Cart", "--output", "draft.py")
    compile(printed.stdout, "draft", "exec")

    assert 'old["holder"] = old.pop("owner")' in printed.stdout
    assert said.exit_code == 0
    assert (tmp_path / "draft.py").read_text() == printed.stdout
    assert sentence(engram("schema", "draft", changed, "cart", "--output", "draft.py"), 2).startswith(
        "draft.py is there already"
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["check", "{app}", "--baseline", "none.json"], "There is no baseline none.json: make it with"),
        (["check", "{app}", "--baseline", "other.json"], "other.json is the baseline of app other, not of shop"),
        (["check", "{app}", "--baseline", "bad.json"], "bad.json is not a schema that this Engram reads"),
        (["check", "{app}", "--snapshots", "nowhere"], "There are no snapshots of shop in nowhere"),
        (["check", "{app}", "--log", "sqlite:nowhere.db"], "There is no log at"),
        (["draft", "{app}", "nobody"], "App shop has no type nobody"),
        (["draft", "{app}", "cart"], "entity cart is as in the baseline"),
    ],
    ids=lambda case: " ".join(case[2:]) if isinstance(case, list) else "",
)
def test_mistakes_are_one_sentence(engram: Engram, recorded: str, tmp_path: Path, arguments: list[str], said: str):
    """What is not there, or of something else, is named."""
    (tmp_path / "other.json").write_text('{"format": 1, "app": "other", "version": 1}')
    (tmp_path / "bad.json").write_text("[]")
    result: Any = engram("schema", *(argument.format(app=recorded) for argument in arguments))

    assert said in sentence(result, 2)


@pytest.mark.parametrize("app", ["social", "impressions"])
def test_the_sample_apps_are_as_recorded(engram: Engram, app: str):
    """Their baselines are committed and up to date."""
    result = engram("schema", "check", f"sample_apps.{app}:app")

    assert result.exit_code == 0, result.output
