"""The app that is simulated most: money that moves between accounts, by every means that Engram has.

Version 2 has another shape, and other handlers: old records under new code would come to something else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random
from typing import Any

from engram import (
    App,
    Broadcast,
    Command,
    Context,
    Entity,
    Event,
    Json,
    Lookup,
    Part,
    Query,
    Ranking,
    Rejected,
    Shared,
    Tally,
    upcaster,
)
from engram.model.entity import EVERYWHERE
from engram.testing.simulator.state import State
from engram.testing.simulator.subject import Subject

KEYS = ["ada", "bob", "cleo", "dora"]


@dataclass(slots=True, kw_only=True)
class Entry(Part):
    by: str
    amount: int


@dataclass(slots=True, kw_only=True)
class OldAccount(Entity, name="account"):
    balance: int = 0
    given: int = 0  # by the world outside
    entries: list[Entry] = field(default_factory=list)
    friends: dict[str, int] = field(default_factory=dict)
    timers: list[str] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Account(Entity, name="account", version=2):
    balance: int = 0
    given: int = 0
    entries: list[Entry] = field(default_factory=list)
    friends: dict[str, int] = field(default_factory=dict)
    timers: list[str] = field(default_factory=list)
    currency: str = "EUR"


@dataclass(slots=True, kw_only=True)
class Fees(Shared, name="fees"):
    transfer: int = 0
    changes: int = 0


@upcaster(Account, from_version=1)
def all_were_in_euros(old: Json) -> Json:
    return {**old, "currency": "EUR"}


class Moved(Event, name="moved"):
    whom: str
    amount: int


def bank(of: Any, version: int) -> App:  # noqa: C901 - a function around classes
    """The app in one of its versions, with accounts of a type."""

    class Deposit(Command[of, int], name="deposit"):
        amount: int

        def handle(self, account: Any, ctx: Context) -> int:
            amount = self.amount + (version == 1)  # there was a bonus then
            account.balance += amount
            account.given += amount
            account.entries.append(Entry(by=ctx.new_id(), amount=amount))
            return account.balance

    class Transfer(Command[of, int], name="transfer"):
        """To several at once; a fee goes to the bank."""

        to: list[str]
        amount: int

        def handle(self, account: Any, ctx: Context) -> int:
            fee = ctx.shared(Fees).transfer
            for whom in self.to:
                account.balance -= self.amount
                account.friends[whom] = account.friends.get(whom, 0) + 1
                ctx.send(whom, Receive(by=account.key, amount=self.amount - fee))
                ctx.emit(Moved(whom=whom, amount=self.amount))
            if fee:
                ctx.send("bank", Receive(by=account.key, amount=fee * len(self.to)))
            if account.balance < -100:
                raise Rejected("no_money", f"{account.key} has not so much.")
            return account.balance

    class Receive(Command[of, None], name="receive"):
        by: str
        amount: int

        def handle(self, account: Any, ctx: Context) -> None:
            account.balance += self.amount
            account.entries.append(Entry(by=self.by, amount=self.amount))
            del account.entries[:-5]
            if self.amount == 7:  # some comes back
                account.balance -= 1
                ctx.send(self.by, Receive(by=account.key, amount=1))

    class Later(Command[of, str], name="later"):
        """A transfer that waits, or is taken back."""

        to: str
        milliseconds: int

        def handle(self, account: Any, ctx: Context) -> str:
            if self.milliseconds < 0 and account.timers:
                ctx.cancel(account.timers.pop())
                return "cancelled"
            handle = ctx.schedule(timedelta(milliseconds=self.milliseconds), Transfer(to=[self.to], amount=2))
            account.timers.append(handle)
            return handle

    class Break(Command[of, None], name="break"):
        """Changes everything, and fails: nothing may be left of it."""

        rejects: bool

        def handle(self, account: Any, ctx: Context) -> None:
            account.balance += 1000
            account.entries.append(Entry(by="nobody", amount=1000))
            if account.entries[:-1]:
                account.entries[0].amount = 0
            account.friends["nobody"] = 1
            ctx.send("bob", Receive(by="nobody", amount=1000))
            ctx.emit(Moved(whom="nobody", amount=1000))
            ctx.schedule(timedelta(milliseconds=1), Deposit(amount=1000))
            if self.rejects:
                raise Rejected("broken", "It is broken.")
            raise RuntimeError("it is broken")

    class SetFee(Broadcast[Fees, int], name="set_fee"):
        transfer: int

        def handle(self, fees: Fees, ctx: Context) -> int:
            if self.transfer < 0:
                raise Rejected("negative", "A fee is not negative.")
            fees.transfer = self.transfer
            fees.changes += 1
            return fees.changes

    class Balance(Query[of, int], name="balance"):
        def answer(self, account: Any) -> int:
            return account.balance

    class FriendsOf(Lookup[of, str], name="friends_of"):
        def rows(self, account: Any) -> Iterator[tuple[str, str]]:
            for friend in account.friends:
                yield friend, account.key

    class Richest(Ranking[of, str], name="richest"):
        def rows(self, account: Any) -> Iterator[tuple[str, int, str]]:
            yield "ada", account.balance, account.key

    class Entries(Tally[of], name="entries"):
        def rows(self, account: Any) -> Iterator[tuple[str, int]]:
            for entry in account.entries:
                yield entry.by, entry.amount

    return App(
        "bank",
        version=version,
        commands=[Deposit, Transfer, Receive, Later, Break, SetFee],
        queries=[Balance],
        events=[Moved],
        read_models=[FriendsOf, Richest, Entries],
        upcasters=[all_were_in_euros] if of is Account else [],
    )


old = bank(OldAccount, 1)
app = bank(Account, 2)


def some_commands(count: int) -> list[tuple[str, Command[Any, Any]]]:
    """Of version 1, as clients go on to send them; the same every time."""
    random = Random(1)
    made: list[tuple[str, Command[Any, Any]]] = []
    for _ in range(count):
        fields: dict[str, dict[str, Any]] = {
            "deposit": {"amount": random.randint(1, 50)},
            "transfer": {"to": random.choices(KEYS, k=random.randint(1, 3)), "amount": random.choice([1, 5, 7, 80])},
            "later": {"to": random.choice(KEYS), "milliseconds": random.choice([-1, 0, 1, 500, 2000, 10_000_000])},
            "break": {"rejects": random.random() < 0.5},
            "set_fee": {"transfer": random.randint(-1, 3)},
        }
        [name] = random.choices(list(fields), [3, 5, 3, 1, 2])
        key = EVERYWHERE if name == "set_fee" else random.choice(KEYS)
        made.append((key, old.commands[name](**fields[name])))
    return made


def no_money_is_lost(state: State) -> None:
    """What there is, is what was given, once nothing is on its way."""
    accounts = [*state.all(OldAccount).values(), *state.all(Account).values()]
    total, given = sum(account.balance for account in accounts), sum(account.given for account in accounts)
    assert total == given, f"{total} is there, and {given} was given"


subject = Subject(
    apps=[old, app],
    commands=some_commands(200),
    invariants=[no_money_is_lost],
    reference="tests.simulator.bank:subject",
)
