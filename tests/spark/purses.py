"""Two versions of an app for shadows: the new one refuses large payments, and its events have another shape."""

from __future__ import annotations

from dataclasses import dataclass

from engram import App, Command, Context, Entity, Event, Json, Query, Rejected, upcaster

MOST = 100


@dataclass(slots=True, kw_only=True)
class Purse(Entity, name="purse"):
    money: int = 0
    tips: int = 0


class Paid(Event, name="paid"):
    amount: int


class PaidIn(Event, name="paid", version=2):
    amount: int
    currency: str


@upcaster(PaidIn, from_version=1)
def everything_was_in_euros(old: Json) -> Json:
    return {**old, "currency": "EUR"}


class Tip(Command[Purse, None], name="tip"):
    def handle(self, purse: Purse, ctx: Context) -> None:
        purse.tips += 1


class PayOld(Command[Purse, int], name="pay"):
    amount: int

    def handle(self, purse: Purse, ctx: Context) -> int:
        purse.money += self.amount
        ctx.emit(Paid(amount=self.amount))
        ctx.send("waiter", Tip())
        return purse.money


class PayNew(Command[Purse, int], name="pay"):
    amount: int

    def handle(self, purse: Purse, ctx: Context) -> int:
        if self.amount > MOST:
            raise Rejected("too_much", f"{self.amount} is more than {MOST}.")
        purse.money += self.amount
        ctx.emit(PaidIn(amount=self.amount, currency="EUR"))
        ctx.send("waiter", Tip())
        return purse.money


class Money(Query[Purse, int], name="money"):
    def answer(self, purse: Purse) -> int:
        return purse.money


class AtLeast(Query[Purse, bool], name="at_least"):
    """Needs a field, and is not asked by a shadow."""

    money: int

    def answer(self, purse: Purse) -> bool:
        return purse.money >= self.money


class Greet(Command[Purse, None], name="greet"):
    def handle(self, purse: Purse, ctx: Context) -> None:
        """Only the old version has it in one of the tests."""


old = App("purses", version=1, commands=[PayOld, Tip, Greet], queries=[Money, AtLeast], events=[Paid])
new = App(
    "purses",
    version=2,
    commands=[PayNew, Tip, Greet],
    queries=[Money, AtLeast],
    events=[PaidIn],
    upcasters=[everything_was_in_euros],
)
poorer = App(
    "purses",
    version=3,
    commands=[PayNew, Tip],
    queries=[Money, AtLeast],
    events=[PaidIn],
    upcasters=[everything_was_in_euros],
)
