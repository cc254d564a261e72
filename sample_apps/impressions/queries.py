"""What can be read of a tweet, while its hours are still counted."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from engram import Query
from pydantic import BaseModel, ConfigDict, Field

from sample_apps.impressions.tweet import HOURS_KEPT, Tweet

Limit = Annotated[int, Field(ge=1, le=HOURS_KEPT)]


class _View(BaseModel):
    model_config = ConfigDict(frozen=True)


class HourView(_View):
    """An hour's counts: final, or as they are so far if it is open."""

    hour: datetime
    impressions: int
    clicks: int
    open: bool


class TooLateView(_View):
    impressions: int
    clicks: int


class Hours(Query[Tweet, list[HourView]], name="hours"):
    """The last hours in which anything was counted, newest first."""

    limit: Limit = 24

    def answer(self, tweet: Tweet) -> list[HourView]:
        past = [
            HourView(hour=hour.start, impressions=hour.impressions, clicks=hour.clicks, open=False)
            for hour in tweet.past
        ]
        so_far = [
            HourView(hour=w.start, impressions=w.count("impressions"), clicks=w.count("clicks"), open=True)
            for w in tweet.hours.open()
        ]
        return [*past, *so_far][: -self.limit - 1 : -1]


class LastUrls(Query[Tweet, list[str]], name="last_urls"):
    """The last urls that were clicked, newest first."""

    def answer(self, tweet: Tweet) -> list[str]:
        return tweet.urls[::-1]


class TooLate(Query[Tweet, TooLateView], name="too_late"):
    """What was not counted, because it became known after its hour was closed."""

    def answer(self, tweet: Tweet) -> TooLateView:
        late = tweet.hours.too_late
        return TooLateView(impressions=late.get("impressions", 0), clicks=late.get("clicks", 0))
