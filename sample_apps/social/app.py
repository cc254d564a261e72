"""The registry: everything the network has."""

from __future__ import annotations

from engram import App

from sample_apps.social.commands import (
    Admit,
    Deliver,
    Discard,
    Follow,
    GainFollower,
    GainLike,
    KnowCelebrity,
    Like,
    LoseFollower,
    Protect,
    Publish,
    PublishDraft,
    PublishLater,
    Register,
    Unfollow,
)
from sample_apps.social.events import Followed, Notified, Published
from sample_apps.social.queries import (
    Asking,
    Celebrities,
    Drafts,
    Followers,
    Following,
    Notifications,
    Posts,
    Profile,
    Timeline,
)
from sample_apps.social.read_models import (
    Figures,
    FollowersOf,
    MostFollowed,
    PeopleSearch,
    PostSearch,
    TrendingTags,
)
from sample_apps.social.rules import AllowWord, BannedWords, BanWord, SetCelebrityFrom
from sample_apps.social.tag import ForgetHours, UseTag
from sample_apps.social.user import nobody_was_notified, nobody_was_protected

app = App(
    "social",
    version=1,
    commands=[
        Register, Protect, Admit, Follow, Unfollow, Publish, PublishLater, Discard, Like,  # of users
        GainFollower, LoseFollower, GainLike, Deliver, KnowCelebrity, PublishDraft,  # of entities and timers
        UseTag, ForgetHours,  # of tags
        BanWord, AllowWord, SetCelebrityFrom,  # of operators, for all
    ],
    queries=[Profile, Posts, Drafts, Timeline, Notifications, Celebrities, Following, Followers, Asking, BannedWords],
    events=[Followed, Published, Notified],
    read_models=[FollowersOf, MostFollowed, TrendingTags, Figures, PostSearch, PeopleSearch],
    upcasters=[nobody_was_protected, nobody_was_notified],
)  # fmt: skip
