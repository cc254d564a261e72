"""An app whose handlers fail for as long as a test says so, as a bug does until it is fixed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from engram import App, Broadcast, Command, Context, Entity, Query, Rejected, Shared

# Keys of ovens that are out of order, for handlers on other threads of this process.
BROKEN: set[str] = set()
# Prices that were set somewhere: the next partition to hear of one fails.
SET: set[int] = set()


@dataclass(slots=True, kw_only=True)
class Oven(Entity, name="oven"):
    loaves: int = 0


@dataclass(slots=True, kw_only=True)
class Prices(Shared, name="prices"):
    loaf: int = 1


class Bake(Command[Oven, int], name="bake"):
    """Bakes; the reply is how many loaves there are."""

    loaves: int = 1

    def handle(self, oven: Oven, ctx: Context) -> int:
        oven.loaves += self.loaves
        if oven.key in BROKEN:
            raise RuntimeError("the oven is cold")
        if self.loaves > 100:
            raise Rejected("too_many", "They do not fit.")
        return oven.loaves


class BakeLater(Command[Oven, None], name="bake_later"):
    def handle(self, oven: Oven, ctx: Context) -> None:
        ctx.schedule(timedelta(milliseconds=1), Bake())


class Order(Command[Oven, None], name="order"):
    of: str

    def handle(self, oven: Oven, ctx: Context) -> None:
        ctx.send(self.of, Bake())


class Crumble(Command[Oven, None], name="crumble"):
    """Fails with something in its own fields that cannot be written down."""

    crumbs: int = 1

    def handle(self, oven: Oven, ctx: Context) -> None:
        object.__setattr__(self, "crumbs", object())
        raise RuntimeError("all is crumbs")


class SetPrice(Broadcast[Prices, int], name="set_price"):
    """Fails at home below zero; elsewhere when it is to fail everywhere but at home."""

    loaf: int
    only_at_home: bool = False

    def handle(self, prices: Prices, ctx: Context) -> int:
        if self.loaf in SET or (self.loaf < 0 and "prices" in BROKEN):
            raise RuntimeError("nobody can pay that")
        if self.only_at_home:
            SET.add(self.loaf)
        prices.loaf = self.loaf
        return prices.loaf


class Price(Query[Prices, int], name="price"):
    def answer(self, prices: Prices) -> int:
        return prices.loaf


class Loaves(Query[Oven, int], name="loaves"):
    def answer(self, oven: Oven) -> int:
        return oven.loaves


app = App("bakery", commands=[Bake, BakeLater, Order, Crumble, SetPrice], queries=[Loaves, Price])
