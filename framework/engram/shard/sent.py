"""What the latest records of a partition have sent, for whoever waits for the effects of a command.

Not part of the image, which is the same on every owner: a new owner knows of what it has replayed, and no more. What
is not remembered is said to be unknown, never to be nothing. See docs/decisions/0016-tokens-and-effects.md.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from engram.image.image import Handled, Image
from engram.log.partitioner import partition_of
from engram.model.effects import Message, Place
from engram.shard.requests import Arrived

# For some seconds of a busy partition. Messages are kept as they are, which costs nothing but their memory: 8 MB or so.
_MESSAGES = 20_000
_RECORDS = 10_000
# A command that has sent more is summed up at once, so that a single one cannot take all the place.
_LARGE = 1000

_NOWHERE: Place = (-1, 0, 0)

# The first and the last of some messages from one partition to another: they arrive in this order.
Span = tuple[Place, Place]
# By destination.
Spans = dict[int, Span]


class _Step(NamedTuple):
    """A record that has sent something, or held commands that were handled before. `roots` are those of messages that
    a client's command did not send itself."""

    messages: Sequence[Message]
    roots: frozenset[str]
    arrived: tuple[int, Place] | None
    repeats: Mapping[int, int]
    spans: Mapping[str, Spans] | None  # instead of the messages, for a command that sent many
    size: int


class Sent:
    """The memory of one partition of so many. `begin` with what was loaded, `add` every record that is handled."""

    def __init__(self, partition: int, partitions: int) -> None:
        self._partition = partition
        self._partitions = partitions
        self._steps: dict[int, _Step] = {}
        self._by_root: dict[str, list[int]] = {}
        self._size = 0
        self._from = 0  # records from this one on are remembered
        self._forgotten: dict[int, Place] = {}  # messages up to here may have led to something that is not

    def begin(self, image: Image) -> None:
        """What the image has handled already is not known."""
        self._from = image.offset
        self._forgotten.update(image.origins)

    def add(self, offset: int, handled: Handled, last_of: Callable[[int], Mapping[int, Place]]) -> None:
        """Remembers a record. `last_of` gives its last messages by destination, for one that has sent many."""
        messages = handled.messages
        if not messages and not handled.repeats:
            return
        # What timers send comes first in a record: after a message without a cause there are none with one.
        caused = bool(messages) and messages[0].cause is not None
        of_one_command = bool(messages) and messages[0].origin[1] == messages[-1].origin[1]
        looked_at = messages[:1] if of_one_command else messages
        roots = frozenset(m.cause.root for m in looked_at if m.cause is not None) if caused else frozenset()
        large = of_one_command and len(messages) > _LARGE
        spans = self._one_span(messages[0], last_of(offset)) if large else None
        size = len(messages) if spans is None else self._partitions
        kept = messages if spans is None else ()
        self._steps[offset] = _Step(kept, roots, handled.arrived, handled.repeats, spans, size)
        for root in roots:
            self._by_root.setdefault(root, []).append(offset)
        self._size += size
        while len(self._steps) > 1 and (self._size > _MESSAGES or len(self._steps) > _RECORDS):
            self._forget()

    def by_command(self, offset: int, index: int) -> tuple[list[str], Spans] | None:
        """What the command at a place has sent, and the roots that messages which come of it have. None if that is not
        known. A command that was handled before has sent nothing now, but the first time.
        """
        step = self._steps.get(offset)
        if offset < self._from or step is None or index not in step.repeats:
            root = f"{self._partition}:{offset}.{index}"
            return None if offset < self._from else ([root], self._sent([root], [offset]))
        # Which of its record's commands it was is not remembered: so all of them, which is more than was asked for.
        # One of these may have been there before, too: with the same idempotency key, and sent again by its session.
        roots, looked_at, ahead = [], set(), {step.repeats[index]}
        while ahead:
            first = ahead.pop()
            if first < self._from:
                return None
            looked_at.add(first)
            if (step := self._steps.get(first)) is not None:
                roots += [root for root in self._spans(step) if root not in step.roots]
                ahead |= {*step.repeats.values()} - looked_at
        return roots, self._sent(roots, looked_at)

    def by_roots(self, roots: Sequence[str], arrived: Iterable[Arrived]) -> Spans | None:
        """What messages with these roots, among those that `arrived`, have sent from here; it may be more. None if that
        is not known."""
        if any(after < self._forgotten.get(of, _NOWHERE) for of, after, _ in arrived):
            return None
        return self._sent(roots, {offset for root in roots for offset in self._by_root.get(root, ())})

    def _sent(self, roots: Iterable[str], offsets: Iterable[int]) -> Spans:
        found: Spans = {}
        for offset in offsets:
            step = self._steps.get(offset)
            spans = {} if step is None else self._spans(step)
            for root in roots:
                for destination, span in spans.get(root, {}).items():
                    found[destination] = joined(found.get(destination), span)
        return found

    def _spans(self, step: _Step) -> Mapping[str, Spans]:
        return self._sum_up(step.messages) if step.spans is None else step.spans

    def _one_span(self, first: Message, last: Mapping[int, Place]) -> Mapping[str, Spans]:
        """The same as `_sum_up` for messages of one command, without going through them."""
        return {root: {to: (first.origin, place) for to, place in last.items()} for root in self._sum_up([first])}

    def _sum_up(self, messages: Iterable[Message]) -> Mapping[str, Spans]:
        """By root. What a timer sends itself is left out: nobody waits for timers."""
        found: dict[str, Spans] = defaultdict(dict)
        for message in messages:
            origin, cause = message.origin, message.cause
            if cause is not None and cause.timer is not None:
                continue
            spans = found[f"{self._partition}:{origin[0]}.{origin[1]}" if cause is None else cause.root]
            for destination in self._destinations(message):
                spans[destination] = joined(spans.get(destination), (origin, origin))
        return dict(found)

    def _destinations(self, message: Message) -> Iterable[int]:
        if message.everywhere is None:
            return (partition_of(message.key, self._partitions),)
        return (partition for partition in range(self._partitions) if partition != self._partition)

    def _forget(self) -> None:
        offset = next(iter(self._steps))
        step = self._steps.pop(offset)
        self._from = offset + 1
        self._size -= step.size
        if step.arrived is not None:
            of, last = step.arrived
            self._forgotten[of] = max(last, self._forgotten.get(of, _NOWHERE))
        for root in step.roots:
            remembered = self._by_root[root]
            remembered.remove(offset)
            if not remembered:
                del self._by_root[root]


def joined(one: Span | None, other: Span) -> Span:
    """The span that covers both."""
    return other if one is None else (min(one[0], other[0]), max(one[1], other[1]))
