"""An app whose commands lead to others, as far and wide as they are told."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from engram import App, Command, Context, Entity, Query, Rejected


@dataclass(slots=True, kw_only=True)
class Domino(Entity, name="domino"):
    fallen: int = 0


class Fall(Command[Domino, int], name="fall"):
    """Falls onto others, which fall onto the first of `then`, and so on; the reply is how often it has fallen."""

    onto: tuple[str, ...] = ()
    then: tuple[str, ...] = ()

    def handle(self, domino: Domino, ctx: Context) -> int:
        if domino.key in self.onto:
            raise Rejected("onto_itself", "A domino does not fall onto itself.")
        domino.fallen += 1
        for other in self.onto:
            ctx.send(other, Fall(onto=self.then[:1], then=self.then[1:]))
        return domino.fallen


class FallLater(Command[Domino, None], name="fall_later"):
    def handle(self, domino: Domino, ctx: Context) -> None:
        ctx.schedule(timedelta(hours=1), Fall())


class Fallen(Query[Domino, int], name="fallen"):
    def answer(self, domino: Domino) -> int:
        return domino.fallen


app = App("dominoes", commands=[Fall, FallLater], queries=[Fallen])
