"""The scenario kit: what it says of good apps, and that it finds bad ones."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta

import pytest
from engram import App, Command, Context, Entity, Event, Misuse, Query, Rejected
from engram.testing import scenario
from pydantic import Field, field_serializer

COUNTER = itertools.count()
ELSEWHERE: list[Account] = []
RATE = {"percent": 1}


@dataclass(frozen=True, slots=True)
class Stamp:
    text: str


@dataclass(slots=True, kw_only=True)
class Account(Entity, name="account"):
    balance: int = 0
    entries: list[str] = field(default_factory=list)
    opened: datetime | None = None
    weight: float = 0.0
    stamp: Stamp | None = None
    note: str | date = ""


class Deposited(Event, name="deposited"):
    account: str
    amount: int


class Odd(Event, name="odd"):
    kept: int
    lost: int = Field(default=0, exclude=True)


class Deposit(Command[Account, int], name="deposit"):
    amount: int

    def handle(self, account: Account, ctx: Context) -> int:
        if self.amount <= 0:
            raise Rejected("not_positive", "Deposit something.")
        if account.opened is None:
            account.opened = ctx.now
        account.balance += self.amount
        account.entries.append(f"+{self.amount}")
        ctx.emit(Deposited(account=account.key, amount=self.amount))
        return account.balance


class Transfer(Command[Account, None], name="transfer"):
    to: str
    amount: int

    def handle(self, account: Account, ctx: Context) -> None:
        account.balance -= self.amount
        ctx.send(self.to, Deposit(amount=self.amount))
        if account.balance < 0:
            raise Rejected("overdrawn")


class Break(Command[Account, None], name="break"):
    """Changes much, and then fails."""

    def handle(self, account: Account, ctx: Context) -> None:
        account.balance = -1
        account.entries.append("broken")
        ctx.emit(Deposited(account=account.key, amount=0))
        raise KeyError("no such thing")


class BreakAnother(Command[Account, None], name="break_another"):
    to: str

    def handle(self, account: Account, ctx: Context) -> None:
        ctx.send(self.to, Break())


class PingPong(Command[Account, None], name="ping_pong"):
    to: str

    def handle(self, account: Account, ctx: Context) -> None:
        ctx.send(self.to, PingPong(to=account.key))


class Weigh(Command[Account, None], name="weigh"):
    weight: float

    def handle(self, account: Account, ctx: Context) -> None:
        account.weight = self.weight


# Apps that are wrong in ways that only running them shows.


class WrongType(Command[Account, None], name="wrong_type"):
    def handle(self, account: Account, ctx: Context) -> None:
        account.balance = "ten"  # type: ignore[assignment]


class NearlyRightType(Command[Account, None], name="nearly_right_type"):
    def handle(self, account: Account, ctx: Context) -> None:
        account.note = date(2024, 1, 1)


class WrongReply(Command[Account, int], name="wrong_reply"):
    def handle(self, account: Account, ctx: Context) -> int:
        return "ten"  # type: ignore[return-value]


class CountsElsewhere(Command[Account, None], name="counts_elsewhere"):
    """By a counter of the module, which no guard sees."""

    def handle(self, account: Account, ctx: Context) -> None:
        account.entries.append(str(next(COUNTER)))


class CountsInReply(Command[Account, int], name="counts_in_reply"):
    def handle(self, account: Account, ctx: Context) -> int:
        return next(COUNTER)


class CountsInEffects(Command[Account, None], name="counts_in_effects"):
    def handle(self, account: Account, ctx: Context) -> None:
        ctx.emit(Deposited(account=account.key, amount=next(COUNTER)))


class RejectsAtWhim(Command[Account, None], name="rejects_at_whim"):
    def handle(self, account: Account, ctx: Context) -> None:
        if next(COUNTER) % 2:
            raise Rejected("at_whim")


class Keep(Command[Account, None], name="keep"):
    """Keeps its account in a list of the module, where the next command finds it."""

    def handle(self, account: Account, ctx: Context) -> None:
        ELSEWHERE.append(account)


class ReachElsewhere(Command[Account, None], name="reach_elsewhere"):
    def handle(self, account: Account, ctx: Context) -> None:
        ELSEWHERE[0].balance += 1


class ForgesAStamp(Command[Account, None], name="forges_a_stamp"):
    """Puts a frozen value there, or writes into the one that is there and refuses."""

    def handle(self, account: Account, ctx: Context) -> None:
        if account.stamp is None:
            account.stamp = Stamp("true")
        else:
            object.__setattr__(account.stamp, "text", "forged")
            raise Rejected("forged")


class UsesRate(Command[Account, None], name="uses_rate"):
    def handle(self, account: Account, ctx: Context) -> None:
        account.balance += RATE["percent"]


class HidesAField(Command[Account, None], name="hides_a_field"):
    shown: int
    hidden: int = Field(default=0, exclude=True)

    def handle(self, account: Account, ctx: Context) -> None: ...


class SendsHidden(Command[Account, None], name="sends_hidden"):
    def handle(self, account: Account, ctx: Context) -> None:
        ctx.send("other", Shouts(text="hello"))


class Shouts(Command[Account, None], name="shouts"):
    text: str

    def handle(self, account: Account, ctx: Context) -> None: ...

    @field_serializer("text")
    def louder(self, text: str) -> str:
        return f"{text}!"


class EmitsOdd(Command[Account, None], name="emits_odd"):
    def handle(self, account: Account, ctx: Context) -> None:
        ctx.emit(Odd(kept=1, lost=2))


class Balance(Query[Account, int], name="balance"):
    plus: int = 0

    def answer(self, account: Account) -> int:
        if account.opened is None:
            raise Rejected("no_account")
        return account.balance + self.plus


class WrongAnswer(Query[Account, int], name="wrong_answer"):
    def answer(self, account: Account) -> int:
        return "ten"  # type: ignore[return-value]


class ChangingQuery(Query[Account, None], name="changing_query"):
    def answer(self, account: Account) -> None:
        account.balance += 1


class Unlisted(Command[Account, None], name="unlisted"):
    def handle(self, account: Account, ctx: Context) -> None: ...


@dataclass(slots=True, kw_only=True)
class Stranger(Entity, name="stranger"): ...


app = App(
    "accounts",
    commands=[
        Deposit, Transfer, Break, BreakAnother, PingPong, Weigh, WrongType, NearlyRightType, WrongReply,
        CountsElsewhere, CountsInReply, CountsInEffects, RejectsAtWhim, Keep, ReachElsewhere, ForgesAStamp, UsesRate,
        HidesAField, SendsHidden, Shouts, EmitsOdd,
    ],
    queries=[Balance, WrongAnswer, ChangingQuery],
    events=[Deposited, Odd],
)  # fmt: skip


@pytest.fixture
def s():
    return scenario(app)


# What an app's author says


def test_given_returns_the_reply(s):
    """`given` handles a command and returns its reply."""
    assert s.given("ada", Deposit(amount=5)) == 5
    assert s.given("ada", Deposit(amount=2)) == 7


def test_given_must_succeed(s):
    """A `given` that is rejected fails the test, and the message says why."""
    with pytest.raises(
        AssertionError,
        match=r"Deposit\(amount=-1\) for 'ada' was rejected \(not_positive: Deposit something.\); expected a reply",
    ):
        s.given("ada", Deposit(amount=-1))


def test_replies_compares_the_reply(s):
    """`replies` passes for the reply that came, and fails for another with both in the message."""
    then = s.when("ada", Deposit(amount=5)).replies(5)
    with pytest.raises(AssertionError, match=r"for 'ada' replied 5; expected the reply 6"):
        then.replies(6)
    assert then.reply == 5


def test_rejected_compares_the_code(s):
    """`rejected` passes for the code that came, and fails for another code and for a reply."""
    then = s.when("ada", Deposit(amount=0)).rejected("not_positive")
    with pytest.raises(AssertionError, match="expected the rejection 'overdrawn'"):
        then.rejected("overdrawn")
    with pytest.raises(AssertionError, match="replied 1; expected the rejection"):
        s.when("ada", Deposit(amount=1)).rejected("not_positive")


def test_quarantined_compares_the_error(s):
    """`quarantined` passes for the exception that was raised, and fails for another and for a reply."""
    then = s.when("ada", Break()).quarantined(KeyError)
    with pytest.raises(AssertionError, match=r"was quarantined \(KeyError: 'no such thing'\).*ValueError") as failed:
        then.quarantined(ValueError)
    assert isinstance(failed.value.__cause__, KeyError)
    with pytest.raises(AssertionError, match="replied 1; expected a quarantine by KeyError"):
        s.when("ada", Deposit(amount=1)).quarantined(KeyError)


def test_a_rejection_is_not_a_quarantine(s):
    """`quarantined` is about mistakes: a rejection is none, even asked for as such."""
    with pytest.raises(AssertionError, match="expected a quarantine by Rejected"):
        s.when("ada", Deposit(amount=0)).quarantined(Rejected)


def test_handled_takes_replies_and_rejections(s):
    """`handled` passes for a reply and for a rejection, and fails for a quarantine."""
    s.when("ada", Deposit(amount=1)).handled()
    s.when("ada", Deposit(amount=0)).handled()
    with pytest.raises(AssertionError, match="expected a reply or a rejection"):
        s.when("ada", Break()).handled()


@pytest.mark.parametrize(
    "step",
    [
        lambda s: s.given("ada", Deposit(amount=1)),
        lambda s: s.when("bob", Deposit(amount=1)),
        lambda s: s.ask("ada", Balance()),
        lambda s: s.state("ada", Account),
        lambda s: s.entities(Account),
        lambda s: s.check(),
    ],
)
def test_a_quarantine_that_nobody_expected_fails_the_next_step(s, step):
    """A `when` without a word about its outcome does not hide a mistake in a handler."""
    s.given("ada", Deposit(amount=1))
    s.when("ada", Break())
    with pytest.raises(AssertionError, match=r"Break\(\) for 'ada' was quarantined .*; expected no quarantine"):
        step(s)


def test_emits_compares_all_events(s):
    """`emits` passes for exactly the events of the command, and fails otherwise with both lists."""
    then = s.when("ada", Deposit(amount=5)).emits(Deposited(account="ada", amount=5))
    with pytest.raises(AssertionError, match=r"emitted Deposited\(account='ada', amount=5\); expected nothing"):
        then.emits()
    s.when("ada", Deposit(amount=0)).emits()


def test_sends_finds_a_message_by_key_and_content(s):
    """`sends` passes for a message that was sent, and fails for another key or content."""
    s.given("ada", Deposit(amount=5))
    then = s.when("ada", Transfer(to="bob", amount=2)).sends("bob", Deposit(amount=2))
    assert then.sent == [("bob", Deposit(amount=2))]
    with pytest.raises(AssertionError, match=r"sent Deposit\(amount=2\) to 'bob'; expected Deposit\(amount=2\) to 'c'"):
        then.sends("c", Deposit(amount=2))
    with pytest.raises(AssertionError, match="expected nothing"):
        then.sends_nothing()
    s.when("ada", Transfer(to="bob", amount=99)).rejected("overdrawn").sends_nothing().emits()


def test_messages_are_delivered_before_when_returns(s):
    """What was sent has been handled, whichever partition it is in, when `when` returns."""
    s.given("ada", Deposit(amount=5))
    for key in ("bob", "cleo", "dee", "eve", "ada"):
        s.when("ada", Transfer(to=key, amount=1)).replies(None)
    assert {key: account.balance for key, account in s.entities(Account).items()} == {
        "ada": 1, "bob": 1, "cleo": 1, "dee": 1, "eve": 1
    }  # fmt: skip


def test_state_is_a_copy(s):
    """A test may do what it likes with the state it is given: the app's own is another."""
    s.given("ada", Deposit(amount=5))
    s.state("ada", Account).entries.append("forged")
    assert s.state("ada", Account) == Account(
        key="ada", balance=5, entries=["+5"], opened=datetime(2024, 1, 1, tzinfo=UTC)
    )


