"""What somebody watches in a partition: answers of queries, and rows of read models at a place, evaluated after each
record that touched them."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from engram.image.image import Handled
from engram.image.read_models import Moved, ReadModels
from engram.shard.requests import Answer, Ask, Changed, Look, Refusal, Response, SubscribeRows, Subscription

Send = Callable[[bytes, Response], None]
Asked = Ask | Look
Evaluate = Callable[[Asked], Answer | Refusal]

# How many changes are kept for those to whom one was lost on the way, or who come from another owner while somebody
# else watches already; and how many bytes of them. To find out about older ones means to replay.
_KEPT = 256
_KEPT_BYTES = 4 * 1024 * 1024
# What queries are of, where read models have their names.
_ENTITIES = ""


class _Told(NamedTuple):
    """What it came to, and with which command."""

    offset: int
    index: int  # type: ignore[assignment]  # a field, not tuple.index
    kind: str
    body: bytes


class _Lease:
    """Somebody who watches. One who is `behind` is told nothing until what it has missed is found out."""

    def __init__(self, until: int) -> None:
        self.until = until
        self.behind = False


class _Watched:
    """One query of one entity, or one place of a read model, however many watch it."""

    def __init__(self, ask: Asked, first: _Told) -> None:
        self.ask = ask
        self.told = deque([first], maxlen=_KEPT)  # what it came to when it was first watched, and then each change
        self.leases: dict[tuple[bytes, int], _Lease] = {}  # by sender and id
        self._bytes = len(first.body)

    def message(self, number: int, told: _Told, since: int | None) -> Changed:
        return Changed(number, self.ask.partition, *told, since)

    def as_of(self, offset: int) -> _Told:
        """What it was with a record, which is not before the first."""
        return next(told for told in reversed(self.told) if told.offset <= offset)

    def add(self, change: _Told) -> None:
        if len(self.told) == _KEPT:
            self._bytes -= len(self.told[0].body)
        self.told.append(change)
        self._bytes += len(change.body)
        while self._bytes > _KEPT_BYTES and len(self.told) > 1:
            self._bytes -= len(self.told.popleft().body)


class Watched:
    """What is watched in one partition. Each is evaluated once per change, however many watch it.

    A gateway takes a lease, and renews it by asking again, which also gets it the answer of the moment: whatever was
    lost on the way is made good then. `place` is the offset and index of the last command that the state includes.
    Those who have missed more than is known here are in `behind`, with what they asked for, until `catch_up`.
    """

    def __init__(self, read_models: ReadModels | None) -> None:
        self._read_models = read_models
        self._by_model: dict[str, dict[str, dict[Asked, _Watched]]] = {}  # then by key or place
        self._moved: dict[str, Moved] = {}
        self.behind: list[tuple[bytes, Subscription]] = []

    def __bool__(self) -> bool:
        return bool(self._by_model)

    def subscribe(
        self, sender: bytes, request: Subscription, place: tuple[int, int], evaluate: Evaluate, send: Send, *, now: int
    ) -> None:
        """Answers with what is now, and from then on after each change, until the lease ends; before it, with the
        changes after the record that the request names. Says nothing of a read model that is being built."""
        watched = self._find(request)
        if watched is None:
            ask = _asked(request)
            kind, body = _said(evaluate(ask))
            if kind == "building":
                return
            watched = self._keep(ask, _Told(*place, kind, body))
        lease = watched.leases.setdefault((sender, request.id), _Lease(0))
        lease.until = now + request.lease_ms
        if not lease.behind:
            known = request if request.after is not None else replace(request, after=place[0])
            self._tell(watched, sender, known, place, send)

    def catch_up(
        self, sender: bytes, request: Subscription, after: int | None, place: tuple[int, int], send: Send
    ) -> None:
        """Goes on with one who was behind, and has now been told of all changes up to the record `after`; without it,
        what was missed is not known."""
        watched = self._find(request)
        lease = None if watched is None else watched.leases.get((sender, request.id))
        if watched is not None and lease is not None:
            lease.behind = False
            self._tell(watched, sender, replace(request, after=after), place, send)

    def _find(self, request: Subscription) -> _Watched | None:
        ask = _asked(request)
        model, where = _where(ask)
        return self._by_model.get(model, {}).get(where, {}).get(ask)

    def _keep(self, ask: Asked, first: _Told) -> _Watched:
        model, where = _where(ask)
        if model not in self._by_model and self._read_models is not None:
            self._moved[model] = self._read_models.watch(model)
        watched = _Watched(ask, first)
        self._by_model.setdefault(model, {}).setdefault(where, {})[ask] = watched
        return watched

    def _tell(
        self, watched: _Watched, sender: bytes, request: Subscription, place: tuple[int, int], send: Send
    ) -> None:
        """The changes after a record, and the answer of the moment; or first of all somebody has to find them out."""
        told, after = watched.told, request.after
        if after is not None and after < told[0].offset:
            watched.leases[sender, request.id].behind = True
            self.behind.append((sender, request))
            return
        if after is not None:
            # An owner that was replaced may be asked about a record that it has never seen.
            if isinstance(request, SubscribeRows) and request.base and after <= place[0]:
                base = watched.as_of(after)
                send(sender, watched.message(request.id, base._replace(offset=after), base.offset))
            for before, change in pairwise(told):
                if change.offset > after:
                    send(sender, watched.message(request.id, change, before.offset))
        now = _Told(*place, told[-1].kind, told[-1].body)
        send(sender, watched.message(request.id, now, None if after is None else told[-1].offset))

    def after(self, handled: Handled, place: tuple[int, int], evaluate: Evaluate, send: Send) -> None:
        """Tells of what has changed with a record: called after each, so that no state between two is missed."""
        for model, by_place in self._by_model.items():
            for where in self._touched(model, by_place, handled):
                for watched in by_place[where].values():
                    before, change = watched.told[-1], _Told(*place, *_said(evaluate(watched.ask)))
                    if change[2:] != before[2:]:
                        watched.add(change)
                        for (sender, number), lease in watched.leases.items():
                            if not lease.behind:
                                send(sender, watched.message(number, change, before.offset))

    def _touched(self, model: str, by_place: dict[str, dict[Asked, _Watched]], handled: Handled) -> Iterable[str]:
        if model == _ENTITIES:
            fired = (timer.key for _, timer in handled.fired)
            return {key for key in (*handled.keys, *fired) if key in by_place}
        moved = self._moved.get(model)
        if not moved:
            return ()
        found = list(by_place) if moved.anywhere else [place for place in moved.places if place in by_place]
        moved.clear()
        return found

    def expire(self, now: int) -> None:
        """Forgets those who did not renew their lease."""
        for model, by_place in list(self._by_model.items()):
            for where, of_place in list(by_place.items()):
                for ask, watched in list(of_place.items()):
                    watched.leases = {who: lease for who, lease in watched.leases.items() if lease.until > now}
                    if not watched.leases:
                        del of_place[ask]
                if not of_place:
                    del by_place[where]
            if not by_place:
                del self._by_model[model]
                self._moved.pop(model, None)
                if self._read_models is not None:
                    self._read_models.unwatch(model)


def _asked(request: Subscription) -> Asked:
    if isinstance(request, SubscribeRows):
        return Look(0, request.partition, request.model, request.place, None, request.limit, None, 0)
    what = request.key, request.query, request.version, request.body
    return Ask(0, request.partition, *what, None, 0, request.principal)


def _where(ask: Asked) -> tuple[str, str]:
    return (ask.model, ask.place) if isinstance(ask, Look) else (_ENTITIES, ask.key)


def _said(response: Answer | Refusal) -> tuple[str, bytes]:
    if isinstance(response, Answer):
        return "answer", response.body
    return response.kind, json.dumps({"kind": response.kind, "code": response.code, "text": response.text}).encode()
