"""Generated histories: whatever crashes, moves or comes twice, the image is that of the log, and nothing is lost."""

from __future__ import annotations

import itertools
from typing import Any, cast

from engram import Command
from engram.codec.codec import Commands, Messages
from engram.codec.record import Envelope, Origin
from engram.image.image import Handled, Image
from engram.image.outcome import Outcome
from engram.shard.replay import replay_until
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from sample_apps.social.commands import Follow, Like, Publish, Register, Unfollow
from sample_apps.social.user import User
from tests.shard.network import FaultyLog, Network, Owner

PARTITIONS = 4
USERS = [f"user{number}" for number in range(7)]
SESSIONS = ["red", "green", "blue"]

users = st.sampled_from(USERS)
sessions = st.sampled_from(SESSIONS)
shards = st.integers(0, PARTITIONS - 1)
shard_counts = st.integers(1, PARTITIONS)
# Few enough commands between two snapshots that a history has several of every partition.
snapshot_every = st.integers(1, 12)
wishes = st.one_of(
    st.builds(Register, name=st.just("somebody")),
    st.builds(Follow, whom=users),
    st.builds(Follow, whom=users),
    st.builds(Unfollow, whom=users),
    st.builds(Publish, text=st.sampled_from(["hello", "world"])),
)

batches = st.lists(st.tuples(users, wishes, sessions), min_size=1, max_size=8)