def test_state_of_nobody_is_an_error(s):
    """An entity that no command has brought into being is not there, not even after a rejection."""
    s.given("bob", Deposit(amount=1))
    s.when("ada", Deposit(amount=0)).rejected("not_positive")
    with pytest.raises(AssertionError, match=r"There is no Account 'ada'; there are: bob\."):
        s.state("ada", Account)


def test_ask_gives_the_answer(s):
    """`ask` answers from live state, and raises the query's own rejection."""
    s.given("ada", Deposit(amount=5))
    assert s.ask("ada", Balance(plus=1)) == 6
    with pytest.raises(Rejected, match="no_account"):
        s.ask("bob", Balance())


def test_time_is_the_tests(s):
    """`ctx.now` is what the test says, stands still in between, and never goes back."""
    s.given("ada", Deposit(amount=1))
    s.pass_time(timedelta(days=1)).given("bob", Deposit(amount=1))
    s.at(datetime(2030, 5, 5, 12, tzinfo=UTC)).given("cleo", Deposit(amount=1))
    assert [account.opened for account in s.entities(Account).values()] == [
        datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 2, tzinfo=UTC), datetime(2030, 5, 5, 12, tzinfo=UTC)
    ]  # fmt: skip
    assert s.now == datetime(2030, 5, 5, 12, tzinfo=UTC)
    with pytest.raises(Misuse, match="Time does not go back"):
        s.at(datetime(2029, 1, 1, tzinfo=UTC))
    with pytest.raises(Misuse, match="no time zone"):
        s.at(datetime(2031, 1, 1))  # noqa: DTZ001


