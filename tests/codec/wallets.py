"""An app whose values have a history of their own: coins at version 3, notes at version 2, which hold coins."""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import NamedTuple

from engram import App, Command, Context, Entity, Event, Json, Part, Query, Rejected, at_version, upcaster, value
from pydantic import BaseModel


@value(name="coin", version=3)
@dataclass(frozen=True, slots=True)
class Coin:
    amount: int
    unit: str


@value(name="note", version=2)
class Note(BaseModel, frozen=True):
    text: str
    coin: Coin


class Pair(NamedTuple):
    label: str
    coin: Coin


@dataclass(slots=True, kw_only=True)
class Pocket(Part, name="pocket", version=2):
    coins: list[Coin] = field(default_factory=list)
    inner: "dict[str, Pocket]" = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Wallet(Entity, name="wallet", version=2):
    """Version 1 had no lucky coin."""

    owner: str = ""
    pockets: dict[str, Pocket] = field(default_factory=dict)
    notes: list[Note | None] = field(default_factory=list)
    pairs: tuple[Pair, ...] = ()
    lucky: Coin | None = None


class Pay(Command[Wallet, None], name="pay"):
    coin: Coin

    def handle(self, wallet: Wallet, ctx: Context) -> None:
        if self.coin.amount < 0:
            raise ValueError("a coin that owes")
        if self.coin.amount == 0:
            raise Rejected("nothing", "That is no coin.")
        wallet.pockets.setdefault("left", Pocket()).coins.append(self.coin)
        ctx.emit(Paid(coin=self.coin))


class PayLater(Command[Wallet, None], name="pay_later"):
    coin: Coin

    def handle(self, wallet: Wallet, ctx: Context) -> None:
        ctx.schedule(timedelta(hours=1), Pay(coin=self.coin))


class Lend(Command[Wallet, None], name="lend"):
    coin: Coin
    whom: str

    def handle(self, wallet: Wallet, ctx: Context) -> None:
        ctx.send(self.whom, Pay(coin=self.coin))


class Worth(Query[Wallet, int], name="worth"):
    unit: Coin

    def answer(self, wallet: Wallet) -> int:
        return sum(coin.amount for pocket in wallet.pockets.values() for coin in pocket.coins)


class Paid(Event, name="paid"):
    coin: Coin


@upcaster(Coin, from_version=1)
def cents_became_an_amount(old: Json) -> Json:
    old["amount"] = old.pop("cents")
    return old


@upcaster(Coin, from_version=2)
def coins_have_a_unit(old: Json) -> Json:
    return {**old, "unit": "EUR"}


@upcaster(Note, from_version=1)
def body_became_text(old: Json) -> Json:
    return {"text": old["body"], "coin": old["coin"]}


@upcaster(Pocket, from_version=1)
def pockets_may_have_pockets(old: Json) -> Json:
    return {**old, "inner": {}}


@upcaster(Wallet, from_version=1)
def everybody_has_a_lucky_coin(old: Json) -> Json:
    return {**old, "lucky": at_version(2, {"amount": 7})}


UPCASTERS = [
    cents_became_an_amount,
    coins_have_a_unit,
    body_became_text,
    pockets_may_have_pockets,
    everybody_has_a_lucky_coin,
]

app = App("wallets", commands=[Pay, PayLater, Lend], queries=[Worth], events=[Paid], upcasters=UPCASTERS)
