"""Fixtures that several folders need: an app that runs without Spark, real brokers, and servers that are none."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import structlog
from engram.dev.jars import kafka_jars
from engram.dev.kafka import Brokers
from engram.errors import Unavailable
from hypothesis import HealthCheck, settings

from tests.serving.running import RunningApp

# How quickly examples come is the machine's business: tests run side by side.
settings.register_profile("engram", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("engram")

# Minutes long, in few files: begun last, they would be waited for alone.
_LONG = ("tests/chaos/", "tests/spark/", "tests/dev/")


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(_LONG))
    for item in items:
        if "kafka_at_hand" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.kafka)


@pytest.fixture(scope="session")
def kafka_at_hand() -> None:
    """Skips tests that need a real broker where Kafka's jars cannot be had."""
    try:
        kafka_jars()
    except Unavailable as problem:
        pytest.skip(f"NOT RUN, because there is no real Kafka: {problem}")


@pytest.fixture(scope="session")
def kafka(kafka_at_hand: None) -> Iterator[Brokers]:
    """One broker for all tests together: each takes topics of its own and leaves the broker running."""
    with Brokers() as brokers:
        yield brokers


@pytest.fixture(scope="session")
def kafka_cluster(kafka_at_hand: None) -> Iterator[Brokers]:
    """Three brokers for all tests together, in which a lost one is noticed after 3 s instead of 9.

    Each test takes topics of its own, may kill and pause brokers, and leaves all three running: it calls
    `wait_in_sync` before it needs them whole.
    """
    quick = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}
    with Brokers(3, settings=quick) as brokers:
        yield brokers


@pytest.fixture(scope="session")
def social(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApp]:
    """The social network, for all tests together: each takes users of its own and leaves the shards alone."""
    from sample_apps.social import app

    with RunningApp(app, tmp_path_factory.mktemp("social")) as running:
        yield running


@pytest.fixture
def quiet() -> Iterator[None]:
    """For tests in which many commands fail: to print their tracebacks would take most of the time."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.configure(**before)


@pytest.fixture
def taken_port() -> Iterator[int]:
    """A port on loopback that somebody listens on, without ever answering."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.fixture
def free_port() -> int:
    """A port on loopback that nobody listened on a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.fixture
def nobody(free_port: int) -> str:
    """An address where nothing listens."""
    return f"http://127.0.0.1:{free_port}"


class _BadGateway(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        page = b"<h1>Bad gateway</h1>"
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(502)
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, *_message: object) -> None:
        """Says nothing."""


@pytest.fixture
def stranger() -> Iterator[str]:
    """The address of a web server that is no gateway of ours."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _BadGateway) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()