class Histories(RuleBasedStateMachine):
    """The social network under clients that repeat themselves and shards that come and go.

    A command is acknowledged as soon as the log has it, handled or not.
    """

    def __init__(self) -> None:
        super().__init__()
        self.network = self.make_network()
        self.log = cast("FaultyLog", self.network.log)
        self.sequences = {session: itertools.count() for session in SESSIONS}
        self.last: dict[str, Envelope] = {}
        self.shards: list[Owner] = []
        self.old_owners: list[Owner] = []
        self.every = 1

    def make_network(self) -> Network:
        return Network(log=FaultyLog("social", PARTITIONS))

    @initialize(count=shard_counts, every=snapshot_every)
    def begin(self, count: int, every: int) -> None:
        self.every = every
        self.start(count)
        known = USERS[:-2]  # the last two may register later, or never
        for user, whom in zip(known, USERS[1:], strict=False):
            self.network.send(user, Register(name=user))
            self.network.send(user, Follow(whom=whom))
        self.network.settle(*self.shards)

    # Clients

    @rule(sent=batches)
    def send(self, sent: list[tuple[str, Command[Any, Any], str]]) -> None:
        self.network.send_all([self.next(key, command, session) for key, command, session in sent])

    @rule(session=sessions, times=st.integers(1, 2))
    def send_the_last_again(self, session: str, times: int) -> None:
        if session in self.last:
            self.network.send_all([self.last[session]] * times)

    @rule(key=users, command=wishes, idempotency_key=st.sampled_from(["k1", "k2", "k3"]))
    def send_with_a_key(self, key: str, command: Command[Any, Any], idempotency_key: str) -> None:
        self.network.send(key, command, idempotency_key=idempotency_key)

    @rule(key=users, number=st.integers(0, 100), session=sessions)
    def like(self, key: str, number: int, session: str) -> None:
        """Likes one of the posts that are there by now."""
        posts = [(author, post) for author in USERS for post in self.posts(author)]
        if posts:
            author, post = posts[number % len(posts)]
            self.network.send_all([self.next(key, Like(author=author, post=post), session)])

    @rule(milliseconds=st.integers(-1000, 5000))
    def move_the_clock(self, milliseconds: int) -> None:
        self.network.clock.now += milliseconds

    # Shards

    @rule(number=shards, turns=st.integers(1, 3))
    def step(self, number: int, turns: int) -> None:
        for _ in range(turns):
            self.shards[number % len(self.shards)].step()

    @rule(sent=batches, unsure=st.booleans(), turns=st.integers(1, 3))
    def send_while_effects_cannot_leave(
        self, sent: list[tuple[str, Command[Any, Any], str]], unsure: bool, turns: int
    ) -> None:
        """Handled, and not flushed; or flushed, and nobody knows."""
        self.send(sent)
        self.log.full, self.log.unsure = not unsure, unsure
        for _ in range(turns):
            for shard in self.shards:
                shard.step()
        self.log.full = self.log.unsure = False

    @rule(number=shards)
    def crash(self, number: int) -> None:
        place = number % len(self.shards)
        self.shards[place].kill()
        self.shards[place] = self.successor(place)

    @rule(number=shards)
    def take_over(self, number: int) -> None:
        """A second owner of the same partitions, while the first one is alive."""
        place = number % len(self.shards)
        self.old_owners.append(self.shards[place])
        self.shards[place] = self.successor(place)

    @precondition(lambda self: self.old_owners)
    @rule(number=shards)
    def step_an_old_owner(self, number: int) -> None:
        self.old_owners[number % len(self.old_owners)].step()

    @rule(count=shard_counts, every=snapshot_every, clean=st.booleans())
    def restart(self, count: int, every: int, clean: bool) -> None:
        """With another number of shards, after a clean stop or a crash of all."""
        for shard in self.shards:
            if clean:
                shard.stop()
            else:
                shard.kill()
        self.every = every
        self.start(count)

    @rule()
    def come_to_rest(self) -> None:
        """Everything that is logged gets handled, and all that must hold then is looked at."""
        self.network.settle(*self.shards)
        for old in self.old_owners:
            self.meet_successor(old)
            assert "serving" not in old.states.values(), "an owner that has met its successor serves nothing"
        self.network.settle(*self.shards)
        live = {partition: shard.image(partition) for shard in self.shards for partition in shard.shard.owned}
        replays = [Replay(self.network, partition) for partition in range(PARTITIONS)]
        expected = {key: Expected() for key in USERS}
        for replay in replays:
            self.check_digests(live[replay.partition], replay)
            self.check_replies(replay)
            assert replay.events == outside(self.network, replay.partition), "each event once, none missing"
            arrived = received(self.network, replay.partition)
            assert arrived == {
                other.partition: sent
                for other in replays
                if (sent := [m for m in other.messages if self.network.home(m[1]) == replay.partition])
            }, "each message once, in order, none missing"
            commands = expect(self.network, replay.partition, expected)
            assert replay.image.handled == commands + sum(map(len, arrived.values())), "each is handled once"
        self.check_users(live, expected)

    def meet_successor(self, old: Owner) -> None:
        """It looks into the log again."""
        old.step()

    def teardown(self) -> None:
        try:
            if self.shards:
                self.come_to_rest()
        finally:
            self.network.close()

    # What must hold

    def check_digests(self, live: Image, replay: Replay) -> None:
        digest = live.digest()
        assert replay.image.digest() == digest, "live, and replayed from zero"
        for loaded in self.network.snapshots(replay.partition):
            assert self.network.replayed(replay.partition, loaded).digest() == digest, "a snapshot and its tail"

    def check_replies(self, replay: Replay) -> None:
        for owner in self.network.owners:
            for replies in owner.replies():
                if replies.partition == replay.partition:
                    assert replies.outcomes == replay.outcomes[replies.offset], "one outcome, whoever tells it"

    def check_users(self, live: dict[int, Image], expected: dict[str, Expected]) -> None:
        """Every acknowledged command has taken effect once: on its user, and on those whom that user reached."""
        for key, wanted in expected.items():
            user = live[self.network.home(key)].find(User, key) or User(key=key)
            assert user.registered == wanted.registered
            assert list(user.following) == wanted.following
            assert [post.text for post in user.posts.values()] == wanted.posts
            assert list(user.liked) == wanted.liked
            assert sorted(user.followers) == [y for y in USERS if key in expected[y].following]
            for post, content in user.posts.items():
                assert sorted(content.likes) == [y for y in USERS if post in expected[y].liked]
            in_timeline = [entry.post for entry in user.timeline]
            assert len(in_timeline) == len(set(in_timeline)), "delivered once"

    # Helpers

    def start(self, count: int) -> None:
        self.shards = [
            self.network.start(range(number, PARTITIONS, count), number=number, snapshot_every=self.every)
            for number in range(count)
        ]

    def successor(self, place: int) -> Owner:
        partitions = list(self.shards[place].shard.owned)
        return self.network.start(partitions, number=place, snapshot_every=self.every)

    def next(self, key: str, command: Command[Any, Any], session: str) -> Envelope:
        sequence = next(self.sequences[session])
        self.last[session] = self.network.envelope(key, command, session=session, sequence=sequence)
        return self.last[session]

    def posts(self, author: str) -> list[str]:
        home = self.network.home(author)
        (image,) = (shard.image(home) for shard in self.shards if home in shard.shard.owned)
        user = image.find(User, author)
        return list(user.posts) if user else []


