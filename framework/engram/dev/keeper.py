"""The keeper: a small process that owns other processes and a temporary folder, and outlives its parent by a moment.

`python -m engram.dev.keeper PARENT` makes the folder, says where it is, and does what the lines on its standard input
ask for (see `engram.dev.processes`). When its parent is gone, however it ended, the keeper kills what it has started,
removes the folder and ends. A keeper that is itself killed takes its processes along (on Linux); its folder is removed
by the next one.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

_PREFIX = "engram-dev-"
_LOCK = "keeper.lock"
# The closing of the pipe tells the parent's death at once, unless a forked child of the parent holds it open too: then
# it is seen by looking who the parent is now, this often.
_LOOK_S = 0.5
_PR_SET_PDEATHSIG = 1


class Keeper:
    """Processes by name, in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._libc = ctypes.CDLL(None) if sys.platform == "linux" else None

    def start(self, name: str, command: list[str], output: str) -> int:
        """Runs a command with its output in a file, emptied before; its process id."""
        with Path(output).open("wb") as file:
            self._processes[name] = subprocess.Popen(  # noqa: S603 - what the parent asks for
                command,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                preexec_fn=self._die_with_keeper,  # noqa: PLW1509 - there is only one thread
            )
        return self._processes[name].pid

    def code(self, name: str) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self._processes[name].poll()

    def signal(self, name: str, number: int) -> None:
        """After SIGKILL the process is gone when this returns, after SIGSTOP it stands still."""
        process = self._processes[name]
        process.send_signal(number)
        if number == signal.SIGKILL:
            process.wait()
        elif number == signal.SIGSTOP and process.returncode is None:
            # Only looks: an exit is left for `poll` to find.
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def reap(self) -> None:
        for process in self._processes.values():
            process.poll()

    def end(self) -> None:
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _die_with_keeper(self) -> None:
        if self._libc is not None:
            self._libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    parent = int(sys.argv[1])
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, _end)
    _sweep()
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    keeper = Keeper(folder)
    try:
        with (folder / _LOCK).open("w") as lock, (folder / "keeper.log").open("w") as log:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # Whoever reads the parent's stderr to its end is not to wait for this process.
            os.dup2(log.fileno(), 2)
            with suppress(BrokenPipeError):
                _say(str(folder))
                _obey(keeper, parent)
    finally:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        keeper.end()


def _obey(keeper: Keeper, parent: int) -> None:
    """One request a line, one answer a line, until the parent is gone or asks for the end."""
    while os.getppid() == parent:
        asked, _, _ = select.select([sys.stdin], [], [], _LOOK_S)
        keeper.reap()
        if not asked:
            continue
        line = sys.stdin.readline()
        if not line:
            return
        request: dict[str, Any] = json.loads(line)
        match request.pop("do"):
            case "start":
                _say(keeper.start(**request))
            case "code":
                _say(keeper.code(**request))
            case "signal":
                keeper.signal(**request)
                _say(None)
            case _:
                return


def _say(answer: str | int | None) -> None:
    print(json.dumps(answer), flush=True)  # noqa: T201 - the parent reads it


def _end(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit


def _sweep() -> None:
    """Removes the folders of keepers that were killed: nobody holds their lock any more."""
    for lock in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{_LOCK}"):
        with suppress(OSError), lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.parent, ignore_errors=True)


if __name__ == "__main__":
    main()
