"""Watched read models: what a partition has at a place is told after every record that changed it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from engram.image.found import merge_totals
from engram.model.read_model import Totals
from engram.shard.look import rows_in, subtotal_in
from engram.shard.requests import Changed, SubscribeRows

from tests.read_models.club import Mark, Score, Spoil, Write
from tests.read_models.club import app as club
from tests.shard.network import Network, Owner
from tests.shard.test_missed import told

HOUR_MS = 3_600_000
KEY = "ada"


@pytest.fixture
def table() -> Iterator[Network]:
    """The club in two partitions, in memory."""
    made = Network(2, app=club)
    yield made
    made.close()


def subscribe(
    table: Network,
    owner: Owner,
    model: str,
    place: str,
    *,
    number: int = 1,
    after: int | None = None,
    base: bool = False,
    lease_ms: int = 10 * HOUR_MS,
) -> None:
    owner.request(SubscribeRows(number, table.home(KEY), model, place, 10, lease_ms, after, base))
    owner.step()


def changes(owner: Owner, number: int = 1) -> list[Changed]:
    return [response for _, response in owner.line.sent if isinstance(response, Changed) and response.id == number]


def rows(changed: Changed) -> list[str]:
    return [found.text for found in rows_in(changed.body)]


def score(table: Network, owner: Owner, points: int, game: str = "go") -> int:
    offset = table.send(KEY, Score(game=game, points=points)).offset
    table.settle(owner)
    return offset


def test_what_changes_at_the_place_is_told_and_nothing_else(table: Network):
    """By record; other places, other read models and rows that stay as they are are not told."""
    owner = table.start()
    subscribe(table, owner, "players", "go")
    first = score(table, owner, 1)
    score(table, owner, 1)
    score(table, owner, 7, game="chess")
    table.send(KEY, Mark(mark="x"))
    second = score(table, owner, 2)

    assert [(change.offset, rows(change)) for change in changes(owner)[1:]] == [
        (first, ['{"who":"ada","points":1}']),
        (second, ['{"who":"ada","points":2}']),
    ]
    assert changes(owner)[-1].since == first


def test_a_group_and_words_are_watched_too(table: Network):
    """Totals of a group; for words, all that changes their finds or how relevant these are."""
    owner = table.start()
    subscribe(table, owner, "points", "go", number=1)
    subscribe(table, owner, "bios", "fox", number=2)
    score(table, owner, 3)
    table.send(KEY, Write(bio="quick fox"))
    for nth in range(4):
        table.send(table.key_in(table.home(KEY), nth), Write(bio="lazy dog"))
    table.settle(owner)

    assert merge_totals([subtotal_in(changes(owner, 1)[-1].body)]) == Totals(1, 3, 3, 3)
    found = changes(owner, 2)[1:]
    assert len({change.body for change in found}) == len(found) > 1
    assert {text for change in found for text in rows(change)} == {'"ada"'}


def test_one_that_breaks_down_is_told(table: Network):
    """As what it is asked with from then on."""
    owner = table.start()
    subscribe(table, owner, "fragile", "before")
    table.send(KEY, Mark(mark="x"))
    table.send(KEY, Spoil())
    table.settle(owner)

    assert [change.kind for change in changes(owner)] == ["answer", "answer", "failed"]
    assert b"fragile is broken" in changes(owner)[-1].body


def test_a_new_owner_tells_what_was_missed(table: Network):
    """From a snapshot, which has rows, or from the beginning of the log; with what it was before, if that is asked
    for."""
    first = table.start()
    offsets = [score(table, first, points) for points in range(3)]
    first.shard.begin_snapshot(table.home(KEY))
    table.settle(first)
    offsets += [score(table, first, points) for points in range(3, 6)]
    first.kill()
    second = table.start()
    for number, (after, base) in enumerate([(offsets[0], False), (offsets[3], True)], 1):
        subscribe(table, second, "players", "go", number=number, after=after, base=base)
    partition = second.shard.owned[table.home(KEY)]
    while second.shard._missed._passes or partition.watched.behind:
        second.step()
    new = score(table, second, 6)

    def points(number: int) -> list[tuple[int, int]]:
        return [(offset, int(body.split(b'points\\":')[1].split(b"}")[0])) for offset, body in told(second, number)]

    assert points(1) == [*zip(offsets[1:], range(1, 6), strict=True), (new, 6)]
    assert points(2) == [*zip(offsets[3:], range(3, 6), strict=True), (new, 6)]


def test_while_it_is_being_built_nothing_is_said(table: Network):
    """Who asked too early asks again, and is told then."""
    first = table.start()
    score(table, first, 1)
    first.stop()
    second = table.start()
    image = second.image(table.home(KEY))
    assert image.read_models is not None
    kept = image.read_models._models["players"]
    kept.waiting.add("somebody")
    subscribe(table, second, "players", "go")
    early = changes(second)
    kept.waiting.clear()
    subscribe(table, second, "players", "go")

    assert early == []
    assert rows(changes(second)[-1]) == ['{"who":"ada","points":1}']


def test_nothing_is_noted_when_nobody_watches_any_more(table: Network):
    """A lease that is not renewed ends, and with the last of a read model its book-keeping."""
    owner = table.start()
    subscribe(table, owner, "players", "go", lease_ms=1000)
    read_models = owner.image(table.home(KEY)).read_models
    assert read_models is not None
    assert read_models._models["players"].moved is not None
    table.clock.now += 2000
    owner.step()

    assert read_models._models["players"].moved is None
    assert not owner.shard.owned[table.home(KEY)].watched
