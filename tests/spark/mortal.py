"""An app whose handlers can be held up, or kill their process, by files in a folder: never the same state for it."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass, field
from pathlib import Path

from engram import App, Command, Context, Entity, Event


@dataclass(slots=True, kw_only=True)
class Pot(Entity, name="pot"):
    coins: list[int] = field(default_factory=list)
    thanks: int = 0


class Gave(Event, name="gave"):
    coin: int


class Thank(Command[Pot, None], name="thank"):
    def handle(self, pot: Pot, ctx: Context) -> None:
        pot.thanks += 1


class Give(Command[Pot, int], name="give"):
    """Tells the next pot. With a folder it looks there first: while there is a file `hold`, it waits; where there is
    one `kill`, it takes that away and dies."""

    coin: int
    to: str
    folder: str = ""

    def handle(self, pot: Pot, ctx: Context) -> int:
        if self.folder:
            _obey(Path(self.folder))
        pot.coins.append(self.coin)
        ctx.send(self.to, Thank())
        ctx.emit(Gave(coin=self.coin))
        return len(pot.coins)


def _obey(folder: Path) -> None:
    if (folder / "kill").exists():
        (folder / "kill").unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    while (folder / "hold").exists():
        threading.Event().wait(0.05)


app = App("mortal", commands=[Give, Thank], events=[Gave])
newer = App("mortal", version=2, commands=[Give, Thank], events=[Gave])
