"""Machines on a network of their own, as network namespaces: a switch, and a cable from it to each machine."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Self

_NETWORK = 0x40000000  # CLONE_NEWNET
_NET = "10.77.0"


class Network:
    """Named machines with an address each, `address(name)`. Nothing outside can reach them, nor they anything outside.

    Needs Linux, `ip` (iproute2) and the right to make namespaces. `close` removes everything.
    """

    def __init__(self, *names: str) -> None:
        if shutil.which("ip") is None or os.geteuid() != 0:
            raise SystemExit("Network namespaces need Linux, root, and `ip` (Debian: apt-get install iproute2).")
        self._prefix = f"engram-{os.getpid()}"
        self._names = names
        try:
            for name in ("switch", *names):
                _ip("netns", "add", self._space(name))
                self._in(name, "link", "set", "lo", "up")
            self._in("switch", "link", "add", "bridge", "type", "bridge")
            self._in("switch", "link", "set", "bridge", "up")
            for name in names:
                self._connect(name)
        except BaseException:
            self.close()
            raise

    def _connect(self, name: str) -> None:
        space = self._space(name)
        self._in("switch", "link", "add", name, "type", "veth", "peer", "name", "cable", "netns", space)
        self._in("switch", "link", "set", name, "master", "bridge", "up")
        self._in(name, "address", "add", f"{self.address(name)}/24", "dev", "cable")
        self._in(name, "link", "set", "cable", "up")

    def address(self, name: str) -> str:
        return f"{_NET}.{self._names.index(name) + 1}"

    def on(self, name: str) -> list[str]:
        """What to write before a command, so that it runs on a machine."""
        return ["ip", "netns", "exec", self._space(name)]

    def enter(self, name: str) -> None:
        """Moves this thread to a machine, and the threads and processes that it starts from now on."""
        with Path("/run/netns", self._space(name)).open() as space:
            if ctypes.CDLL(None, use_errno=True).setns(space.fileno(), _NETWORK):
                raise OSError(ctypes.get_errno(), f"Machine {name} cannot be entered")

    def unplug(self, name: str) -> None:
        """Takes the cable out: the machine reaches nobody, and nobody is told so."""
        self._in("switch", "link", "set", name, "down")

    def plug(self, name: str) -> None:
        self._in("switch", "link", "set", name, "up")

    def deafen(self, name: str, to: str) -> None:
        """What `to` sends to the machine is lost from now on."""
        self._in(to, "route", "add", "blackhole", f"{self.address(name)}/32")

    def restore(self, name: str, to: str) -> None:
        self._in(to, "route", "del", "blackhole", f"{self.address(name)}/32")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_problem: object) -> None:
        self.close()

    def close(self) -> None:
        for name in ("switch", *self._names):
            with suppress(subprocess.CalledProcessError):
                _ip("netns", "del", self._space(name))

    def _space(self, name: str) -> str:
        return f"{self._prefix}-{name}"

    def _in(self, name: str, *words: str) -> None:
        _ip("-n", self._space(name), *words)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)
