"""Waiting for the effects of a command: whoever is told that they are handled can rely on it, whatever crashes."""

from __future__ import annotations

import itertools

import pytest
from engram import Position
from engram.codec.record import Envelope
from engram.log.trace import Step, trace
from engram.serving.effects import Following, Inquiry
from engram.shard import sent
from engram.shard.requests import Answer, AskEffects, EffectsReport, Refusal
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from tests.shard.dominoes import Fall
from tests.shard.network import Network, Owner
from tests.shard.societies import PARTITIONS, Program, come_to_rest
from tests.shard.test_societies import Societies, batches

pytestmark = pytest.mark.usefixtures("quiet")
_ids = itertools.count(1_000_000)
_LONG_MS = 10**9


def ask(owner: Owner, inquiry: Inquiry) -> int:
    """Puts an inquiry on a shard's line, and returns its id."""
    number = next(_ids)
    owner.request(AskEffects(number, *inquiry, _LONG_MS))
    return number


def effects_of(step: Step) -> set[Position]:
    """Where the effects of a command are in the log, without those of timers."""
    found: set[Position] = set()
    for led_to in step.led_to:
        if not led_to.timer:
            found |= {led_to.position, *effects_of(led_to)}
    return found


class Followed:
    """A command that somebody follows, and how far that has come."""

    def __init__(self, network: Network, position: Position, envelope: Envelope) -> None:
        self._network = network
        self._following = Following(position)
        self._id = f"{envelope.session}/{envelope.sequence}"
        self._asked: dict[int, tuple[Owner, int, Inquiry]] = {}  # by partition
        self.reached = {position.partition: position.offset}
        self.forgotten = False

    @property
    def over(self) -> bool:
        return self.forgotten or not self._following.inquiries()

    def go_on(self, owners: dict[int, Owner]) -> None:
        """Hears what was answered, and asks those again who have died."""
        for partition, (owner, number, inquiry) in list(self._asked.items()):
            response = owner.response(number)
            if isinstance(response, Answer):
                self._following.note(inquiry, EffectsReport.model_validate_json(response.body))
                self.reached[partition] = max(response.offset, self.reached.get(partition, -1))
            self.forgotten |= isinstance(response, Refusal) and response.kind == "forgotten"
            if response is not None or owners[partition] is not owner:
                del self._asked[partition]
        if not self._asked and not self.forgotten:
            for inquiry in self._following.inquiries():
                owner = owners[inquiry.partition]
                self._asked[inquiry.partition] = owner, ask(owner, inquiry), inquiry

    def effects(self) -> set[Position]:
        """What the log has of them now. A command that was sent again has those of the first time."""
        return effects_of(trace(self._network.log, find_first(self._network, self._id), progress=lambda _: None))


def find_first(network: Network, command_id: str) -> Position:
    """The first record that has a command of this id; `find_position` looks from the end."""
    session, _, sequence = command_id.rpartition("/")
    for partition in range(network.log.partitions):
        for record in network.log.read(partition, 0, limit=1_000_000):
            content = network.codec.decode_record(record) if record.kind == "commands" else None
            header = getattr(content, "header", None)
            for index in range(len(header.which) if header is not None else 0):
                if (header.sessions[header.session[index]], header.sequence[index]) == (session, int(sequence)):
                    return Position(partition, record.offset, index)
    raise AssertionError(command_id)


class Settling(Societies):
    """Societies, some of whose commands are followed to their effects."""

    def __init__(self) -> None:
        super().__init__()
        self.followed: list[Followed] = []
        self.settled: list[tuple[Followed, set[Position]]] = []

    @rule(which=st.integers(0, 4), again=st.booleans())
    def follow(self, which: int, again: bool) -> None:
        """A command of the last ones, as it was sent, or sent once more."""
        envelope = self.last[which % len(self.last)]
        command_id = f"{envelope.session}/{envelope.sequence}"
        position = self.network.send_all([envelope])[0] if again else find_first(self.network, command_id)
        self.followed.append(Followed(self.network, position, envelope))

    @rule(sent=batches, order=st.permutations(range(PARTITIONS)), turns=st.integers(1, 6))
    def send_and_follow(self, sent: list[tuple[int, int, Program, str]], order: list[int], turns: int) -> None:
        """Somebody waits from the first moment on, while the shards take their turns."""
        self.send(sent)
        for which in range(len(sent)):
            self.follow(which, again=False)
        for _ in range(turns):
            for number in order:
                self.look()
                self.step(number, 1)

    @invariant()
    def look(self) -> None:
        if not hasattr(self, "network"):
            return
        owners = {partition: shard for shard in self.shards for partition in shard.shard.owned}
        for followed in list(self.followed):
            followed.go_on(owners)
            if followed.over:
                self.followed.remove(followed)
                if not followed.forgotten:
                    self.settled.append((followed, effects := followed.effects()))
                    for position in effects:
                        assert followed.reached[position.partition] >= position.offset, "the token covers it"

    def teardown(self) -> None:
        if not hasattr(self, "network"):
            return
        try:
            rounds = 0
            while self.followed:
                come_to_rest(self.network, self.shards)
                self.look()
                rounds += 1
                assert rounds < 200, "a wait ends when everything is at rest"
            self.network.clock.now += 10_000
            come_to_rest(self.network, self.shards)
            for followed, effects in self.settled:
                assert followed.effects() == effects, "nothing came after it was said to be over"
        finally:
            super().teardown()


