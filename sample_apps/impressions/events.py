"""Facts for the outside: what an advertiser's bill or a chart would be made of."""

from __future__ import annotations

from datetime import datetime

from engram import Event


class HourClosed(Event, name="hour_closed"):
    """The final counts of an hour that begins at `hour`. One per tweet and hour, if there was anything to count."""

    tweet: str
    hour: datetime
    impressions: int
    clicks: int
