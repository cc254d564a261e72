"""What a shard refuses with, as the error that its asker gets."""

from __future__ import annotations

from engram.errors import Behind, Corrupt, Denied, EngramError, Gap, Misuse, Quarantined, Rejected, Unavailable
from engram.shard.requests import Question, Refusal, TakeSnapshot

# The partition is between two owners: ask again where it is served by then.
PASSING = ("moved", "recovering")

_REFUSED: dict[str, type[EngramError]] = {
    "denied": Denied,
    "unavailable": Unavailable,
    "forgotten": Unavailable,
    "ended": Unavailable,
    "building": Unavailable,
    "stopped": Corrupt,
    "misuse": Misuse,
}


def refused(refusal: Refusal, ask: Question | TakeSnapshot) -> EngramError:
    if refusal.kind == "rejected":
        return Rejected(refusal.code, refusal.text)
    if refusal.kind == "behind":
        return Behind(refusal.text, None if isinstance(ask, TakeSnapshot) else _gap(refusal, ask))
    return _REFUSED.get(refusal.kind, Quarantined)(refusal.text)


def _gap(refusal: Refusal, ask: Question) -> Gap | None:
    if refusal.at is None or ask.at_least is None:
        return None
    return Gap(ask.partition, refusal.at, ask.at_least[0])
