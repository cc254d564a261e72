"""The registry: everything the network has."""

from __future__ import annotations

from engram import App

from sample_apps.social.commands import (
    Deliver,
    Follow,
    GainFollower,
    GainLike,
    Like,
    LoseFollower,
    Publish,
    Register,
    Unfollow,
)
from sample_apps.social.events import Followed, Published
from sample_apps.social.queries import Followers, Following, Posts, Profile, Timeline

app = App(
    "social",
    version=1,
    commands=[Register, Follow, Unfollow, Publish, Like, GainFollower, LoseFollower, GainLike, Deliver],
    queries=[Profile, Posts, Timeline, Following, Followers],
    events=[Followed, Published],
)
