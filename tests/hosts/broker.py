"""A Kafka broker at an address of the machine that this runs on, until its input ends."""

from __future__ import annotations

import sys

from engram.dev.kafka import Brokers


def main() -> None:
    with Brokers(host=sys.argv[1]) as brokers:
        print(brokers.bootstrap, flush=True)  # noqa: T201 - whoever started it reads this
        sys.stdin.read()


if __name__ == "__main__":
    main()
