"""Load on a ledger that goes on through whatever happens to the machines below it."""

from __future__ import annotations

import asyncio
import time

from engram import Client
from engram.codec.record import Epoch, Kind
from engram.log.open import open_log
from engram.log.scan import scan

from tests.spark.ledger import Add, Entries, app
from tests.spark.running import START_S

# Between two commands of a writer: JVMs that start share the machine with the load.
_PAUSE_S = 0.05
KEYS = [f"key{n}" for n in range(8)]


class Load:
    """Writers that add one number after the other to a key each, through whatever happens."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.acknowledged: dict[str, list[int]] = {key: [] for key in KEYS}
        self._stop = asyncio.Event()
        self._writing = [asyncio.create_task(self._write(key)) for key in KEYS]

    async def goes_on(self) -> float:
        """The seconds until every writer has had two more replies: the second was sent after now."""
        began = time.monotonic()
        before = {key: len(numbers) for key, numbers in self.acknowledged.items()}
        async with asyncio.timeout(START_S):
            while any(len(numbers) < before[key] + 2 for key, numbers in self.acknowledged.items()):
                assert not any(task.done() for task in self._writing)
                await asyncio.sleep(0.02)
        return time.monotonic() - began

    async def _write(self, key: str) -> None:
        numbers = self.acknowledged[key]
        while not self._stop.is_set():
            count = await self.client.send(key, Add(number=len(numbers)))
            numbers.append(len(numbers))
            assert count == len(numbers)
            await asyncio.sleep(_PAUSE_S)

    async def end(self) -> dict[str, list[int]]:
        """Stops, and returns what is there."""
        self._stop.set()
        await asyncio.gather(*self._writing)
        return {key: await self.client.ask(key, Entries()) for key in KEYS}


def last_owners(url: str) -> set[str]:
    """Who took each partition last, by the log."""
    log = open_log(url, app.name)
    epochs = [
        [Epoch.model_validate_json(record.payload) for record in scan(log, partition) if record.kind is Kind.EPOCH]
        for partition in range(log.partitions)
    ]
    log.close()
    return {of_partition[-1].owner for of_partition in epochs}
