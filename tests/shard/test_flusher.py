"""Effects that the log does not take: an end is not held up by them."""

from __future__ import annotations

import pytest
from engram.errors import Unavailable
from engram.image.image import Handled
from engram.model.effects import Message
from engram.shard.flusher import Flusher
from engram.shard.outbox import Outbox
from engram.testing.simulator.workers import SimulatedWorker
from engram.worker import ThreadWorker

from tests.shard.network import FaultyLog


def test_a_flusher_that_was_closed_says_at_once_that_effects_are_left():
    """A clean stop asks twice: when the log has refused the first time, the second must not wait for anybody."""
    log = FaultyLog("social", 1)
    log.full = True
    outbox = Outbox(0, log, lambda: 0)
    flusher = Flusher({0: outbox}, log, clock=lambda: 0, worker=ThreadWorker("effects"))
    message = Message("register", 1, "ada", b"{}", (0, 0, 0))
    outbox.add(Handled("", [], [message], [], {}, {}, None, [], []))
    with pytest.raises(Unavailable, match="could not be appended"):
        flusher.finish()
    flusher.close()

    with pytest.raises(Unavailable, match="could not be appended"):
        flusher.finish()
    assert outbox.pending


def test_a_flusher_that_was_closed_wakes_nobody():
    """The shard's watch is closed after it, and its descriptor may be somebody else's when a slow append is done."""
    woken = []

    class Slow(FaultyLog):
        def append(self, entries, events=()):
            flusher.close()
            return super().append(entries, events)

    log = Slow("social", 1)
    outbox = Outbox(0, log, lambda: 0)
    flusher = Flusher({0: outbox}, log, clock=lambda: 0, worker=SimulatedWorker(), wake=lambda: woken.append(1))
    outbox.add(Handled("", [], [Message("register", 1, "ada", b"{}", (0, 0, 0))], [], {}, {}, None, [], []))
    flusher.turn()
    flusher._worker.work()

    assert (log.end(0), woken) == (1, [])