class Replay:
    """A partition replayed from zero, with everything that came of it on the way."""

    def __init__(self, network: Network, partition: int) -> None:
        self.partition = partition
        self.outcomes: dict[int, list[Outcome]] = {}
        self.messages: list[tuple[Origin, str, Command[Any, Any]]] = []
        self.events: list[tuple[int, int, int, bytes]] = []
        self.image = Image(partition, network.codec)
        replay_until(self.image, network.log, network.log.end(partition), effects=self._note, progress=lambda: None)

    def _note(self, handled: Handled) -> None:
        self.outcomes[self.image.offset - 1] = handled.outcomes
        for message in handled.messages:
            command = self.image.codec.decode_command(message.name, message.version, message.body)
            self.messages.append((message.origin, message.key, command))
        self.events += [(e.offset, e.index, e.number, e.body) for e in handled.events]


def outside(network: Network, partition: int) -> list[tuple[int, int, int, bytes]]:
    """The events that have left."""
    found = network.log.events(partition, after=(-1, 0, 0), limit=10_000)
    return [(event.offset, event.index, event.number, event.body) for event in found]


def received(network: Network, partition: int) -> dict[int, list[tuple[Origin, str, Command[Any, Any]]]]:
    """The messages in a partition's log by where they are from, without those that came before."""
    found: dict[int, list[tuple[Origin, str, Command[Any, Any]]]] = {}
    for record in network.log.read(partition, 0, limit=100_000):
        content = network.codec.decode_record(record)
        if isinstance(content, Messages):
            so_far = found.setdefault(content.header.origin_partition, [])
            for message in zip(content.header.origins, content.header.keys, content.commands, strict=True):
                if not so_far or message[0] > so_far[-1][0]:
                    so_far.append(message)
    return found


class Expected:
    """A user as the clients' commands alone make it, in plain Python."""

    def __init__(self) -> None:
        self.registered = False
        self.following: list[str] = []
        self.posts: list[str] = []
        self.liked: list[str] = []

    def handle(self, key: str, command: Command[Any, Any]) -> None:
        match command:
            case Register():
                self.registered = True
            case Unfollow(whom=whom) if whom in self.following:
                self.following.remove(whom)
            case Follow(whom=whom) if self.registered and whom != key and whom not in self.following:
                self.following.append(whom)
            case Publish(text=text) if self.registered:
                self.posts.append(text)
            case Like(post=post) if self.registered and post not in self.liked:
                self.liked.append(post)


def expect(network: Network, partition: int, users: dict[str, Expected]) -> int:
    """Applies the commands that are in the partition's log, each id once, and returns how many these are."""
    count = 0
    sessions: dict[str, int] = {}
    keys: set[str] = set()
    for record in network.log.read(partition, 0, limit=100_000):
        content = network.codec.decode_record(record)
        if isinstance(content, Commands):
            header = content.header
            for index, command in enumerate(content.commands):
                session, sequence = header.sessions[header.session[index]], header.sequence[index]
                idempotency_key = header.idempotency.get(index)
                if sequence > sessions.get(session, -1) and idempotency_key not in keys:
                    users[header.keys[index]].handle(header.keys[index], command)
                    count += 1
                sessions[session] = max(sequence, sessions.get(session, -1))
                keys |= {idempotency_key} - {None}
    return count


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
