"""How events lie in a topic: what is written into headers is read from them, without a broker."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from engram.log.kafka.form import event_headers, event_of
from engram.model.effects import OutEvent
from engram.model.version import Version


@pytest.mark.parametrize("version", [1, 12, "1 price=2", "3 coin=2 note=7"])
def test_an_event_comes_back_with_its_version(version: Version):
    """A number is a number again, and one that says the versions of values is the same text."""
    event = OutEvent(3, 1042, -10_000, 1, "paid", version, 1_700_000_000_000, "ada", b'{"coin":1}', "3:1040.2")
    found = SimpleNamespace(headers=event_headers(event, "shop"), timestamp=event.time, value=event.body)

    assert event_of(found) == event
