"""Rows in snapshots on disk, and shards that build what is not there between other work."""

from __future__ import annotations

from pathlib import Path

import pytest
from engram import App
from engram.image.row_index import SortedRows
from engram.shard.requests import Answer, Incoming, Look, Refusal
from engram.snapshots.files import FileSnapshots

from tests.read_models import club
from tests.read_models.club import KEYS, Best, Mark, Marked, Score
from tests.shard.network import Network, Owner

without = App("club", commands=club.COMMANDS)
with_marked = App("club", commands=club.COMMANDS, read_models=[Marked])
with_both = App("club", commands=club.COMMANDS, read_models=[Marked, Best])


def marked(owner: Owner, mark: str) -> list[str]:
    index = owner.image(0).read_models.index("marked")
    assert isinstance(index, SortedRows)
    return [row.owner for row in index.find(mark, None, 100)]


def test_rows_follow_entities_through_files_and_merges(tmp_path: Path):
    """After many snapshots of what changed, some of them merged into a new base, every entity has its rows."""
    network = Network(1, app=club.app, store=FileSnapshots(tmp_path, "club"))
    owner = network.start(snapshot_every=1)
    for number in range(41):
        network.send(KEYS[number % 5], Mark(mark=f"mark{number % 7}"))
        network.settle(owner)
    owner.stop()
    assert 1 < len(network.store.manifests(0)[0].entity_parts) < 16
    again = network.start()

    assert not again.shard.owned[0].building
    assert {m: marked(again, m) for m in ("mark0", "mark6", "everybody")} == {
        m: marked(owner, m) for m in ("mark0", "mark6", "everybody")
    }
    assert again.image(0).entities["member"] == {}, "no entity was decoded"
    network.close()


def ask(owner: Owner, number: int, model: str, place: str) -> Answer | Refusal:
    owner.line.requests.append(Incoming(b"gateway", Look(number, 0, model, place, None, 100, None, 1000)))
    owner.step()
    said = owner.response(number)
    assert said is not None
    return said


def test_a_new_read_model_is_built_while_others_are_read():
    """Asked too early it says how far it is; what was there before answers meanwhile, and commands are handled."""
    network = Network(1, app=without)
    owner = network.start()
    for number in range(500):
        network.send(f"m{number:03}", Mark(mark="x"))
    network.settle(owner)
    owner.stop()

    second = network.start(app=with_marked, snapshot_budget_ms=0.0)
    early = ask(second, 1, "marked", "x")
    assert isinstance(early, Refusal)
    assert (early.kind, early.text) == ("building", "Read model marked is being built: 0 of 500 entities are done.")
    assert second.shard._nap() == 0
    while second.shard.owned[0].building:
        second.step()
    assert isinstance(ask(second, 2, "marked", "x"), Answer)
    network.send("late", Mark(mark="x"))
    network.settle(second)
    second.stop()

    third = network.start(app=with_both, snapshot_budget_ms=0.0)
    network.send("m007", Score(game="go", points=7))
    there, early = ask(third, 1, "marked", "x"), ask(third, 2, "best", "go")
    assert isinstance(there, Answer)
    assert isinstance(early, Refusal)
    while third.shard.owned[0].building:
        third.step()
    assert isinstance(ask(third, 3, "best", "go"), Answer)
    assert (len(marked(third, "x")), third.partition(0).read_models[1].done) == (100, 501)
    network.close()


def test_a_replay_makes_the_rows_of_an_entity_once(monkeypatch: pytest.MonkeyPatch):
    """However often it was changed, and also if it is encoded again by then; the rows are those of the live shard."""
    network = Network(1, app=with_both)
    owner = network.start()
    for number in range(300):
        network.send(f"m{number % 10}", Mark(mark=f"mark{number}"))
    network.settle(owner)
    owner.kill()
    made: list[str] = []
    rows = Marked.rows
    monkeypatch.setattr(Marked, "rows", lambda self, member: made.append(member.key) or rows(self, member))
    for hot in (0, 2):
        made.clear()
        again = network.start(hot_entities=hot)

        assert sorted(made) == sorted(f"m{number}" for number in range(10))
        assert all(marked(again, f"mark{number}") == [f"m{number % 10}"] for number in range(300))
        network.send("m3", Mark(mark="later"))
        network.settle(again)
        assert marked(again, "later") == ["m3"]
        again.kill()
    network.close()
