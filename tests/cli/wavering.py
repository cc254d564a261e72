"""An app whose handler is not deterministic: it looks into the environment."""

from __future__ import annotations

import os
from dataclasses import dataclass

from engram import App, Command, Context, Entity

WAVER = "ENGRAM_TEST_WAVER"


@dataclass(slots=True, kw_only=True)
class Scale(Entity, name="scale"):
    weight: int = 0


class Weigh(Command[Scale, int], name="weigh"):
    """Adds a weight; from the hundredth on, what the environment says."""

    by: int = 1

    def handle(self, scale: Scale, ctx: Context) -> int:
        scale.weight += self.by if self.by < 100 else int(os.environ.get(WAVER, "100"))
        return scale.weight


app = App("scales", commands=[Weigh])
next_app = App("scales", version=2, commands=[Weigh])
