"""Windows: what was counted per hour, per day, or over the last hour, kept in an entity and closed by timers.

Only record time closes a window, so the same records close the same windows with the same counts, live or replayed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from typing import Any, ClassVar, NamedTuple

from engram.errors import Misuse
from engram.model.command import Command
from engram.model.context import Context
from engram.model.entity import Part

# Where all windows are counted from: a Monday at midnight, so that hours, days and weeks begin where people expect.
_ORIGIN = datetime(1970, 1, 5, tzinfo=UTC)
_NONE = timedelta()
# More is most likely a mistake, and the moment at which a window closes must be within the calendar.
_LONGEST = timedelta(days=36_500)


@dataclass(slots=True, kw_only=True)
class Window(Part):
    """What was counted from `start` to just before `end`, both in UTC. A copy: later counts do not change it.

    `counts` has the counters that are not zero, sorted by name. To be read, answered, emitted field by field, or kept
    in an entity, as any part.
    """

    start: datetime
    end: datetime
    counts: dict[str, int] = field(default_factory=dict)

    def count(self, counter: str) -> int:
        """The count of one counter; 0 if nothing was added to it."""
        return self.counts.get(counter, 0)


class _Sizes(NamedTuple):
    size: timedelta
    slide: timedelta
    lateness: timedelta


@dataclass(slots=True, kw_only=True)
class Windows(Part):
    """Counters by window, as a part of an entity. Subclass it to say which windows:

        @dataclass(slots=True, kw_only=True)
        class Hourly(Windows, size=timedelta(hours=1), lateness=timedelta(minutes=10)): ...

        @dataclass(slots=True, kw_only=True)
        class LastHour(Windows, size=timedelta(hours=1), slide=timedelta(minutes=5)): ...

        @dataclass(slots=True, kw_only=True)
        class Tweet(Entity, name="tweet"):
            hours: Hourly = field(default_factory=Hourly)

    Without `slide` the windows are tumbling: each begins where the one before ends. With `slide` they are sliding: one
    begins at every multiple of it, and a moment is in `size / slide` of them. They are counted from Monday, 5 January
    1970, 00:00 UTC: hours begin at full hours, days at midnight UTC, weeks on Mondays.

    What is kept are panes: counts per `slide` (per `size` in tumbling windows), so that what is added is kept once, in
    however many windows it is; a window is the sum of its panes. Never more than `(size + lateness) / slide + 1` panes
    are kept while timers fire in time.

    A moment belongs to a pane, and the pane takes counts until the record time is `lateness` past its end. Exactly:

    - what happened out of order, or late but before then, is counted where it belongs;
    - what is later than that is counted in none of its windows, but in `too_late`, and `add` says so;
    - a time that is still to come is taken for now, because clocks differ and nothing happens before it happens.

    A window closes when the record time is `lateness` past its end: no pane of it can change any more. One timer per
    part waits for the next window to close; it has the command `close` handled, which calls `take_closed`. A window in
    which nothing was counted is never seen.

    `size` and `slide` say what the state means, as a field's name does: to change them, declare another subclass and
    another field, and keep the old one until its windows are closed. `lateness` can be changed with the code: what is
    closed stays closed.
    """

    panes: dict[datetime, dict[str, int]] = field(default_factory=dict)  # by their start
    too_late: dict[str, int] = field(default_factory=dict)  # what was not counted, by counter
    closed: datetime | None = None  # the end of the last window that was taken: those that end later are open
    due: datetime | None = None  # when the timer fires
    timer: str = ""

    _sizes: ClassVar[_Sizes | None] = None

    def __init_subclass__(
        cls, *, size: timedelta | None = None, slide: timedelta | None = None, lateness: timedelta = _NONE
    ) -> None:
        if size is not None:
            cls._sizes = _checked(cls.__name__, _Sizes(size, size if slide is None else slide, lateness))
        elif cls._sizes is None or slide is not None or lateness:
            raise Misuse(_unsized(cls.__name__))
        # Else: dataclass(slots=True) makes the class a second time, without the keywords.

    def add(
        self, counter: str, ctx: Context, *, close: Command[Any, Any], at: datetime | None = None, amount: int = 1
    ) -> bool:
        """Adds to a counter in all windows that `at` is in; without `at`, the record's time.

        False if it came too late: then only `too_late` has changed. To refuse it instead, raise `Rejected`, which
        takes that back too. `close` is the command that is to call `take_closed` when the next window closes; it is
        scheduled if need be, and must do no harm when it comes too often. A time without a zone is `Misuse`.
        """
        sizes, now = self._sized(), ctx.now
        pane = _pane(now if at is None else min(_aware(at), now), sizes.slide)
        end = pane + sizes.slide
        if end + sizes.lateness <= now - _ORIGIN or (self.closed is not None and end <= self.closed - _ORIGIN):
            self.too_late[counter] = self.too_late.get(counter, 0) + amount
            return False
        start = _ORIGIN + pane
        counts = self.panes.get(start)
        if counts is None:
            self.panes[start] = {counter: amount}
        else:
            counts[counter] = counts.get(counter, 0) + amount
        due = start + sizes.slide + sizes.lateness
        self._wait_until(due if self.due is None else min(due, self.due), ctx, close)
        return True

    def open(self) -> list[Window]:
        """Early results: all windows that are not closed and have counts, as they are now, oldest first.

        Of sliding windows, the last ones still have panes to come.
        """
        return list(self._open())

    def window(self, moment: datetime) -> Window | None:
        """The window that ends with the pane of `moment`, as it is now; None if it is closed.

        In tumbling windows, the one that holds the moment. In windows of an hour that slide by five minutes, the hour
        up to the end of the moment's five minutes. The counts are empty if there is nothing yet.
        """
        sizes = self._sized()
        try:
            end = _ORIGIN + _pane(_aware(moment), sizes.slide) + sizes.slide
            start = end - sizes.size
        except OverflowError:
            raise Misuse(f"{moment} is too near an end of the calendar for a window of {sizes.size}.") from None
        if self.closed is not None and end <= self.closed:
            return None
        counts: Counter[str] = Counter()
        for pane, counted in self.panes.items():
            if start <= pane < end:
                counts.update(counted)
        return _window(start, end, counts)

    def take_closed(self, ctx: Context, *, close: Command[Any, Any]) -> list[Window]:
        """The windows that have closed by the record's time, oldest first, each of them once; they are kept no longer.

        For the handler of `close`, which passes itself: it is scheduled again if windows are left. Sent by anybody at
        any other time, it finds none.
        """
        sizes, now = self._sized(), ctx.now
        taken = list(takewhile(lambda window: window.end + sizes.lateness <= now, self._open()))
        if taken:
            self.closed = taken[-1].end
            for start in [start for start in self.panes if start + sizes.size <= self.closed]:
                del self.panes[start]
        if self.panes:
            last = min(self.panes) if self.closed is None else max(self.closed, min(self.panes))
            self._wait_until(last + sizes.slide + sizes.lateness, ctx, close)
        elif self.due is not None:
            ctx.cancel(self.timer)
            self.due, self.timer = None, ""
        return taken

    def _open(self) -> Iterator[Window]:
        """Each window's counts are those of the one before, with the panes that come in and without those that go."""
        sizes = self._sized()
        panes = sorted(self.panes.items())
        counts: Counter[str] = Counter()
        come = gone = 0
        end = self.closed
        for newest, _ in panes:
            end = newest if end is None else max(end, newest)
            while end < newest + sizes.size:
                end += sizes.slide
                while come < len(panes) and panes[come][0] < end:
                    counts.update(panes[come][1])
                    come += 1
                while panes[gone][0] < end - sizes.size:
                    counts.subtract(panes[gone][1])
                    gone += 1
                yield _window(end - sizes.size, end, counts)

    def _wait_until(self, due: datetime, ctx: Context, close: Command[Any, Any]) -> None:
        # A timer that should have fired by now may wait behind many others, or its command was quarantined: one more
        # try is right in both cases, and in the first it takes the place of the one that waits.
        if due == self.due and due > ctx.now:
            return
        if self.due is not None:
            ctx.cancel(self.timer)
        self.due = due
        self.timer = ctx.schedule(due, close)

    @classmethod
    def _sized(cls) -> _Sizes:
        if cls._sizes is None:
            raise Misuse(_unsized("Hourly"))
        return cls._sizes


