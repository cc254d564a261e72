"""A client in a process of its own, that can be killed: `python -m tests.chaos.writer URL NAME HISTORY KEYS`.

Each of its keys gets one number after the other, and is asked for its entries now and then. What it does is in a file
as it does it. It says how many commands were acknowledged, and ends by SIGTERM when nothing is on its way any more.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import suppress
from pathlib import Path

from engram.testing.history import Recorder, RecordingClient

from tests.chaos.ledger import Add, Entries, app

# Longer than any fault: whatever was sent is heard of in the end.
PATIENCE_S = 900.0
_ASK_EVERY = 8
_PAUSE_S = 0.02


async def main(url: str, name: str, history: Path, keys: int) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    recorder = Recorder(name, history)
    acknowledged = 0

    async def write(client: RecordingClient, key: str) -> None:
        nonlocal acknowledged
        number = 0
        while not stop.is_set():
            await client.send(key, Add(number=number))
            number += 1
            acknowledged += 1
            if number % _ASK_EVERY == 0:
                await client.ask(key, Entries())
            await asyncio.sleep(_PAUSE_S)

    async with RecordingClient(url, app, recorder, timeout=20, patience=PATIENCE_S) as client:
        writing = [asyncio.create_task(write(client, f"{name}-{n}")) for n in range(keys)]
        while not stop.is_set():
            sys.stdout.write(f"{acknowledged}\n")
            sys.stdout.flush()
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), 0.25)
        await asyncio.gather(*writing)
        for n in range(keys):
            await client.ask(f"{name}-{n}", Entries())
    recorder.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])))
