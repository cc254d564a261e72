"""Histories of real runs: what clients sent and were told, recorded, and checked afterwards.

    recorder = Recorder("client-1", Path("client-1.jsonl"))
    async with RecordingClient(url, app, recorder) as client:
        await client.send("ada", Follow(whom="bob"))
    verdict = check(read_history(Path("client-1.jsonl")), app, logged=commands_in(log, app), model=Network)
    verdict.raise_if_wrong()

See `docs/how-to/test-your-app.md`.
"""

from engram.testing.history.checker import Anomaly, Verdict, check
from engram.testing.history.logged import Logged, commands_in
from engram.testing.history.operation import Operation, read_history
from engram.testing.history.recorder import Recorder, RecordingClient

__all__ = [
    "Anomaly",
    "Logged",
    "Operation",
    "Recorder",
    "RecordingClient",
    "Verdict",
    "check",
    "commands_in",
    "read_history",
]
