"""Streams end with the token that began them: whoever reads on must say again who they are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from engram.serving.topic import dropped

_EXPIRED = "The token has expired: come back with a new one, and go on after the last event that you have seen."
# A stream that lasts longer is cut off by other things, and timers of event loops do not reach any further.
_LONGEST_S = 30 * 86_400.0


async def until_expired(
    stream: AsyncGenerator[bytes], seconds: float, expired: Callable[[], None]
) -> AsyncGenerator[bytes]:
    """What the stream says for so many seconds; then one more event, `dropped`, that says why it ends."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + min(seconds, _LONGEST_S)
    async with aclosing(stream) as events:
        while loop.time() < deadline:
            try:
                async with asyncio.timeout_at(deadline):
                    event = await anext(events)
            except StopAsyncIteration:
                return
            except TimeoutError:
                break
            yield event
    expired()
    yield dropped(_EXPIRED)
