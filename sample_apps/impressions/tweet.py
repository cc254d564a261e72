"""The entity: one tweet, as far as it is looked at."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from engram import Entity, Windows

HOURS_KEPT = 48
URLS_KEPT = 5


@dataclass(slots=True, kw_only=True)
class Hourly(Windows, size=timedelta(hours=1), lateness=timedelta(minutes=10)):
    """Full hours in UTC. Phones without a network have ten minutes to tell what happened in an hour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hour:
    """An hour that is over: it does not change any more."""

    start: datetime
    impressions: int
    clicks: int


@dataclass(slots=True, kw_only=True)
class Tweet(Entity, name="tweet"):
    hours: Hourly = field(default_factory=Hourly)
    past: list[Hour] = field(default_factory=list)  # the last hours that had any counts, oldest first
    urls: list[str] = field(default_factory=list)  # the last ones clicked, in the order in which that became known
