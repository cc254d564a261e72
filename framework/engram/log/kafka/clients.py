"""Kafka's clients, made with a log's settings; what keeps them from starting is said in our words."""

from __future__ import annotations

import logging
import selectors
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, errors
from kafka.net.compat import KafkaNetClient

from engram.errors import Misuse
from engram.log.base import RECORD_BYTES
from engram.log.kafka.problems import Tried, explain, explain_start
from engram.log.kafka.settings import KafkaSettings

T = TypeVar("T")

# A record's header and Kafka's own frame come on top of what the bodies take.
MESSAGE_BYTES = RECORD_BYTES + 1024 * 1024
# The client tries again until its time is up, also what can never work: so it is asked soon, and then once more.
_START_MS = (1_000, 9_000)
# How long a transaction's beginning may take before it is tried with a new producer.
_TRANSACTION_MS = 10_000
_PRODUCER_ONLY = ("delivery_timeout_ms", "compression_type", "linger_ms")
_CONSUMER_ONLY = ("fetch_max_wait_ms",)

# kafka-python tells the log of every lost connection.
_words = logging.getLogger("kafka")
_words.setLevel(logging.WARNING)
_words.propagate = False
_words.addHandler(logging.NullHandler())
# These tell passwords when somebody wants to know it all.
for _name in ("kafka.admin.client", "kafka.net.connection", "kafka.protocol.parser"):
    logging.getLogger(_name).addFilter(lambda record: record.levelno > logging.DEBUG)


class _Selector(selectors.DefaultSelector):
    """kafka-python takes a socket out after each wait, and asks before the next one whether it is there. The standard
    library's answer names both ends of the socket, twice, in an error that nobody reads: 0.03 ms of each append."""

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        return self._fd_to_key[fileobj.fileno()]  # type: ignore[attr-defined,no-any-return]  # what its own get_key reads


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
        "max_block_ms": settings.client["delivery_timeout_ms"] if transactional_id is None else _TRANSACTION_MS,
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


def commit(producer: KafkaProducer, *, timeout_ms: int) -> None:
    """`commit_transaction`, which would wait for a broker for ever."""
    committed = producer._transaction_manager.begin_commit()  # noqa: SLF001 - as it does itself
    producer._sender.wakeup()  # noqa: SLF001
    if not committed.wait(timeout_ms=timeout_ms):
        raise errors.KafkaTimeoutError(f"The transaction was not committed within {timeout_ms} ms")


def close(producer: KafkaProducer, *, wait_s: float = 0) -> None:
    """Ends a producer; what it could not send within that time stays unsent."""
    try:
        producer.close(timeout=wait_s)
    except errors.KafkaError:
        # It waits for what it has to send, and would go on trying: a record that was given up must not come later.
        producer._sender.force_close()  # noqa: SLF001 - kafka-python has no other way


def _start(client: Callable[..., T], settings: KafkaSettings, foreign: tuple[str, ...], more: dict[str, Any]) -> T:
    options = {name: value for name, value in settings.client.items() if name not in foreign}
    for time_ms in _START_MS:
        with _listening() as tried:
            try:
                return _made(
                    client,
                    bootstrap_servers=list(settings.servers),
                    bootstrap_timeout_ms=time_ms,
                    selector=_Selector,
                    **more,
                    **options,
                )
            except errors.KafkaTimeoutError as problem:
                # The client keeps to itself why it did not come to anything.
                told, cause = explain_start(tried, settings), problem
                if isinstance(told, Misuse):
                    break
            except (errors.KafkaError, OSError, ValueError, RuntimeError, AssertionError) as problem:
                raise explain(problem, settings, "open") from problem
    raise told from cause


def _made(client: Callable[..., T], **options: Any) -> T:
    """A client; one that does not start leaves neither its thread nor its sockets behind."""
    inner: list[KafkaNetClient] = []

    def net(*arguments: Any, **more: Any) -> KafkaNetClient:
        inner.append(KafkaNetClient(*arguments, **more))
        return inner[-1]

    try:
        return client(kafka_client=net, **options)
    except BaseException:
        for each in inner:
            each.close()
        raise


@contextmanager
def _listening() -> Iterator[Tried]:
    """What the client tells its log."""
    tried = Tried()

    class Listen(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said = record.args if isinstance(record.args, tuple) else ()
            tried.problems.extend(each for each in said if isinstance(each, BaseException))
            tried.answered |= any(getattr(each, "broker_version", None) is not None for each in said)

    handler = Listen()
    _words.addHandler(handler)
    try:
        yield tried
    finally:
        _words.removeHandler(handler)
