"""Events as a client receives them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from engram.codec.codec import Codec
from engram.model.event import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class EventReceived:
    """An event and where it comes from. `cursor` is where to go on after it: keep it with what you made of the event.

    `id` is its own for ever: doubles, if you ever go back, have the same. `cause` is the position of the command that
    emitted it, `root` of the one that began the chain, `key` the entity's.
    """

    event: Event
    id: str
    key: str
    time: datetime
    cause: str
    root: str | None
    cursor: str


def received(codec: Codec, about: dict[str, Any]) -> EventReceived:
    return EventReceived(
        event=codec.decode_event(about["name"], about["version"], json.dumps(about["body"]).encode()),
        id=about["id"],
        key=about["key"],
        time=datetime.fromisoformat(about["time"]),
        cause=about["cause"],
        root=about.get("root"),
        cursor=about["cursor"],
    )