def test_what_is_not_the_apps_is_refused(s):
    """Commands, queries and entities that the app does not list, and keys that are none, are `Misuse`."""
    with pytest.raises(Misuse, match="Unlisted is no command of app accounts"):
        s.when("ada", Unlisted())
    with pytest.raises(Misuse, match="Stranger is no entity of app accounts"):
        s.entities(Stranger)
    with pytest.raises(Misuse, match="The key is empty"):
        s.when("", Deposit(amount=1))


def test_a_scenario_runs_on_any_number_of_partitions():
    """The same story comes to the same state on one partition and on many."""
    states = []
    for partitions in (1, 2, 16):
        s = scenario(app, partitions=partitions)
        s.given("ada", Deposit(amount=5))
        s.given("ada", Transfer(to="bob", amount=2))
        s.check()
        states.append(s.entities(Account))
    assert states[0] == states[1] == states[2]


def test_not_a_number_is_no_difference(s):
    """NaN, which is not equal to itself, is a value like any other."""
    s.given("ada", Weigh(weight=float("nan")))
    s.check()
    assert math.isnan(s.state("ada", Account).weight)


# What a scenario finds by itself


def test_a_value_of_the_wrong_type_in_the_state_is_found(s):
    """A handler that stores a value of another type than declared would make snapshots unreadable."""
    with pytest.raises(
        AssertionError, match=r"After WrongType\(\) for 'ada', Account 'ada' cannot be encoded: (?s:.*)int"
    ):
        s.when("ada", WrongType())


