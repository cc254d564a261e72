"""Watched queries: what they come to is told after every record that touched their entity, while the lease lasts."""

from __future__ import annotations

from engram.shard.requests import Changed, Subscribe

from tests.shard.dominoes import Fall, Fallen, FallLater
from tests.shard.network import Network, Owner

HOUR_MS = 3_600_000


def subscribe(
    network: Network,
    owner: Owner,
    key: str,
    *,
    number: int = 1,
    lease_ms: int = 10 * HOUR_MS,
    after: int | None = None,
) -> None:
    body = Fallen().model_dump_json().encode()
    owner.request(Subscribe(number, network.home(key), key, "fallen", 1, body, None, lease_ms, after))
    owner.step()


def changes(owner: Owner, number: int = 1) -> list[Changed]:
    """All that was said to a subscriber."""
    return [response for _, response in owner.line.sent if isinstance(response, Changed) and response.id == number]


def heard(owner: Owner, number: int = 1) -> list[tuple[int, bytes]]:
    """Offsets and answers that were said to a subscriber."""
    said = changes(owner, number)
    assert {changed.kind for changed in said} <= {"answer"}
    return [(changed.offset, changed.body) for changed in said]


def test_the_state_after_each_record_is_told_though_they_are_handled_together(table: Network):
    """Several records in one turn are several changes; several commands in one record are one."""
    owner = table.start()
    subscribe(table, owner, "d")
    sent = [table.send("d", Fall()) for _ in range(2)]
    sent += table.send_all([table.envelope("d", Fall()) for _ in range(2)])
    table.settle(owner)

    told = heard(owner)
    assert [body for _, body in told] == [b"0", b"1", b"2", b"4"]
    assert [offset for offset, _ in told[1:]] == [sent[0].offset, sent[1].offset, sent[2].offset]


def test_messages_and_timers_touch_entities_too(table: Network):
    """Whatever changed it, the subscriber is told."""
    owner = table.start()
    subscribe(table, owner, "d")
    table.send("other", Fall(onto=("d",)))
    table.send("d", FallLater())
    table.settle(owner)
    table.clock.now += HOUR_MS
    table.settle(owner)

    assert [body for _, body in heard(owner)] == [b"0", b"1", b"2"]


def test_other_entities_and_refused_commands_are_not_told(table: Network):
    """The answer is the same as before."""
    owner = table.start()
    subscribe(table, owner, "d")
    table.send(table.key_in(table.home("d")), Fall())
    table.send("d", Fall(onto=("d",)))
    table.settle(owner)

    assert [body for _, body in heard(owner)] == [b"0"]


def test_a_lease_ends_unless_it_is_renewed(table: Network):
    """A renewal is answered with what is now; after the lease nothing more is said."""
    owner = table.start()
    for number in (1, 2):
        subscribe(table, owner, "d", number=number, lease_ms=1000)
    table.clock.now += 900
    subscribe(table, owner, "d", number=1, lease_ms=1000)
    table.clock.now += 900
    owner.step()
    table.send("d", Fall())
    table.settle(owner)
    table.clock.now += 1000
    owner.step()
    table.send("d", Fall())
    table.settle(owner)

    assert [body for _, body in heard(owner, 1)] == [b"0", b"0", b"1"]
    assert [body for _, body in heard(owner, 2)] == [b"0"]
    assert not owner.shard.owned[table.home("d")].watched
