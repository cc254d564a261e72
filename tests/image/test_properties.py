"""What holds for every history: replay equals live, a snapshot and its tail equal both, failure and repetition
leave no trace."""

from typing import NamedTuple

from engram.codec.record import Epoch, Kind, Record, encode_commands, encode_epoch, encode_messages
from engram.image.contents import digest_of
from engram.image.dedupe import Window
from engram.image.freeze import Freeze
from engram.image.image import Image
from engram.log.base import Entry
from engram.log.memory import MemoryLog
from engram.log.partitioner import partition_of
from engram.model.effects import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.image.workshop import (
    CODEC,
    PROGRAMS,
    STEPS,
    Count,
    Sent,
    Work,
    app,
    commands,
    envelope,
    epoch,
    handle,
    replies,
    restored,
    shown,
    whole_freeze,
)

# Small, so that histories of a few commands go beyond it.
WINDOW = Window(sessions=2, idempotency_keys=2)

KEYS = st.sampled_from(["ada", "bob", "cleo", "dan", "eve"])
SENT = st.builds(
    Sent,
    key=KEYS,
    command=st.builds(
        Work,
        steps=st.lists(STEPS, max_size=4),
        end=st.sampled_from(["reply", "reply", "reply", "reject", "fail"]),
        tell=st.lists(KEYS, max_size=2),
    )
    | st.builds(Count, by=st.integers(-1, 3)),
    session=st.sampled_from("abcdef"),
    sequence=st.integers(0, 4),
    idempotency_key=st.none() | st.sampled_from("xyz"),
)


class Moment(NamedTuple):
    """What happens next: a batch of commands at a time, or a new owner; and whether effects go out at once."""

    batch: list[Sent]
    time: int
    flush: bool
    repeat: bool


MOMENTS = st.lists(
    st.builds(Moment, st.lists(SENT, max_size=4), st.integers(0, 50), st.booleans(), st.booleans()), max_size=8
)


class Live:
    """All partitions of a small system, handled as they grow. Messages travel through the log, some of them twice."""

    def __init__(self, partitions: int) -> None:
        self.log = MemoryLog(app.name, partitions)
        self.images = [Image(p, CODEC, window=WINDOW) for p in range(partitions)]
        self._out: list[tuple[int, Message]] = []

    def go(self, moment: Moment) -> None:
        for partition in range(self.log.partitions):
            batch = [s for s in moment.batch if partition_of(s.key, self.log.partitions) == partition]
            payload = (
                encode_commands([envelope(s) for s in batch], "writer")
                if batch
                else encode_epoch(Epoch(owner="owner", app_version=1))
            )
            self._append(partition, Kind.COMMANDS if batch else Kind.EPOCH, moment.time, payload)
        if moment.flush:
            self.flush(moment)

    def flush(self, moment: Moment) -> None:
        """Appends the messages that wait: per pair of partitions one record, once or twice."""
        waiting, self._out = self._out, []
        pairs: dict[tuple[int, int], list[Message]] = {}
        for origin, message in waiting:
            pairs.setdefault((origin, partition_of(message.key, self.log.partitions)), []).append(message)
        for (origin, partition), batch in pairs.items():
            for _ in range(2 if moment.repeat else 1):
                self._append(partition, Kind.MESSAGES, moment.time, encode_messages(batch, origin))

    def _append(self, partition: int, kind: Kind, time: int, payload: bytes) -> None:
        self.log.append([Entry(partition, kind, time, payload)])
        (record,) = self.log.read(partition, self.images[partition].offset, limit=10)
        handled = self.images[partition].handle(record)
        self._out += [(partition, message) for message in handled.messages]


def replayed(image: Image, records: list[Record]) -> Image:
    """The image after the records that it has not handled yet, effects dropped."""
    for record in records[image.offset :]:
        image.handle(record)
    return image


def frozen_meanwhile(image: Image, records: list[Record], slice_: int) -> Freeze:
    """A freeze that begins now and is advanced while the rest of the records is handled."""
    freeze = image.begin_freeze()
    for record in records[image.offset :]:
        image.handle(record)
        freeze.advance(slice_)
    while freeze.advance(100):
        pass
    image.end_freeze()
    return freeze


