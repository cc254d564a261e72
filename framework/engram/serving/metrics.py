"""What `/metrics` tells: every metric is declared here, and docs/reference/metrics.md is made from the declarations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from engram.clock import Clock
from engram.serving.registry import Registry
from engram.shard.figures import RecoveryFigures, SnapshotFigures
from engram.shard.requests import PartitionStatus

# From a query in memory to the longest time that a request may take.
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Metric(NamedTuple):
    """One metric as it is scraped. `labels` come after `app`, which all have."""

    name: str
    kind: str  # counter, gauge, histogram
    labels: tuple[str, ...]
    meaning: str


REQUESTS = Metric(
    "engram_http_requests_total", "counter", ("route", "method", "status"),
    "Requests that were answered. Paths that are no route's count as `unknown`.",
)  # fmt: skip
REQUEST_SECONDS = Metric(
    "engram_http_request_seconds", "histogram", ("route",),
    "How long they took; for a stream of events until it began.",
)  # fmt: skip
ACKNOWLEDGED = Metric(
    "engram_commands_acknowledged_total", "counter", ("command",),
    "Commands of clients that the log has: durable, whatever became of them.",
)  # fmt: skip
ANSWERED = Metric("engram_queries_answered_total", "counter", ("query",), "Queries that got an answer.")
LOOKED = Metric(
    "engram_read_models_answered_total", "counter", ("read_model",), "Looks into read models that got an answer."
)
APPENDING = Metric("engram_commands_appending", "gauge", (), "Commands that wait for the log to have them.")
REFUSED = Metric(
    "engram_requests_refused_total", "counter", ("reason",),
    "Requests that were not let in: `unauthenticated` (401), `denied` (403), `too_many` (429), `overloaded` (503).",
)  # fmt: skip
SUBSCRIBERS = Metric("engram_subscribers", "gauge", (), "Streams of answers that are being read.")
WATCHED = Metric(
    "engram_subscriptions", "gauge", (),
    "What these are of, each once: a query of an entity, a place of a read model. Shards evaluate it once per change.",
)  # fmt: skip
TOLD = Metric("engram_changes_told_total", "counter", (), "Answers and changes that were given to their readers.")
DROPPED = Metric(
    "engram_subscribers_dropped_total", "counter", ("reason",),
    "Streams that were ended before their readers wanted it: `slow`, or `expired` with their token.",
)  # fmt: skip
IN_FLIGHT = Metric("engram_http_requests_in_flight", "gauge", (), "Requests that are being answered.")
SILENT = Metric(
    "engram_shard_silent_seconds", "gauge", ("shard",),
    "For how long the shard has not been heard of; it speaks twice a second.",
)  # fmt: skip

Read = Callable[[PartitionStatus, int], float | None]
"""A metric's value from a partition's status and the time in milliseconds; None while there is nothing to tell."""


def _partition(name: str, kind: str, meaning: str, read: Read) -> tuple[Metric, Read]:
    return Metric(f"engram_{name}", kind, ("partition", "shard"), meaning), read


def _of_snapshot(field: str, *, per: float = 1.0) -> Read:
    return lambda status, _now: _figure(status.newest_snapshot, field, per)


def _of_recovery(field: str, *, per: float = 1.0) -> Read:
    return lambda status, _now: _figure(status.recovery, field, per)


def _figure(figures: SnapshotFigures | RecoveryFigures | None, field: str, per: float) -> float | None:
    return None if figures is None else float(getattr(figures, field)) / per


def _snapshot_age(status: PartitionStatus, now: int) -> float | None:
    newest = status.newest_snapshot
    return None if newest is None else (now - newest.created) / 1000


_PARTITIONS: list[tuple[Metric, Read]] = [
    _partition("partition_serving", "gauge", "1 while the partition is served, 0 while it is not.",
               lambda status, _: float(status.state == "serving")),
    _partition("partition_stuck", "gauge", "1 while a handler does not return.",
               lambda status, _: float(status.stuck is not None)),
    _partition("partition_offset", "gauge", "The offset of the next record to be handled.",
               lambda status, _: status.offset),
    _partition("partition_entities", "gauge", "Entities in memory.", lambda status, _: status.entities),
    _partition("commands_handled_total", "counter", "Commands handled since this owner began, replayed ones included.",
               lambda status, _: status.handled),
    _partition("commands_quarantined_total", "counter", "Commands that ever failed in this partition.",
               lambda status, _: status.quarantined),
    _partition("snapshots_published_total", "counter", "Snapshots since this owner began.",
               lambda status, _: status.snapshots_published),
    _partition("snapshots_failed_total", "counter", "Snapshots that could not be published since this owner began.",
               lambda status, _: status.snapshots_failed),
    _partition("snapshot_behind", "gauge", "1 while the next snapshot is due and the last is still being written.",
               lambda status, _: float(status.snapshot_behind)),
    _partition("snapshot_age_seconds", "gauge", "How old the newest snapshot is.", _snapshot_age),
    _partition("snapshot_offset", "gauge", "The newest snapshot: the first record that is not in it.",
               _of_snapshot("offset")),
    _partition("snapshot_entities", "gauge", "The newest snapshot: entities in the image.", _of_snapshot("entities")),
    _partition("snapshot_changed_entities", "gauge", "The newest snapshot: entities that were written.",
               _of_snapshot("changed")),
    _partition("snapshot_bytes", "gauge", "The newest snapshot: bytes that were written.", _of_snapshot("bytes")),
    _partition("snapshot_pause_seconds", "gauge", "The newest snapshot: the longest time for which commands waited.",
               _of_snapshot("pause_ms", per=1000)),
    _partition("snapshot_background_seconds", "gauge", "The newest snapshot: how long it was written beside commands.",
               _of_snapshot("background_ms", per=1000)),
    _partition("recovery_seconds", "gauge", "How long this owner took from nothing to serving.",
               _of_recovery("total_ms", per=1000)),
    _partition("recovery_load_seconds", "gauge", "How long it loaded the snapshot.",
               _of_recovery("load_ms", per=1000)),
    _partition("recovery_entities", "gauge", "Entities in that snapshot.", _of_recovery("entities")),
    _partition("recovery_replay_seconds", "gauge", "How long it replayed the records after the snapshot.",
               _of_recovery("replay_ms", per=1000)),
    _partition("recovery_replayed_records", "gauge", "How many records these were.", _of_recovery("records")),
]  # fmt: skip

METRICS: list[Metric] = [
    *(metric for metric, _ in _PARTITIONS),
    *(SILENT, REQUESTS, REQUEST_SECONDS, ACKNOWLEDGED, ANSWERED, LOOKED, APPENDING, IN_FLIGHT, REFUSED),
    *(SUBSCRIBERS, WATCHED, TOLD, DROPPED),
]
"""All there are, in the order of the reference."""


class Metrics:
    """The figures of one gateway and the shards behind it. Lives on the gateway's event loop."""

    def __init__(self, app: str, registry: Registry, *, clock: Clock) -> None:
        self._app = app
        self._collected = CollectorRegistry()
        self._collected.register(_Shards(app, registry, clock))
        self._requests = self._counter(REQUESTS)
        self._seconds = Histogram(
            REQUEST_SECONDS.name,
            REQUEST_SECONDS.meaning,
            ("app", *REQUEST_SECONDS.labels),
            buckets=_SECONDS,
            registry=self._collected,
        )
        self._acknowledged = self._counter(ACKNOWLEDGED)
        # To find what has some labels takes longer than to count. There are few: routes, methods and statuses are ours.
        self._of_route: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}
        self._of_command: dict[str, Counter] = {}
        self._answered = self._counter(ANSWERED)
        self._refused = self._counter(REFUSED)
        for reason in ("unauthenticated", "denied", "too_many", "overloaded"):
            self._refused.labels(app, reason)
        self._looked = self._counter(LOOKED)
        self._dropped = self._counter(DROPPED)
        for reason in ("slow", "expired"):
            self._dropped.labels(app, reason)
        self.told = self._counter(TOLD).labels(app)
        self.subscribers = self._gauge(SUBSCRIBERS)
        self.watched = self._gauge(WATCHED)
        self.appending = self._gauge(APPENDING)
        self.in_flight = self._gauge(IN_FLIGHT)

    def page(self) -> bytes:
        """All of it, as Prometheus reads it."""
        return generate_latest(self._collected)

    def request(self, route: str, method: str, status: int, seconds: float) -> None:
        counted = self._of_route.get((route, method, status))
        if counted is None:
            requests = self._requests.labels(self._app, route, method, status)
            counted = self._of_route[route, method, status] = requests, self._seconds.labels(self._app, route)
        counted[0].inc()
        counted[1].observe(seconds)

    def acknowledged(self, command: str, count: int) -> None:
        counted = self._of_command.get(command)
        if counted is None:
            counted = self._of_command[command] = self._acknowledged.labels(self._app, command)
        counted.inc(count)

    def answered(self, query: str) -> None:
        self._answered.labels(self._app, query).inc()

    def looked(self, model: str) -> None:
        self._looked.labels(self._app, model).inc()

    def dropped(self, reason: str) -> None:
        self._dropped.labels(self._app, reason).inc()

    def refused(self, reason: str) -> None:
        self._refused.labels(self._app, reason).inc()

    def _gauge(self, metric: Metric) -> Gauge:
        return Gauge(metric.name, metric.meaning, ("app",), registry=self._collected).labels(self._app)

    def _counter(self, metric: Metric) -> Counter:
        return Counter(metric.name, metric.meaning, ("app", *metric.labels), registry=self._collected)


class _Shards(Collector):
    """What the shards say of themselves, read when somebody looks."""

    def __init__(self, app: str, registry: Registry, clock: Clock) -> None:
        self._app = app
        self._registry = registry
        self._clock = clock

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        shards, now = self._registry.shards(), self._clock()
        silent = _family(SILENT)
        for shard in shards:
            silent.add_metric([self._app, str(shard.shard)], shard.silent_s)
        yield silent
        for metric, read in _PARTITIONS:
            family = _family(metric)
            for shard in shards:
                for status in shard.partitions:
                    value = read(status, now)
                    if value is not None:
                        family.add_metric([self._app, str(status.partition), str(shard.shard)], value)
            yield family


def _family(metric: Metric) -> GaugeMetricFamily | CounterMetricFamily:
    form = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    return form(metric.name, metric.meaning, labels=["app", *metric.labels])
