"""`engram dev kafka`: brokers on loopback for as long as the command runs."""

from __future__ import annotations

import time

from engram.cli.output import SIGNAL_S, leave_on_signals, say, say_json
from engram.dev.jars import KAFKA_VERSION
from engram.dev.kafka import Brokers


def run_kafka(count: int, *, json: bool) -> None:
    """Runs until SIGINT or SIGTERM, also while it starts, and then ends with exit code 0 and nothing left behind.

    A broker that is killed by hand stays away: the others go on.
    """
    leave_on_signals()
    began = time.monotonic()
    with Brokers(count) as brokers:
        seconds = time.monotonic() - began
        if json:
            pids = list(brokers.pids.values())
            say_json({"event": "ready", "bootstrap": brokers.bootstrap, "url": brokers.url("TOPIC"), "pids": pids})
        else:
            say(f"Kafka {KAFKA_VERSION} is ready in {seconds:.1f} s, and keeps nothing (Ctrl-C stops).")
            say(f"  for `engram run`   --log {brokers.url('TOPIC')}   (any name instead of TOPIC)")
            for i, pid in brokers.pids.items():
                say(f"  broker {i}           process {pid}")
        while True:
            time.sleep(SIGNAL_S)