def test_a_value_of_nearly_the_right_type_is_found(s):
    """A value that is encoded, but comes back as another, is found too."""
    with pytest.raises(AssertionError, match=r"does not come back from a snapshot as it was: .*note=datetime"):
        s.when("ada", NearlyRightType())


def test_a_reply_of_the_wrong_type_is_a_quarantine(s):
    """A reply that is not of its declared type is a mistake of the handler, as in production."""
    s.when("ada", WrongReply()).quarantined(ValueError)


def test_a_state_that_differs_on_replay_is_found(s):
    """A handler that asks anything but ctx for ids or time does not come to the same state again."""
    with pytest.raises(AssertionError, match=r"is not deterministic\. .*account 'ada' is .* instead of .*ctx\.new_id"):
        s.when("ada", CountsElsewhere())


def test_a_reply_that_differs_on_replay_is_found(s):
    """A reply is kept for who asks again, so it is state too."""
    with pytest.raises(AssertionError, match=r"is not deterministic\. .*the outcome is"):
        s.when("ada", CountsInReply())


def test_effects_that_differ_on_replay_are_found(s):
    """What is sent and emitted must be the same again."""
    with pytest.raises(AssertionError, match="it sends or emits something else"):
        s.when("ada", CountsInEffects())


def test_a_rejection_at_whim_is_found(s):
    """A handler that now refuses and now does not depends on something outside."""
    with pytest.raises(AssertionError, match="is not deterministic"):
        s.when("ada", RejectsAtWhim())