TestSettling = Settling.TestCase
TestSettling.settings = settings(max_examples=25, stateful_step_count=12, deadline=None)


# What a shard remembers


def settled(network: Network, owner: Owner, position: Position) -> bool | None:
    """Whether the effects of a command are handled, as the shard says; None if it does not know."""
    following = Following(position)
    while inquiries := following.inquiries():
        for inquiry in inquiries:
            number = ask(owner, inquiry)
            owner.step()
            response = owner.response(number)
            if response is None:
                return False
            if isinstance(response, Refusal):
                assert response.kind == "forgotten"
                return None
            following.note(inquiry, EffectsReport.model_validate_json(response.body))
    return True


def keys_of(network: Network) -> list[str]:
    return [network.key_in(partition) for partition in range(4)]


def test_a_shard_that_has_replayed_knows_what_its_predecessor_did(table: Network):
    """Without a snapshot nothing is forgotten: the wait goes on with the next owner."""
    keys = keys_of(table)
    first = table.start()
    position = table.send(keys[0], Fall(onto=(keys[1],), then=(keys[2], keys[3])))
    table.settle(first)
    first.kill()

    assert settled(table, table.start(), position)


def test_what_a_snapshot_has_passed_is_not_known(table: Network):
    """A new owner that began after the command does not say that nothing was sent."""
    keys = keys_of(table)
    first = table.start()
    position = table.send(keys[0], Fall(onto=(keys[1],), then=(keys[2],)))
    table.settle(first)
    first.stop()

    assert settled(table, table.start(), position) is None


@pytest.mark.parametrize("forgetful", [0, 1, 2])
def test_a_snapshot_anywhere_on_the_way_makes_it_unknown(table: Network, forgetful: int):
    """Only the partition of the third step, or of the second, was snapshotted: the chain is lost there."""
    keys = keys_of(table)
    owner = table.start()
    position = table.send(keys[0], Fall(onto=(keys[1],), then=(keys[2],)))
    table.settle(owner)
    owner.shard.begin_snapshot(forgetful)
    table.settle(owner)
    owner.kill()

    # The last in the chain has sent nothing, but that is not known of it either.
    assert settled(table, table.start(), position) is None


def test_a_command_that_was_sent_again_has_its_first_effects(table: Network):
    """The second time it sends nothing; what it has sent the first time is waited for."""
    keys = keys_of(table)
    first = table.start([0])
    again = table.envelope(keys[0], Fall(onto=(keys[1],)))
    table.send_all([again])
    first.step()
    (repeated,) = table.send_all([again])
    first.step()
    (inquiry,) = Following(repeated).inquiries()
    number = ask(first, inquiry)
    first.step()
    response = first.response(number)

    assert isinstance(response, Answer)
    assert list(EffectsReport.model_validate_json(response.body).sent) == [1]


def test_an_idempotency_key_that_was_used_before_has_its_first_effects(table: Network):
    """Whoever sends it, and also when that is sent again by its session: until a snapshot has passed it, and then
    nobody says that it had no effects."""
    keys = keys_of(table)
    owner = table.start([0])
    how = {"idempotency_key": "the same"}
    again = table.envelope(keys[0], Fall(onto=(keys[1],)), session="two", **how)
    table.send(keys[0], Fall(onto=(keys[1],)), session="one", **how)
    repeated = [table.send_all([again])[0] for _ in range(2)]
    table.settle(owner)
    for position in repeated:
        (inquiry,) = Following(position).inquiries()
        number = ask(owner, inquiry)
        owner.step()
        response = owner.response(number)
        assert isinstance(response, Answer)
        assert list(EffectsReport.model_validate_json(response.body).sent) == [1]
    owner.stop()
    later = table.send(keys[0], Fall(onto=(keys[1],)), session="three", **how)
    successor = table.start()
    table.settle(successor)

    assert settled(table, successor, later) is None


def test_the_memory_is_bounded_and_knows_its_end(table: Network, monkeypatch: pytest.MonkeyPatch):
    """Of what was pushed out it is not said that it sent nothing; the newest are remembered."""
    monkeypatch.setattr(sent, "_MESSAGES", 3)
    keys = keys_of(table)
    owner = table.start()
    positions = [table.send(keys[0], Fall(onto=(keys[1],), then=(keys[2],))) for _ in range(5)]
    table.settle(owner)

    assert [settled(table, owner, position) for position in positions] == [None, None, True, True, True]


def test_a_large_fan_out_is_summed_up(table: Network, monkeypatch: pytest.MonkeyPatch):
    """The same is said of it as of its messages, and it takes the place of few."""
    monkeypatch.setattr(sent, "_LARGE", 2)
    keys = keys_of(table)
    owner = table.start()
    everybody = tuple(keys[1:] * 50)
    position = table.send(keys[0], Fall(onto=everybody, then=(keys[2],)))
    table.settle(owner)

    assert settled(table, owner, position)
    assert owner.shard.owned[0].sent._size < 20
