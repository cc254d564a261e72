"""The sample apps, by machines that are made out of them."""

from __future__ import annotations

from datetime import datetime

from engram import Command, Query, Rejected
from engram.testing import Scenario, machine
from hypothesis import settings

from sample_apps.impressions import app as impressions
from sample_apps.impressions.commands import Click, Impression
from sample_apps.social import app as social
from sample_apps.social.commands import Follow, Publish, Register, Unfollow
from sample_apps.social.queries import Following
from sample_apps.social.user import User

FEW = settings(max_examples=4, stateful_step_count=15)


class WhoFollowsWhom:
    """The model: lists of names. What comes to others by messages it leaves to the invariant."""

    def __init__(self) -> None:
        self._following: dict[str, list[str]] = {}

    def handle(self, key: str, command: Command, now: datetime) -> object:
        match command:
            case Register():
                if key in self._following:
                    raise Rejected("already_registered")
                self._following[key] = []
            case Follow(whom=whom):
                if key not in self._following:
                    raise Rejected("unknown_user")
                if whom == key or whom in self._following[key]:
                    raise Rejected("self_follow" if whom == key else "already_following")
                self._following[key].append(whom)
            case Unfollow(whom=whom):
                if whom not in self._following.get(key, []):
                    raise Rejected("not_following")
                self._following[key].remove(whom)
            case _:
                return NotImplemented
        return None

    def answer(self, key: str, query: Query) -> object:
        return self._following.get(key, []) if isinstance(query, Following) else NotImplemented


def following_and_followers_agree(s: Scenario) -> None:
    users = s.entities(User)
    following = {(key, whom) for key, user in users.items() for whom in user.following if whom in users}
    assert following == {(who, key) for key, user in users.items() for who in user.followers}


TestSocial = machine(
    social,
    Register,
    Follow,
    Unfollow,
    Publish,
    model=WhoFollowsWhom,
    invariants=[following_and_followers_agree],
).TestCase
TestSocial.settings = FEW

TestImpressions = machine(impressions, Impression, Click).TestCase
TestImpressions.settings = FEW
