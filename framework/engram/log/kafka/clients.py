"""Kafka's clients, made with a log's settings; what keeps them from starting is said in our words."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, errors

from engram.log.base import RECORD_BYTES
from engram.log.kafka.problems import explain, no_broker
from engram.log.kafka.settings import KafkaSettings

T = TypeVar("T")

# A record's header and Kafka's own frame come on top of what the bodies take.
MESSAGE_BYTES = RECORD_BYTES + 1024 * 1024
_START_MS = 10_000
_PRODUCER_ONLY = ("delivery_timeout_ms", "compression_type", "linger_ms")
_CONSUMER_ONLY = ("fetch_max_wait_ms",)

# kafka-python tells the log of every lost connection, and at its most talkative of passwords too.
_words = logging.getLogger("kafka")
_words.setLevel(logging.WARNING)
_words.propagate = False
_words.addHandler(logging.NullHandler())


def admin(settings: KafkaSettings) -> KafkaAdminClient:
    return _start(KafkaAdminClient, settings, (*_PRODUCER_ONLY, *_CONSUMER_ONLY), {})


def producer(settings: KafkaSettings, transactional_id: str | None = None) -> KafkaProducer:
    """Idempotent, and acknowledged by all replicas that are in sync."""
    more: dict[str, Any] = {
        "acks": "all",
        "enable_idempotence": True,
        "transactional_id": transactional_id,
        "max_request_size": MESSAGE_BYTES,
        "batch_size": 1024 * 1024,
        "max_block_ms": settings.client["delivery_timeout_ms"],
        "reconnect_backoff_max_ms": 1000,
        "allow_auto_create_topics": False,
        "metrics_enabled": False,
    }
    return _start(KafkaProducer, settings, _CONSUMER_ONLY, more)


def consumer(settings: KafkaSettings) -> KafkaConsumer:
    """Reads by assignment, from offsets it is told: no group, no reset. Sees only what was committed."""
    more: dict[str, Any] = {
        "group_id": None,
        "enable_auto_commit": False,
        "auto_offset_reset": "none",
        "isolation_level": "read_committed",
        "max_partition_fetch_bytes": MESSAGE_BYTES,
        "max_poll_records": 10_000,
        "reconnect_backoff_max_ms": 1000,
        "allow_auto_create_topics": False,
        "metrics_enabled": False,
    }
    return _start(KafkaConsumer, settings, _PRODUCER_ONLY, more)


def _start(client: Callable[..., T], settings: KafkaSettings, foreign: tuple[str, ...], more: dict[str, Any]) -> T:
    options = {name: value for name, value in settings.client.items() if name not in foreign}
    with _reasons() as reasons:
        try:
            return client(bootstrap_servers=list(settings.servers), bootstrap_timeout_ms=_START_MS, **more, **options)
        except errors.KafkaTimeoutError as problem:
            # The client tries until its time is up, and keeps to itself why that was.
            problems = [explain(reason, settings, "open") for reason in reasons]
            told = next((p for p in problems if p.__class__.__name__ == "Misuse"), None)
            raise (told or no_broker(settings)) from problem
        except (errors.KafkaError, OSError, ValueError, AssertionError) as problem:
            raise explain(problem, settings, "open") from problem


@contextmanager
def _reasons() -> Iterator[list[BaseException]]:
    """The errors that the client tells its log of."""
    heard: list[BaseException] = []

    class Listen(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            arguments = record.args if isinstance(record.args, tuple) else ()
            heard.extend(argument for argument in arguments if isinstance(argument, BaseException))

    handler = Listen()
    _words.addHandler(handler)
    try:
        yield heard
    finally:
        _words.removeHandler(handler)
