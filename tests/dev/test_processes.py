"""The keeper: what it started and its folder are gone when whoever asked for them is, however that came."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from engram.dev.processes import Processes
from engram.errors import Unavailable

from tests.dev.left import eventually, running

# Says the keeper's folder and the process ids, and waits to be killed.
HOLDER = """
import json, os, pathlib, signal, sys
from engram.dev.processes import Processes
processes = Processes()
pid = processes.start("sleeper", ["sleep", "600"], processes.folder / "sleeper.log")
if "paused" in sys.argv:
    processes.signal("sleeper", signal.SIGSTOP)
child = os.fork() if "forked" in sys.argv else 0
if "forked" not in sys.argv or child:
    print(json.dumps({"folder": str(processes.folder), "pid": pid, "child": child}), flush=True)
signal.pause()
"""


@pytest.fixture
def processes() -> Iterator[Processes]:
    kept = Processes()
    yield kept
    kept.end()


def keeper_of(pid: int) -> int:
    return psutil.Process(pid).ppid()


def test_a_process_runs_until_it_is_killed(processes: Processes):
    """Its exit code is None while it runs and tells the signal afterwards; the name can be used again."""
    first = processes.start("sleeper", ["sleep", "600"], processes.folder / "log")
    before = processes.code("sleeper")
    processes.signal("sleeper", signal.SIGKILL)
    after = processes.code("sleeper")
    second = processes.start("sleeper", ["sleep", "600"], processes.folder / "log")

    assert before is None
    assert after == -signal.SIGKILL
    assert running([first, second]) == [second]
    assert not psutil.pid_exists(first)  # reaped, not only ended


def test_a_process_can_be_paused_and_resumed_again_and_again(processes: Processes):
    """It stands still when the signal is said to be sent, each time; one that has ended is not waited for."""
    pid = processes.start("busy", ["sh", "-c", "while :; do :; done"], processes.folder / "log")
    paused = []
    for _ in range(20):
        processes.signal("busy", signal.SIGSTOP)
        paused.append(psutil.Process(pid).status())
        processes.signal("busy", signal.SIGCONT)
    resumed = eventually(lambda: psutil.Process(pid).status() == psutil.STATUS_RUNNING)
    processes.signal("busy", signal.SIGKILL)
    processes.signal("busy", signal.SIGSTOP)

    assert paused == [psutil.STATUS_STOPPED] * 20
    assert resumed


def test_what_a_process_says_is_in_its_file(processes: Processes):
    """Both outputs are there, and the exit code tells that it ended."""
    output = processes.folder / "log"
    processes.start("speaker", ["sh", "-c", "echo out; echo err >&2; exit 7"], output)

    assert eventually(lambda: processes.code("speaker") == 7)
    assert output.read_text() == "out\nerr\n"


def test_a_process_that_ends_by_itself_does_not_stay_a_zombie(processes: Processes):
    """The keeper takes note of ends that nobody asks about."""
    pid = processes.start("brief", ["true"], processes.folder / "log")

    assert eventually(lambda: not psutil.pid_exists(pid))


def test_the_end_leaves_nothing(processes: Processes):
    """Processes, keeper and folder are gone when `end` returns; a second `end` does nothing."""
    pid = processes.start("sleeper", ["sleep", "600"], processes.folder / "log")
    keeper = keeper_of(pid)
    processes.end()
    processes.end()

    assert not psutil.pid_exists(pid)
    assert not psutil.pid_exists(keeper)
    assert not processes.folder.exists()
    with pytest.raises(Unavailable, match="were stopped"):
        processes.code("sleeper")


@pytest.mark.parametrize("how", ["plain", "paused", "forked"])
def test_a_killed_holder_leaves_nothing(how: str):
    """SIGKILL of the process that asked is enough, with a paused process too, and though a forked child of it lives."""
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, how], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    told = json.loads(holder.stdout.readline())
    keeper = keeper_of(told["pid"])
    before = running([told["pid"], keeper])
    holder.kill()
    holder.wait()
    gone = eventually(lambda: not running([told["pid"], keeper]) and not Path(told["folder"]).exists())
    child_lives = bool(told["child"]) and running([told["child"]]) == [told["child"]]
    if told["child"]:
        os.kill(told["child"], signal.SIGKILL)
    holder.stdout.close()

    assert before == [told["pid"], keeper]
    assert gone
    assert child_lives == (how == "forked")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_keeper_that_is_told_to_end_leaves_nothing(processes: Processes, number: signal.Signals):
    """A signal to the keeper itself ends all, and whoever asks next is told so."""
    pid = processes.start("sleeper", ["sleep", "600"], processes.folder / "log")
    os.kill(keeper_of(pid), number)

    assert eventually(lambda: not running([pid]) and not processes.folder.exists())
    with pytest.raises(Unavailable, match="keeper of the brokers ended"):
        processes.code("sleeper")


def test_what_is_left_of_a_keeper_that_has_ended_can_be_ended(processes: Processes):
    """Also when it was asked for something that it did not take any more."""
    pid = processes.start("sleeper", ["sleep", "600"], processes.folder / "log")
    keeper = keeper_of(pid)
    os.kill(keeper, signal.SIGTERM)
    assert eventually(lambda: psutil.Process(keeper).status() == psutil.STATUS_ZOMBIE)
    with pytest.raises(Unavailable, match="keeper of the brokers ended"):
        processes.code("sleeper")
    processes.end()
    processes.end()

    assert running([pid, keeper]) == []
    assert not processes.folder.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems cannot tie a process to the one that started it")
def test_a_killed_keeper_takes_its_processes_along(processes: Processes):
    """After SIGKILL of the keeper its processes are gone too, and the next keeper removes the folder."""
    pid = processes.start("sleeper", ["sleep", "600"], processes.folder / "log")
    os.kill(keeper_of(pid), signal.SIGKILL)
    gone = eventually(lambda: not running([pid]))
    left = processes.folder.exists()
    Processes().end()

    assert gone
    assert left
    assert not processes.folder.exists()


def test_the_folder_of_a_living_keeper_is_left_alone(processes: Processes):
    """A keeper that sweeps does not touch what another one holds."""
    Processes().end()

    assert processes.folder.is_dir()


def test_ctrl_c_does_not_reach_the_keeper(processes: Processes):
    """Keeper and processes are in a session of their own."""
    pid = processes.start("sleeper", ["sleep", "600"], processes.folder / "log")

    assert os.getsid(pid) == os.getsid(keeper_of(pid)) == keeper_of(pid) != os.getsid(0)
