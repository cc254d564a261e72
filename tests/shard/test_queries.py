"""Queries run between records on the shard's own thread, and say how far the state was that they saw."""

from __future__ import annotations

import json
from typing import Any

import pytest
from engram import Position
from engram.image.outcome import Outcome, Verdict
from engram.shard.requests import Answer, Await, Refusal, Report, Reported

from sample_apps.social.commands import Publish, Register
from sample_apps.social.queries import Posts, Profile
from tests.shard.network import Network, Owner


def _texts(response: Any) -> list[str]:
    assert isinstance(response, Answer)
    return [post["text"] for post in json.loads(response.body)]


def test_an_answer_carries_the_position_of_the_last_command_it_includes(network: Network):
    """An answer says partition, offset and index of the newest command that its state holds."""
    owner = network.start()
    network.send("ada", Register(name="Ada"))
    last = network.send_all([network.envelope("ada", Publish(text=text)) for text in ("one", "two")])[-1]
    network.settle(owner)

    number = owner.ask("ada", Posts())
    owner.step()

    answer = owner.response(number)
    assert isinstance(answer, Answer)
    assert Position(answer.partition, answer.offset, answer.index) == last
    assert _texts(answer) == ["two", "one"]


def test_a_query_sees_whole_records_only(network: Network):
    """Asked while a record of three commands waits, a query sees none of them, and after it all three."""
    owner = network.start()
    network.send("ada", Register(name="Ada"))
    network.settle(owner)
    network.send_all([network.envelope("ada", Publish(text=text)) for text in ("a", "b", "c")])

    before = owner.ask("ada", Posts())
    owner.step()
    after = owner.ask("ada", Posts())
    owner.step()

    assert _texts(owner.response(before)) == []
    assert _texts(owner.response(after)) == ["c", "b", "a"]


def test_a_query_does_not_wait_for_all_records_that_wait(network: Network):
    """Behind a long queue of records a query is answered between them, at the position reached so far."""
    owner = network.start()
    network.send("ada", Register(name="Ada"))
    network.settle(owner)
    for number in range(600):
        network.send("ada", Publish(text=str(number)))

    owner.step()
    number = owner.ask("ada", Posts())
    owner.step()

    answer = owner.response(number)
    assert isinstance(answer, Answer)
    assert 1 < answer.offset < network.log.end(answer.partition) - 1


def test_questions_do_not_make_a_shard_read_its_log(network: Network, monkeypatch: pytest.MonkeyPatch):
    """Only when its watch has rung: with the first record that comes, or after a while without any word."""
    owner = network.start()
    network.send("ada", Register(name="Ada"))
    network.settle(owner)
    owner.step()
    read: list[int] = []
    looking = owner._log.news
    monkeypatch.setattr(owner._log, "news", lambda offsets: (read.extend(offsets), looking(offsets))[1])
    asked = [owner.ask("ada", Posts()) for _ in range(3) if owner.step()]
    owner.step()
    without = len(read)
    network.send("ada", Publish(text="one"))
    owner.step()
    with_one = len(read)
    owner.step()
    read.clear()
    network.clock.now += 1000
    owner.step()

    assert all(isinstance(owner.response(number), Answer) for number in asked)
    assert (without, with_one > 0, len(read) > 0) == (0, True, True)


def test_only_partitions_with_news_are_read(network: Network, monkeypatch: pytest.MonkeyPatch):
    """A command costs the same in a shard of many partitions as in one of few."""
    owner = network.start()
    network.settle(owner)
    read: list[int] = []
    reading = owner._log.read
    monkeypatch.setattr(owner._log, "read", lambda of, *place, **how: (read.append(of), reading(of, *place, **how))[1])
    network.send("ada", Register(name="Ada"))
    owner.step()
    owner.step()

    assert len(owner.states) > 1
    assert set(read) == {network.home("ada")}


def test_after_a_lone_command_the_log_is_not_looked_into_at_once(network: Network):
    """Whoever waits for the reply may be waiting for the processor. After many there may well be more; after nothing
    the shard sleeps until something rings."""
    owner = network.start()
    network.settle(owner)
    owner.step()
    waits = []
    for commands in (1, 0, 100, 0):
        for number in range(commands):
            network.send("ada", Register(name=str(number)))
        owner.step()
        owner.shard.step()
        waits.append(owner.line.waits_ms[-1])

    assert 0 < waits[0] < 10
    assert waits[2] == 0
    assert min(waits[1], waits[3]) > 100


def test_a_record_of_which_nobody_has_told_is_found_after_a_lone_command(network: Network):
    """A log may give fewer records than it has, and rings only for what comes."""
    owner = network.start()
    network.settle(owner)
    network.send("ada", Register(name="Ada"))
    owner.step()
    network.send("ada", Publish(text="one"))
    owner.shard._watch.clear()
    owner.shard.step()

    assert owner.image(network.home("ada")).offset == network.log.end(network.home("ada"))


def test_a_log_that_could_not_be_read_is_read_again(network: Network):
    """Its watch has rung once, for a record that is still to be handled."""
    owner = network.start()
    network.settle(owner)
    network.send("ada", Register(name="Ada"))
    owner._log.unreadable = True
    owner.step()
    owner._log.unreadable = False
    owner.step()
    number = owner.ask("ada", Profile())
    owner.step()

    answer = owner.response(number)
    assert isinstance(answer, Answer)
    assert json.loads(answer.body)["name"] == "Ada"


