"""`/metrics`: what the gateway counts, and what the shards say of themselves."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from engram.serving.metrics import METRICS
from engram.shard.policy import Policy
from prometheus_client.parser import text_string_to_metric_families

from tests.serving.counter import Add, app
from tests.serving.running import RunningApp

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApp]:
    """Counters that are snapshotted after every command."""
    with RunningApp(app, tmp_path_factory.mktemp("counted"), policy=Policy(snapshot_every=1)) as running:
        yield running


def scraped(running: RunningApp) -> dict[str, Any]:
    """The metrics by name, as Prometheus reads them, without the times at which its client made them."""
    response = running.http.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain")
    families = text_string_to_metric_families(response.text)
    return {family.name: family for family in families if not family.name.endswith("_created")}


def value(running: RunningApp, name: str, **labels: str) -> float:
    """The sum of all samples of a name with these labels; 0 if there are none."""
    return sum(
        sample.value
        for family in scraped(running).values()
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def test_the_metrics_are_those_that_are_declared(counted: RunningApp):
    """Every declared metric is exposed, with its kind, its labels and its meaning; and nothing else is."""
    key = counted.key_in(0)
    before = value(counted, "engram_snapshots_published_total", partition="0")
    counted.http.post("/api/counters/counter/commands/add", params={"key": key})
    counted.http.get("/api/counters/counter/queries/value", params={"key": key})
    counted.http.get("/api/counters/read_models/values", params={"group": "all"})
    counted.wait_until(lambda: _of(counted, 0).snapshots_published > before)
    found = scraped(counted)

    assert found.keys() == {metric.name.removesuffix("_total") for metric in METRICS}
    for metric in METRICS:
        family = found[metric.name.removesuffix("_total")]
        assert (family.type, family.documentation) == (metric.kind, metric.meaning)
        assert family.samples, metric.name
        for sample in family.samples:
            assert sample.labels.keys() - {"le"} == {"app", *metric.labels}
            assert sample.labels["app"] == "counters"


def test_the_reference_is_made_from_the_declarations():
    """docs/reference/metrics.md is what `make docs` would write."""
    assert (ROOT / "docs/reference/metrics.md").read_text() == _generator().metrics_page()


def test_commands_queries_and_requests_are_counted_by_route(counted: RunningApp):
    """By the route's own path, whatever the key; what has no route counts as unknown, whatever the path."""
    route = "/api/counters/counter/commands/add"
    before = value(counted, "engram_http_requests_total", route=route, status="200")
    rejected = value(counted, "engram_http_requests_total", route=route, status="409")
    acknowledged = value(counted, "engram_commands_acknowledged_total", command="add")
    for number in range(3):
        counted.http.post(route, params={"key": f"counted{number}"})
    counted.http.post(route, params={"key": "counted0"}, json={"by": -1})
    counted.http.get("/api/counters/counter/queries/value", params={"key": "counted0"})
    counted.http.get("/some/path/that/is/not/there")

    assert value(counted, "engram_http_requests_total", route=route, method="POST", status="200") == before + 3
    assert value(counted, "engram_http_requests_total", route=route, status="409") == rejected + 1
    assert value(counted, "engram_commands_acknowledged_total", command="add") == acknowledged + 4
    assert value(counted, "engram_queries_answered_total", query="value") >= 1
    assert value(counted, "engram_http_requests_total", route="unknown", status="404") >= 1
    assert value(counted, "engram_http_request_seconds_count", route=route) == before + rejected + 4
    assert value(counted, "engram_commands_appending") == 0
    routes = {s.labels["route"] for s in scraped(counted)["engram_http_requests"].samples}
    assert not [route for route in routes if "counted0" in route or "some/path" in route]


def test_the_figures_of_a_snapshot_are_those_of_the_status(counted: RunningApp):
    """Position, entities, changed, bytes, pause, background time and age, by partition and shard."""
    partition = 3
    counted.on_loop(counted.service.send(counted.key_in(partition), Add(), seconds=20))
    counted.wait_until(lambda: _of(counted, partition).snapshot == counted.log.end(partition))
    figures = _of(counted, partition).newest_snapshot
    labels = {"partition": str(partition), "shard": "1", "app": "counters"}

    def told(name: str) -> float:
        return value(counted, f"engram_snapshot_{name}", **labels)

    assert (told("offset"), told("entities"), told("changed_entities")) == (
        figures.offset,
        figures.entities,
        figures.changed,
    )
    assert told("bytes") == figures.bytes > 0
    assert told("pause_seconds") == pytest.approx(figures.pause_ms / 1000)
    assert told("background_seconds") == pytest.approx(figures.background_ms / 1000)
    assert 0 <= told("age_seconds") < 60
    assert value(counted, "engram_snapshots_published_total", **labels) >= 1
    assert value(counted, "engram_recovery_replayed_records", **labels) == 1  # its own epoch record


def _of(running: RunningApp, partition: int) -> Any:
    return next(p for shard in running.registry.shards() for p in shard.partitions if p.partition == partition)


def _generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs/reference/generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