def test_a_change_of_another_entity_is_found():
    """A handler changes its own entity; to reach another it sends."""
    ELSEWHERE.clear()
    s = scenario(app, partitions=1)
    s.given("ada", Keep())
    with pytest.raises(AssertionError, match="is not for it, and yet account 'ada' has changed"):
        s.when("bob", ReachElsewhere())


def test_a_rejection_that_changed_something_is_found(s):
    """A refusal leaves no trace; a handler that gets round the image to leave one is found."""
    s.given("ada", ForgesAStamp())
    with pytest.raises(
        AssertionError, match=r"was refused, and yet account 'ada' has changed: .*true.* became .*forged"
    ):
        s.when("ada", ForgesAStamp())


def test_a_refusal_leaves_the_state_as_it_was(s):
    """After rejections and quarantines the state is as before, and the check at the end agrees."""
    s.given("ada", Deposit(amount=5))
    before = s.state("ada", Account)
    s.when("ada", Transfer(to="bob", amount=9)).rejected("overdrawn")
    s.when("ada", Break()).quarantined(KeyError).emits()
    assert s.state("ada", Account) == before
    s.check()


def test_a_change_around_the_handlers_is_found_by_check(s):
    """Handlers that use a variable of their module do not replay when it has changed."""
    s.given("ada", UsesRate())
    s.check()
    RATE["percent"] += 1
    with pytest.raises(AssertionError, match="replayed from zero, is not what it was"):
        s.check()


def test_a_command_that_the_log_would_change_is_found(s):
    """A field that is not encoded would be lost between the client and the handler."""
    with pytest.raises(AssertionError, match=r"hidden=2\) does not come back from the log as it was"):
        s.when("ada", HidesAField(shown=1, hidden=2))


def test_a_message_that_the_log_would_change_is_found(s):
    """So would a field of a message."""
    with pytest.raises(AssertionError, match=r"Shouts\(.*\), sent by SendsHidden\(\) for 'ada', does not come back"):
        s.when("ada", SendsHidden())


def test_an_event_that_would_change_on_its_way_is_found(s):
    """So would a field of an event."""
    with pytest.raises(AssertionError, match=r"Odd\(kept=1, lost=2\), emitted by EmitsOdd\(\).* does not come back"):
        s.when("ada", EmitsOdd())


def test_a_message_whose_handler_fails_is_found(s):
    """A quarantine at the receiver has nobody to see it, so it fails the step that led to it."""
    with pytest.raises(
        AssertionError, match=r"BreakAnother\(to='bob'\) for 'ada' led to Break\(\) for 'bob', which was quarantined"
    ) as failed:
        s.when("ada", BreakAnother(to="bob"))
    assert isinstance(failed.value.__cause__, KeyError)


def test_messages_in_a_circle_are_found(s):
    """Messages that never end are an error, not a test that never ends: the depth of their cause gives them away."""
    with pytest.raises(AssertionError, match=r"PingPong\(to='bob'\) for 'ada' led to .* answer each other for ever"):
        s.when("ada", PingPong(to="bob"))


def test_an_answer_of_the_wrong_type_is_found(s):
    """An answer that is not of its declared type fails the test."""
    with pytest.raises(AssertionError, match=r"The answer of WrongAnswer\(\) for 'ada' cannot be encoded"):
        s.ask("ada", WrongAnswer())


def test_a_query_that_changes_its_entity_is_refused(s):
    """Queries only read."""
    with pytest.raises(Misuse, match="queries only read"):
        s.ask("ada", ChangingQuery())
