"""The registry: everything the network has."""

from __future__ import annotations

from engram import App

from sample_apps.social.commands import (
    Deliver,
    Discard,
    Follow,
    GainFollower,
    GainLike,
    Like,
    LoseFollower,
    Publish,
    PublishDraft,
    PublishLater,
    Register,
    Unfollow,
)
from sample_apps.social.events import Followed, Published
from sample_apps.social.queries import Drafts, Followers, Following, Posts, Profile, Timeline

app = App(
    "social",
    version=1,
    commands=[
        Register, Follow, Unfollow, Publish, PublishLater, Discard, Like,  # of users
        GainFollower, LoseFollower, GainLike, Deliver, PublishDraft,  # of entities and timers
    ],
    queries=[Profile, Posts, Drafts, Timeline, Following, Followers],
    events=[Followed, Published],
)  # fmt: skip
