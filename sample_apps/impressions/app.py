"""The registry: everything the counter has."""

from __future__ import annotations

from engram import App

from sample_apps.impressions.commands import Click, CloseHours, Impression
from sample_apps.impressions.events import HourClosed
from sample_apps.impressions.queries import Hours, LastUrls, TooLate

app = App(
    "impressions",
    version=1,
    commands=[Impression, Click, CloseHours],
    queries=[Hours, LastUrls, TooLate],
    events=[HourClosed],
)