def _pane(moment: datetime, slide: timedelta) -> timedelta:
    """Where the pane of a moment begins, counted from the origin: unlike a datetime it cannot overflow."""
    return (moment - _ORIGIN) // slide * slide


def _window(start: datetime, end: datetime, counts: Counter[str]) -> Window:
    return Window(start=start, end=end, counts={name: counts[name] for name in sorted(counts) if counts[name]})


def _aware(moment: datetime) -> datetime:
    if moment.utcoffset() is None:
        raise Misuse(f"{moment} has no time zone: declare the command's field as pydantic.AwareDatetime, or add one.")
    return moment


def _unsized(name: str) -> str:
    return f"Windows need a size: write class {name}(Windows, size=timedelta(hours=1)), and use that as the field."


def _checked(name: str, sizes: _Sizes) -> _Sizes:
    size, slide, lateness = sizes
    if size <= _NONE:
        raise Misuse(f"{name} has windows of size {size}: the size must be more than nothing.")
    if slide <= _NONE or size % slide:
        raise Misuse(
            f"{name} has windows of size {size} that slide by {slide}, which does not divide it: take a slide that "
            "does, such as an hour by 5 minutes, or none for windows that do not overlap."
        )
    if lateness < _NONE:
        raise Misuse(f"{name} allows a lateness of {lateness}: it cannot be less than nothing.")
    if size > _LONGEST or lateness > _LONGEST:
        raise Misuse(f"{name} has windows of size {size} and lateness {lateness}: at most {_LONGEST} are allowed.")
    return sizes
