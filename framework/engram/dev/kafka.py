"""Real Kafka brokers on loopback, for tests and development."""

from __future__ import annotations

import base64
import random
import signal
import socket
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

from engram.dev.jars import kafka_jars
from engram.dev.metadata import Cluster, ask_cluster
from engram.dev.processes import Processes
from engram.dev.settings import Ports, Security, node_settings, properties
from engram.errors import Misuse, Unavailable
from engram.spark.java import java_version

__all__ = ["Brokers", "Security"]

# One broker is up in 3 s on two free cores; a busy machine may take ten times as long.
_START_S = 90.0
_ASK_S = 2.0
_LOOK_S = 0.05
_LAST_LINES = 12
# Below the ports that systems give to outgoing connections: none of those can take a killed broker's port, and no
# client that connects again and again to the port of a killed broker can meet itself (TCP's simultaneous open).
_PORTS = range(20_000, 32_000)
_JVM = [
    "-Xms128m",
    "-Xmx384m",
    "-XX:+UseSerialGC",
    # The quick compiler alone: a fifth less time to start, and no slower with our load (measured).
    "-XX:TieredStopAtLevel=1",
    "-Djava.net.preferIPv4Stack=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
]


class Brokers:
    """`count` Kafka nodes in KRaft mode, each broker and controller, on 127.0.0.1 with data in a temporary folder.

    They are ready when the constructor returns. `stop`, the end of the `with` block, or the end of this process
    (SIGKILL included) ends them and removes their data. Brokers are named by index, from 0, which is also Kafka's node
    id. Methods may be called from any thread.
    """

    def __init__(
        self,
        count: int = 1,
        *,
        settings: Mapping[str, str] | None = None,
        security: Security | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        """`settings` are added to each node's, and win over ours. `host` is where clients come: on another address than
        loopback everybody who reaches it may read and write all, unless there is `security`.

        Raises `Misuse` when Java is missing or Kafka refuses to start, with its own words; `Unavailable` when Kafka's
        jars cannot be had or it is not ready in time.
        """
        if count < 1:
            raise Misuse(f"{count} brokers cannot be started: the least is 1.")
        self._host = host
        self._java = str(java_version()[0])
        self._classpath = str(kafka_jars() / "*")
        self._processes = Processes()
        self._pids: dict[int, int] = {}
        self._paused: set[int] = set()
        self._held: list[socket.socket] = []
        # Not one that begins with "-": Kafka's tool takes it for an option.
        self._id = "E" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[1:22]
        try:
            self._held = _hold_ports(3 * count)
            ports = iter(held.getsockname()[1] for held in self._held)
            self._ports = [
                Ports(client=c, internal=i, controller=k) for c, i, k in zip(ports, ports, ports, strict=True)
            ]
            self._format(settings or {}, security)
            for i in range(count):
                self.start(i)
            self.wait_ready(_START_S)
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_problem: object) -> None:
        self.stop()

    def __len__(self) -> int:
        return len(self._ports)

    @property
    def bootstrap(self) -> str:
        """The addresses for clients, with commas."""
        return ",".join(f"{self._host}:{ports.client}" for ports in self._ports)

    def url(self, topic: str) -> str:
        """What `engram run --log` takes."""
        return f"kafka://{self.bootstrap}/{topic}"

    @property
    def pids(self) -> dict[int, int]:
        """Process ids by index, of the brokers that were started and not killed by `kill`."""
        return dict(self._pids)

    def kill(self, i: int) -> None:
        """SIGKILL; the process is gone when this returns. The others notice after `broker.session.timeout.ms`."""
        name = self._named(i)
        del self._pids[i]  # first: a broker that is waited for and ends by itself is an error
        self._paused.discard(i)
        self._processes.signal(name, signal.SIGKILL)

    def start(self, i: int) -> None:
        """Starts a broker again that was killed or has ended, with its data and on its port. Does not wait: see
        `wait_ready`."""
        if i in self._pids and self._processes.code(f"broker-{i}") is None:
            raise Misuse(f"Broker {i} runs already: kill it first.")
        command = [self._java, *_JVM, "-cp", self._classpath, "kafka.Kafka", str(self._file(i, "properties"))]
        self._pids[i] = self._processes.start(f"broker-{i}", command, self._file(i, "log"))

    def pause(self, i: int) -> None:
        """SIGSTOP: the broker keeps its connections and answers nothing, from when this returns."""
        self._processes.signal(self._named(i), signal.SIGSTOP)
        self._paused.add(i)

    def resume(self, i: int) -> None:
        """SIGCONT."""
        self._processes.signal(self._named(i), signal.SIGCONT)
        self._paused.discard(i)

    def leader(self, topic: str, partition: int) -> int:
        """The index of the partition's leader, as the first broker that answers knows it: for a moment after a loss
        that can be the old one. Raises `Unavailable` when nobody leads it now, `Misuse` when it does not exist."""
        led = self._any_cluster().partitions.get((topic, partition))
        if led is None:
            raise Misuse(f"The brokers have no partition {partition} of a topic {topic!r}.")
        if led.leader is None:
            raise Unavailable(f"Partition {partition} of {topic} has no leader now.")
        return led.leader

    def wait_ready(self, seconds: float) -> None:
        """Returns when every broker that is neither killed nor paused answers and knows all others of these.

        Raises `Misuse` with Kafka's own words when one has ended by itself, `Unavailable` when the time is over.
        """

        def ready() -> bool:
            clusters = [self._cluster(i) for i in self._awake()]
            return all(cluster is not None and cluster.brokers >= self._awake() for cluster in clusters)

        self._wait(ready, seconds, "are not ready")

    def wait_in_sync(self, seconds: float) -> None:
        """Returns when all brokers are there and agree that every partition has a leader and all its replicas in sync:
        then any one of them may be lost. Raises as `wait_ready` does."""
        everyone = set(range(len(self)))

        def in_sync() -> bool:
            clusters = [self._cluster(i) for i in sorted(self._awake())]
            return self._awake() == everyone and all(
                cluster is not None
                and cluster.brokers == everyone
                and all(p.leader is not None and p.in_sync == p.replicas for p in cluster.partitions.values())
                for cluster in clusters
            )

        self._wait(in_sync, seconds, "are not in sync")

    def stop(self) -> None:
        """Kills the brokers and removes their data; returns when all is gone. May be called again."""
        self._processes.end()
        self._pids.clear()
        self._paused.clear()
        for held in self._held:
            held.close()

    def _format(self, settings: Mapping[str, str], security: Security | None) -> None:
        users = security.scram() if security else []
        tool = [self._java, *_JVM, "-cp", self._classpath, "kafka.tools.StorageTool", "format"]
        for i in range(len(self)):
            data = self._processes.folder / f"data-{i}"
            told = {**node_settings(i, self._ports, data, security, host=self._host), **settings}
            self._file(i, "properties").write_text(properties(told))
            command = [*tool, "--cluster-id", self._id, "--config", str(self._file(i, "properties")), *users]
            self._processes.start(f"format-{i}", command, self._file(i, "log"))

        def formatted() -> bool:
            codes = [self._processes.code(f"format-{i}") for i in range(len(self))]
            for i, code in enumerate(codes):
                if code:
                    raise self._ended(i)
            return None not in codes

        self._wait(formatted, _START_S, "are not formatted")

    def _wait(self, holds: Callable[[], bool], seconds: float, what: str) -> None:
        deadline = time.monotonic() + seconds
        while not holds():
            for i in self.pids:
                if self._processes.code(f"broker-{i}") is not None and i in self._pids:
                    raise self._ended(i)
            if time.monotonic() > deadline:
                said = "".join(f"\nBroker {i}: {self._last_lines(i)}" for i in range(len(self)))
                raise Unavailable(
                    f"The {len(self)} brokers {what} after {seconds:g} s: the machine may be too busy.{said}"
                )
            time.sleep(_LOOK_S)

    def _ended(self, i: int) -> Misuse:
        lines = self._file(i, "log").read_text(errors="replace").splitlines()
        cause = next((line.strip() for line in lines if "Exception: " in line), "it gives no reason")
        return Misuse(f"Kafka's broker {i} ended: {cause}\nIts last lines:\n{self._last_lines(i)}")

    def _last_lines(self, i: int) -> str:
        with suppress(FileNotFoundError):
            return "\n".join(self._file(i, "log").read_text(errors="replace").splitlines()[-_LAST_LINES:])
        return ""

    def _awake(self) -> set[int]:
        return self._pids.keys() - self._paused

    def _cluster(self, i: int) -> Cluster | None:
        """None while nobody answers, or only somebody else's broker on the same port."""
        try:
            cluster = ask_cluster(self._ports[i].internal, _ASK_S)
        except OSError:
            return None
        return cluster if cluster.id == self._id else None

    def _any_cluster(self) -> Cluster:
        for i in sorted(self._awake()):
            cluster = self._cluster(i)
            if cluster is not None:
                return cluster
        raise Unavailable("No broker answers: start one again.")

    def _named(self, i: int) -> str:
        if i not in self._pids:
            raise Misuse(f"Broker {i} of {len(self)} does not run: start it first.")
        return f"broker-{i}"

    def _file(self, i: int, suffix: str) -> Path:
        return self._processes.folder / f"broker-{i}.{suffix}"


def _hold_ports(count: int) -> list[socket.socket]:
    """Sockets on ports of loopback that nobody else has, and that nobody who looks for one here can get until they are
    closed. A broker can listen on them all the same: both sides allow it, and these never listen."""
    found: list[socket.socket] = []
    for port in random.sample(_PORTS, len(_PORTS)):
        probe = socket.socket()
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            probe.close()
            continue
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # after: else two of us could hold the same port
        found.append(probe)
        if len(found) == count:
            return found
    for probe in found:
        probe.close()
    raise Unavailable(f"No {count} ports of 127.0.0.1 from {_PORTS[0]} to {_PORTS[-1]} are free.")
