"""What happens to a tweet. A command may say when it happened, and then it may come late and out of order."""

from __future__ import annotations

from typing import Annotated

from engram import Command, Context
from pydantic import AwareDatetime, Field

from sample_apps.impressions.events import HourClosed
from sample_apps.impressions.tweet import HOURS_KEPT, URLS_KEPT, Hour, Tweet

Url = Annotated[str, Field(min_length=1, max_length=2000)]


class Impression(Command[Tweet, bool], name="impression"):
    """Somebody saw the tweet. The reply says whether it was counted: false if its hour is closed."""

    at: AwareDatetime | None = None

    def handle(self, tweet: Tweet, ctx: Context) -> bool:
        return tweet.hours.add("impressions", ctx, at=self.at, close=CloseHours())


class Click(Command[Tweet, bool], name="click"):
    """Somebody clicked a link in the tweet. The reply says whether it was counted: false if its hour is closed."""

    url: Url
    at: AwareDatetime | None = None

    def handle(self, tweet: Tweet, ctx: Context) -> bool:
        counted = tweet.hours.add("clicks", ctx, at=self.at, close=CloseHours())
        if counted:
            tweet.urls.append(self.url)
            del tweet.urls[:-URLS_KEPT]
        return counted


class CloseHours(Command[Tweet, None], name="close_hours"):
    """Nothing can be added to an hour any more: the outside gets its counts. Sent by a timer."""

    def handle(self, tweet: Tweet, ctx: Context) -> None:
        for window in tweet.hours.take_closed(ctx, close=self):
            hour = Hour(start=window.start, impressions=window.count("impressions"), clicks=window.count("clicks"))
            tweet.past.append(hour)
            ctx.emit(HourClosed(tweet=tweet.key, hour=hour.start, impressions=hour.impressions, clicks=hour.clicks))
        del tweet.past[:-HOURS_KEPT]