def test_an_entity_nobody_has_written_is_read_as_new_and_not_kept(network: Network):
    """A query for an unknown key gets the answer of a fresh entity, which is not there afterwards."""
    owner = network.start()
    number = owner.ask("nobody", Posts())
    owner.step()

    assert _texts(owner.response(number)) == []
    assert owner.image(network.home("nobody")).count() == 0


def test_a_rejected_query_is_refused_with_its_code(network: Network):
    """What a query raises as `Rejected` comes back as code and text."""
    owner = network.start()
    number = owner.ask("nobody", Profile())
    owner.step()

    assert owner.response(number) == Refusal(number, "rejected", "There is no user nobody.", "unknown_user")


def test_a_partition_of_somebody_else_is_refused_as_moved(network: Network):
    """A shard that does not own the partition says so, and does not guess."""
    owner = network.start([0])
    number = owner.ask("ada", Posts(), partition=3)
    owner.step()

    refusal = owner.response(number)
    assert isinstance(refusal, Refusal)
    assert refusal.kind == "moved"


# at_least


def _parked(network: Network, owner: Owner) -> tuple[int, Position]:
    """A query for a position that the log does not have yet."""
    network.send("ada", Register(name="Ada"))
    network.settle(owner)
    home = network.home("ada")
    bound = Position(home, network.log.end(home), 0)
    number = owner.ask("ada", Posts(), at_least=bound, timeout_ms=1000)
    owner.step()
    assert owner.response(number) is None
    return number, bound


def test_a_query_waits_until_the_state_is_far_enough(network: Network):
    """A query with `at_least` is parked, and answered as soon as the record is handled."""
    owner = network.start()
    number, bound = _parked(network, owner)

    network.clock.now += 999
    assert network.send("ada", Publish(text="awaited")) == bound
    owner.step()

    assert _texts(owner.response(number)) == ["awaited"]


def test_a_bound_that_is_not_met_in_time_is_refused_as_behind(network: Network):
    """After its deadline a parked query gets both positions and no old answer, also when the record comes later."""
    owner = network.start()
    number, bound = _parked(network, owner)

    network.clock.now += 1000
    owner.step()
    network.send("ada", Publish(text="too late"))
    owner.step()

    at = bound.offset - 1
    lag = f"Partition {bound.partition} is at record {at}, and record {bound.offset} was asked for: 1 to go."
    assert owner.response(number) == Refusal(number, "behind", f"{lag} Ask again, or wait longer.", at=at)


def test_a_bound_that_is_met_already_costs_nothing(network: Network):
    """A query that asks for what has been handled is answered in the same turn."""
    owner = network.start()
    position = network.send("ada", Register(name="Ada"))
    network.settle(owner)
    number = owner.ask("ada", Posts(), at_least=position)
    owner.step()

    assert isinstance(owner.response(number), Answer)


# Await


def test_the_writer_of_a_record_gets_the_outcomes_of_all_its_commands(network: Network):
    """Replies go to the writer, one message per record, in the order of its commands, rejections included."""
    owner = network.start()
    register = [network.envelope("ada", Register(name="Ada")) for _ in range(2)]
    position = network.send_all(register)[0]
    owner.step()

    ((receiver, replies),) = owner.line.sent
    assert receiver == b"gateway"
    assert (replies.partition, replies.offset, replies.indices) == (position.partition, position.offset, None)
    assert [outcome.verdict for outcome in replies.outcomes] == [Verdict.REPLY, Verdict.REJECTED]


def test_a_new_owner_knows_the_outcomes_that_the_old_one_took_along(network: Network):
    """After a move an `Await` gets the outcome that the lost owner had, by index, from the image."""
    old = network.start()
    network.send("ada", Register(name="Ada"))
    position = network.send("ada", Publish(text="hello"), session="client", sequence=7)
    old.step()
    (sent,) = (r for r in old.replies() if r.offset == position.offset)
    old.kill()

    new = network.start()
    assert new.replies() == [], "a replay tells nobody"
    new.request(Await(position.partition, position.offset, [(position.index, "client", 7)]))
    new.step()

    (replies,) = new.replies()
    assert (replies.outcomes, replies.indices) == (sent.outcomes, [position.index])


def test_an_await_for_what_is_not_handled_yet_gets_its_reply_when_it_is(network: Network):
    """Nothing is said to an `Await` that comes too early; the usual reply follows."""
    owner = network.start()
    home = network.home("ada")
    owner.request(Await(home, network.log.end(home), [(0, "client", 0)]))
    owner.step()
    early = owner.replies()
    position = network.send("ada", Register(name="Ada"), session="client", sequence=0)
    owner.step()

    assert early == []
    (replies,) = owner.replies()
    assert (replies.offset, replies.outcomes) == (position.offset, [Outcome(Verdict.REPLY, b"null")])


def test_a_report_has_the_digests_that_were_asked_for(network: Network):
    """A report shows each partition, with its digest only when wanted."""
    owner = network.start()
    network.send("ada", Register(name="Ada"))
    network.settle(owner)
    owner.request(Report(1, digests=True))
    owner.request(Report(2, digests=False))
    owner.step()

    with_digests, without = (r for _, r in owner.line.sent if isinstance(r, Reported))
    assert [p.digest for p in with_digests.status.partitions] == [owner.image(p).digest() for p in range(4)]
    assert {p.digest for p in without.status.partitions} == {""}
    assert [p.entities for p in without.status.partitions].count(1) == 1