@settings(deadline=None)
@given(st.integers(1, 4), MOMENTS, st.data())
def test_live_and_replay_and_any_snapshot_with_its_tail_are_one(partitions, moments, data):
    """For every history: digest(live) = digest(replay from zero) = digest(snapshot at any record + tail)."""
    live = Live(partitions)
    for moment in moments:
        live.go(moment)
    live.flush(Moment([], 60, flush=True, repeat=True))

    for image in live.images:
        records = live.log.read(image.partition, 0, limit=10_000)
        at = data.draw(st.integers(0, len(records)), label="snapshot at")
        replay = replayed(Image(image.partition, CODEC, window=WINDOW), records[:at])
        freeze = frozen_meanwhile(replay, records, slice_=data.draw(st.integers(0, 2), label="slice"))
        copy = restored(freeze.rows, freeze.memory, partition=image.partition, window=WINDOW)
        tail = replayed(copy, records)

        assert replay.digest() == image.digest()
        assert tail.digest() == image.digest()
        assert (tail.offset, tail.epoch, tail.memory()) == (image.offset, image.epoch, image.memory())


@settings(deadline=None)
@given(st.lists(PROGRAMS, max_size=2), PROGRAMS, st.data(), PROGRAMS)
def test_a_handler_that_raises_leaves_the_digest_unchanged(before, program, data, after):
    """After any number of its steps: state is as before, and nothing that follows can tell that they were taken."""
    until = data.draw(st.integers(0, len(program)), label="raises after step")
    end = data.draw(st.sampled_from(["reject", "fail"]), label="by")
    image, twin = Image(0, CODEC), Image(0, CODEC)
    for each in (image, twin):
        for steps in before:
            handle(each, Sent("ada", Work(steps=steps), sequence=each.offset))
    rows, memory = whole_freeze(image)

    handled = handle(image, Sent("ada", Work(steps=program[:until], end=end, tell=["bob"]), sequence=image.offset))
    handle(twin, Sent("ada", Work(end=end), sequence=twin.offset))

    assert digest_of(whole_freeze(image)[0], memory) == digest_of(rows, memory)
    assert image.digest() == twin.digest()
    assert handled.messages == handled.events == []
    for each in (image, twin):
        handle(each, Sent("ada", Work(steps=after), sequence=each.offset))
    assert image.digest() == twin.digest()


@settings(deadline=None)
@given(st.lists(SENT, max_size=6), st.lists(st.integers(1, 3), min_size=6, max_size=6))
def test_the_same_command_id_again_changes_nothing(history, times):
    """However often a command comes, state changes once and there is one reply, also across a restart."""
    once, often = Image(0, CODEC), Image(0, CODEC)
    for number, (sent, repeats) in enumerate(zip(history, times, strict=False)):
        command = sent._replace(sequence=number, idempotency_key=None)
        first = handle(once, command)
        again = handle(often, *[command] * repeats)
        often = restored(*whole_freeze(often))
        once.handle(epoch(once))
        later = handle(often, command)

        assert replies(again) == replies(first) * repeats
        assert replies(later) == replies(first)
        assert (len(again.messages), len(later.messages)) == (len(first.messages), 0)
        assert len(again.events) == len(first.events)
        assert often.digest() == once.digest()


@settings(deadline=None)
@given(st.lists(SENT, min_size=1, max_size=6), st.data())
def test_the_same_idempotency_key_again_changes_nothing(history, data):
    """A command with a key that comes again under another id changes nothing, and gets the first reply."""
    image = Image(0, CODEC)
    firsts = []
    for number, sent in enumerate(history):
        command = sent._replace(session="first", sequence=number, idempotency_key=f"key {number}")
        firsts.append((command, replies(handle(image, command))))
    state = {key: shown(entity) for key, entity in image.entities["desk"].items()}

    repeated = data.draw(st.lists(st.sampled_from(firsts), max_size=4))
    for number, (command, first) in enumerate(repeated):
        assert replies(handle(image, command._replace(session="second", sequence=number))) == first

    assert {key: shown(entity) for key, entity in image.entities["desk"].items()} == state


@settings(deadline=None)
@given(st.lists(SENT, min_size=1, max_size=8), st.data())
def test_how_commands_are_batched_does_not_change_what_they_do(history, data):
    """One record with all commands, or two with some: replies and state are the same, as far as they do not
    depend on positions."""
    counts = [sent._replace(command=Count(by=sent.sequence)) for sent in history]
    cut = data.draw(st.integers(0, len(counts)))
    one, two = Image(0, CODEC), Image(0, CODEC)

    in_one = replies(one.handle(commands(one, *counts)))
    in_two = [reply for part in (counts[:cut], counts[cut:]) if part for reply in replies(handle(two, *part))]

    assert in_one == in_two
    assert {k: shown(e) for k, e in one.entities["desk"].items()} == {
        k: shown(e) for k, e in two.entities["desk"].items()
    }
