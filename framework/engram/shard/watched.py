"""What somebody watches in a partition: answers of queries, evaluated after each record that touched their entity."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from engram.image.image import Handled
from engram.model.principal import Principal
from engram.model.version import Version
from engram.shard.requests import Answer, Ask, Changed, Refusal, Response, Subscribe

Send = Callable[[bytes, Response], None]
Evaluate = Callable[[Ask], Answer | Refusal]
_What = tuple[str, Version, bytes, Principal | None]

# How many changes of a query are kept for those to whom one was lost on the way, or who come from another owner while
# somebody else watches already. To find out about older ones means to replay.
_KEPT = 256


class _Told(NamedTuple):
    """What a query came to, and with which command."""

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
    """One query of one entity, however many watch it."""

    def __init__(self, ask: Ask, first: _Told) -> None:
        self.ask = ask
        self.told = deque([first], maxlen=_KEPT)  # what it came to when it was first watched, and then each change
        self.leases: dict[tuple[bytes, int], _Lease] = {}  # by sender and id

    def message(self, number: int, told: _Told, since: int | None) -> Changed:
        return Changed(number, self.ask.partition, *told, since)


class Watched:
    """The watched queries of one partition. Each is evaluated once per change, however many watch it.

    A gateway takes a lease, and renews it by asking again, which also gets it the answer of the moment: whatever was
    lost on the way is made good then. `place` is the offset and index of the last command that the state includes.
    Those who have missed more than is known here are in `behind`, with what they asked for, until `catch_up`.
    """

    def __init__(self) -> None:
        self._by_key: dict[str, dict[_What, _Watched]] = {}
        self.behind: list[tuple[bytes, Subscribe]] = []

    def __bool__(self) -> bool:
        return bool(self._by_key)

    def subscribe(
        self, sender: bytes, request: Subscribe, place: tuple[int, int], evaluate: Evaluate, send: Send, *, now: int
    ) -> None:
        """Answers with what is now, and from then on after each change, until the lease ends; before it, with the
        changes after the record that the request names."""
        what = _what(request)
        queries = self._by_key.setdefault(request.key, {})
        watched = queries.get(what)
        if watched is None:
            query, version, body, principal = what
            ask = Ask(0, request.partition, request.key, query, version, body, None, 0, principal)
            watched = queries[what] = _Watched(ask, _Told(*place, *_said(evaluate(ask))))
        lease = watched.leases.setdefault((sender, request.id), _Lease(0))
        lease.until = now + request.lease_ms
        if not lease.behind:
            known = request if request.after is not None else replace(request, after=place[0])
            self._tell(watched, sender, known, place, send)

    def catch_up(
        self, sender: bytes, request: Subscribe, after: int | None, place: tuple[int, int], send: Send
    ) -> None:
        """Goes on with one who was behind, and has now been told of all changes up to the record `after`; without it,
        what was missed is not known."""
        watched = self._by_key.get(request.key, {}).get(_what(request))
        lease = None if watched is None else watched.leases.get((sender, request.id))
        if watched is not None and lease is not None:
            lease.behind = False
            self._tell(watched, sender, replace(request, after=after), place, send)

    def _tell(self, watched: _Watched, sender: bytes, request: Subscribe, place: tuple[int, int], send: Send) -> None:
        """The changes after a record, and the answer of the moment; or first of all somebody has to find them out."""
        told, after = watched.told, request.after
        if after is not None and after < told[0].offset:
            watched.leases[sender, request.id].behind = True
            self.behind.append((sender, request))
            return
        if after is not None:
            for before, change in pairwise(told):
                if change.offset > after:
                    send(sender, watched.message(request.id, change, before.offset))
        now = _Told(*place, told[-1].kind, told[-1].body)
        send(sender, watched.message(request.id, now, None if after is None else told[-1].offset))

    def after(self, handled: Handled, place: tuple[int, int], evaluate: Evaluate, send: Send) -> None:
        """Tells of what has changed with a record: called after each, so that no state between two is missed."""
        by_key = self._by_key
        for key in {key for key in (*handled.keys, *handled.fired) if key in by_key}:
            for watched in by_key[key].values():
                before, change = watched.told[-1], _Told(*place, *_said(evaluate(watched.ask)))
                if change[2:] != before[2:]:
                    watched.told.append(change)
                    for (sender, number), lease in watched.leases.items():
                        if not lease.behind:
                            send(sender, watched.message(number, change, before.offset))

    def expire(self, now: int) -> None:
        """Forgets those who did not renew their lease."""
        for key, queries in list(self._by_key.items()):
            for what, watched in list(queries.items()):
                watched.leases = {who: lease for who, lease in watched.leases.items() if lease.until > now}
                if not watched.leases:
                    del queries[what]
            if not queries:
                del self._by_key[key]


def _what(request: Subscribe) -> _What:
    return request.query, request.version, request.body, request.principal


def _said(response: Answer | Refusal) -> tuple[str, bytes]:
    if isinstance(response, Answer):
        return "answer", response.body
    return response.kind, json.dumps({"code": response.code, "text": response.text}).encode()
