"""The social network under the simulator, as its author would run it."""

from __future__ import annotations

import pytest
from engram import App, Command, Context, Misuse
from engram.testing import State, simulate

from sample_apps.social import app
from sample_apps.social.commands import Follow, GainFollower, Protect, Publish, Register, Unfollow
from sample_apps.social.events import Followed, Notified
from sample_apps.social.rules import BanWord
from sample_apps.social.user import User, nobody_was_notified, nobody_was_protected

PEOPLE = ["ada", "bob", "cleo"]
COMMANDS = [
    *((key, Register(name=key.title())) for key in PEOPLE),
    *((key, command(whom=whom)) for command in (Follow, Unfollow) for key in PEOPLE for whom in PEOPLE if key != whom),
    *((key, Publish(text=text)) for key in PEOPLE for text in ("hello #world", "a rude word")),
    ("ada", Protect(protected=True)),
    ("*", BanWord(word="rude")),
]


def following_and_followers_agree(state: State) -> None:
    users = state.all(User)
    for user in users.values():
        for whom in user.following:
            assert user.key in users[whom].followers or user.key in users[whom].asking, f"{whom} lacks {user.key}"
        for follower in [*user.followers, *user.asking]:
            assert user.key in users[follower].following, f"{user.key} has {follower}, who does not follow"


def nobody_is_followed(state: State) -> None:
    for user in state.all(User).values():
        assert not user.followers, f"{user.key} has followers"


def test_following_and_followers_agree_whatever_happens():
    """With messages on every way, crashes and restarts, both sides know the same in the end."""
    counts = simulate(app, seeds=range(40), invariants=[following_and_followers_agree], commands=COMMANDS)
    assert counts["seeds"] == 40
    assert counts["crashes in an operation"] > 0


def test_commands_are_made_of_an_apps_types():
    """Without commands of the author's, all types are sent, also those that are not meant for clients; the model knows
    what must come of each."""
    counts = simulate(app, seeds=range(10))
    assert counts["commands acknowledged"] > 10


def test_an_invariant_that_does_not_hold_is_told_with_a_short_program():
    """It says which, why, and how to see it again."""
    with pytest.raises(AssertionError, match="nobody_is_followed does not hold") as told:
        simulate(app, seeds=range(40), invariants=[nobody_is_followed], commands=COMMANDS)

    text = str(told.value)
    assert "from sample_apps.social import app" in text
    assert "invariants=[nobody_is_followed]" in text
    printed: dict[str, object] = {"__name__": "printed"}
    exec(text.partition("\n\n")[2], printed)
    assert len(printed["program"].steps) <= 6


def test_an_app_that_does_not_tell_the_other_side_is_found():
    """Whoever unfollows here stays a follower."""

    class Leave(Command[User, None], name="leave"):
        whom: str

        def handle(self, user: User, ctx: Context) -> None:
            user.following.pop(self.whom, None)

    broken = App(
        "social",
        commands=[Register, Follow, GainFollower, Leave],
        events=[Followed, Notified],
        upcasters=[nobody_was_protected, nobody_was_notified],
    )
    commands = [(key, c) for key, c in COMMANDS if isinstance(c, Register | Follow)]
    with pytest.raises(AssertionError, match="following_and_followers_agree does not hold"):
        simulate(
            broken,
            seeds=range(200),
            invariants=[following_and_followers_agree],
            commands=[*commands, *((key, Leave(whom=whom)) for key in PEOPLE for whom in PEOPLE)],
        )


def test_nothing_to_send_is_refused():
    """It is said at once."""
    with pytest.raises(Misuse, match="nothing to simulate"):
        simulate(app, commands=[])
