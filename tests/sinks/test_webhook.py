"""Webhooks to a real server on loopback: signed, in order, again until they are taken."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trustme
from engram.clock import system_clock
from engram.errors import Misuse, Unavailable
from engram.log.base import Log
from engram.log.stream import id_of
from engram.sinks import webhook
from engram.sinks.base import NotNow, Sink
from engram.sinks.open import open_sink
from engram.sinks.signature import verify

from tests.log.emitting import emit, out
from tests.sinks.conftest import Run
from tests.sinks.receiver import Answer, Receiver
from tests.sinks.waiting import until

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
ENVIRONMENT = {"ENGRAM_WEBHOOK_SECRET": SECRET}


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


def hook(url: str, **how: Any) -> Sink:
    return open_sink(url, "social", allow_private=True, environment=ENVIRONMENT, **how)


@pytest.fixture
def sink(receiver: Receiver) -> Iterator[Sink]:
    sink = hook(receiver.url("/hook?token=abc"))
    yield sink
    sink.close()


def test_an_event_is_posted_as_a_signed_cloud_event(receiver: Receiver, sink: Sink):
    """Attributes and body, the id in body and headers, and a signature that a receiver verifies."""
    sink.deliver([out(2, 7, 3, 1, body={"who": "ada", "whom": "zoë"}, root="0:5.1")])
    (got,) = receiver.got

    assert got.path == "/hook?token=abc"
    assert got.headers["content-type"] == "application/cloudevents+json"
    assert json.loads(got.body) == {
        "specversion": "1.0",
        "id": "2:7.3.1",
        "source": "/engram/social",
        "type": "followed",
        "subject": "ada",
        "time": "2023-11-14T22:13:20.000Z",
        "datacontenttype": "application/json",
        "typeversion": 1,
        "cause": "2:7.3",
        "root": "0:5.1",
        "data": {"who": "ada", "whom": "zoë"},
    }
    assert verify(SECRET, got.headers, got.body, now=time.time()) == "social/2:7.3.1"


def test_a_batch_is_one_request(receiver: Receiver):
    """Up to so many events in a list, each with its own id."""
    sink = hook(receiver.url("/#batch=10"))
    sink.deliver([out(0, 0), out(1, 5), out(0, 1)])
    sink.close()
    (got,) = receiver.got

    assert sink.at_once == 10
    assert got.headers["content-type"] == "application/cloudevents-batch+json"
    assert [event["id"] for event in got.events] == ["0:0.0.0", "1:5.0.0", "0:1.0.0"]
    assert verify(SECRET, got.headers, got.body, now=time.time()) == "social/0:0.0.0-0:1.0.0"


@pytest.mark.parametrize("status", [200, 201, 202, 204])
def test_any_2xx_is_delivered(receiver: Receiver, sink: Sink, status: int):
    """Whatever its body says; and the connection is kept for the next."""
    receiver.script += [Answer(status), Answer(status)]
    sink.deliver([out(0, 0)])
    sink.deliver([out(0, 1)])

    assert [got.taken for got in receiver.got] == [True, True]


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_not_followed(receiver: Receiver, sink: Sink, status: int):
    """It could lead inside: it is a refusal like others, and says what to do."""
    receiver.script.append(Answer(status, (("Location", receiver.url("/elsewhere")),)))
    with pytest.raises(Unavailable, match=f"answered {status} to social/0:0.0.0: redirects are not followed"):
        sink.deliver([out(0, 0)])

    assert [got.path for got in receiver.got] == ["/hook?token=abc"]


@pytest.mark.parametrize("status", [400, 401, 404, 410, 500, 503])
def test_any_other_answer_is_a_refusal(receiver: Receiver, sink: Sink, status: int):
    """The status and the id are told, not the query."""
    receiver.script.append(Answer(status))
    with pytest.raises(Unavailable, match=f"answered {status} to social/0:0.0.0") as refusal:
        sink.deliver([out(0, 0)])

    assert "abc" not in str(refusal.value)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("7", 7.0),
        ("0", 0.0),
        ("-3", 0.0),
        ("999999", 3600.0),
        (timedelta(seconds=60), 60.0),
        (timedelta(days=-1), 0.0),
    ],
)
def test_retry_after_is_heard(receiver: Receiver, sink: Sink, said: str | timedelta, expected: float):
    """As seconds or as a date, an hour at most."""
    if isinstance(said, timedelta):
        said = format_datetime(datetime.now(UTC) + said, usegmt=True)
    receiver.script.append(Answer(429, (("Retry-After", said),)))
    with pytest.raises(NotNow) as refusal:
        sink.deliver([out(0, 0)])

    assert refusal.value.seconds == pytest.approx(expected, abs=30)


def test_a_retry_after_that_says_nothing_is_not_heard(receiver: Receiver, sink: Sink):
    """It is a refusal without a time."""
    receiver.script.append(Answer(503, (("Retry-After", "soon"),)))
    with pytest.raises(Unavailable) as refusal:
        sink.deliver([out(0, 0)])

    assert not isinstance(refusal.value, NotNow)


def test_a_receiver_that_hangs_is_not_waited_for(receiver: Receiver, sink: Sink, monkeypatch: pytest.MonkeyPatch):
    """One that takes the request and never answers."""
    monkeypatch.setattr(webhook, "_STEP_S", 0.2)
    receiver.script.append(Answer(hang=True))
    with pytest.raises(Unavailable, match="does not answer: timed out"):
        sink.deliver([out(0, 0)])

    assert len(receiver.got) == 1


def test_a_receiver_that_drips_is_cut_off(monkeypatch: pytest.MonkeyPatch):
    """Each byte comes in time, the answer never does: the whole exchange has an end."""
    monkeypatch.setattr(webhook, "_EXCHANGE_S", 0.5)
    cut = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sink = hook(f"http://127.0.0.1:{listener.getsockname()[1]}/")

        def drip() -> None:
            connection, _ = listener.accept()
            with connection, suppress(OSError):
                connection.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
                while not cut.wait(0.02):
                    connection.sendall(b"x")

        dripping = threading.Thread(target=drip)
        dripping.start()
        started = time.monotonic()
        with pytest.raises(Unavailable, match=r"it took longer than 0.5 s"):
            sink.deliver([out(0, 0)])
        cut.set()
        dripping.join()

    assert time.monotonic() - started < 5


def test_nobody_there_is_told(free_port: int):
    """The address is named."""
    sink = hook(f"http://127.0.0.1:{free_port}/hook")
    with pytest.raises(Unavailable, match=f"http://127.0.0.1:{free_port}/hook does not answer"):
        sink.deliver([out(0, 0)])


def test_a_connection_that_was_closed_meanwhile_is_opened_again(receiver: Receiver, sink: Sink):
    """A receiver may close a kept connection at any time: that is no failure."""
    receiver.script += [Answer(204, (("Connection", "close"),)), Answer(), Answer()]
    for offset in range(3):
        sink.deliver([out(0, offset)])

    assert [event["id"] for event in receiver.taken] == ["0:0.0.0", "0:1.0.0", "0:2.0.0"]


def test_the_address_that_was_checked_is_the_one_connected_to(receiver: Receiver, monkeypatch: pytest.MonkeyPatch):
    """A name is asked once for a connection, so it cannot mean another address a moment later."""
    asked = []
    real = socket.getaddrinfo

    def lookup(host: str, *more: Any, **how: Any) -> Any:
        asked.append(host)
        return real("127.0.0.1" if host == "hooks.example" else host, *more, **how)

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    sink = hook(f"http://hooks.example:{receiver.port}/hook")
    asked.clear()
    sink.deliver([out(0, 0)])
    sink.close()
    (got,) = receiver.got

    assert got.headers["host"] == f"hooks.example:{receiver.port}"
    assert asked == ["hooks.example", "127.0.0.1"]  # the second is the address itself


def test_a_name_that_comes_to_mean_an_address_inside_is_refused(receiver: Receiver, monkeypatch: pytest.MonkeyPatch):
    """It was outside when the app started: at each connection it is looked at again, and nothing is sent."""
    means = ["1.1.1.1"]

    def lookup(_host: str, port: int, *_more: Any, **_how: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (means[0], port))]

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    sink = open_sink(f"http://hooks.example:{receiver.port}/hook", "social", environment=ENVIRONMENT)
    means[0] = "127.0.0.1"
    with pytest.raises(Misuse, match=r"hooks.example \(127.0.0.1\) is not an address outside"):
        sink.deliver([out(0, 0)])

    assert receiver.got == []


@pytest.mark.parametrize(("host", "taken"), [("localhost", True), ("127.0.0.1", False)])
def test_a_certificate_is_checked_for_the_name(host: str, taken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Of the name in the address, although the connection goes to a number."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(context)
    with Receiver(wrap=lambda sock: context.wrap_socket(sock, server_side=True)) as receiver:
        sink = hook(f"https://{host}:{receiver.port}/hook")
        if taken:
            sink.deliver([out(0, 0)])
        else:
            with pytest.raises(Unavailable, match="CERTIFICATE_VERIFY_FAILED"):
                sink.deliver([out(0, 0)])
        sink.close()

    assert [event["id"] for event in receiver.taken] == (["0:0.0.0"] if taken else [])


# With its runner


@pytest.mark.parametrize("batch", [1, 4])
def test_every_event_arrives_in_order_whatever_the_receiver_does(
    receiver: Receiver, log: Log, run: Run, monkeypatch: pytest.MonkeyPatch, batch: int
):
    """Failures, a 429 with a time, a hang: each is tried again with the same ids, and nothing comes out of order."""
    monkeypatch.setattr(webhook, "_STEP_S", 0.3)
    receiver.script += [Answer(500)] * 3 + [Answer(), Answer(429, (("Retry-After", "1"),)), Answer(), Answer(hang=True)]
    events = emit(log, [0, 1, 2, 0, 1, 0, 2, 2, 1, 0])
    runner = run(hook(receiver.url(f"/hook#batch={batch}")), longest_pause=0.05)
    started = time.monotonic()
    until(lambda: len(receiver.taken) >= len(events), "delivery")
    until(lambda: runner.status().delivered == len(events), "count")

    seen = [event["id"] for got in receiver.got for event in got.events]
    assert time.monotonic() - started >= 1
    assert [event["id"] for event in receiver.taken] == [id_of(event) for event in events]
    assert list(dict.fromkeys(seen)) == [id_of(event) for event in events]
    for first, second in pairwise(receiver.got):
        if not first.taken:  # the same again, and as one message: by its id a receiver knows it
            assert second.headers["webhook-id"] == first.headers["webhook-id"]
            assert second.body == first.body
    for got in receiver.got:
        assert verify(SECRET, got.headers, got.body, now=time.time()) == got.headers["webhook-id"]
    assert runner.status().problem == ""


def test_a_runner_goes_on_where_the_one_before_ended(receiver: Receiver, log: Log, run: Run):
    """The place is kept beside the log: what was taken is not sent again."""
    emit(log, [0, 1, 2])
    first = run(hook(receiver.url()))
    until(lambda: first.status().delivered == 3)
    first.stop()
    emit(log, [2, 1])
    second = run(hook(receiver.url()))
    until(lambda: second.status().delivered == 2)

    assert [event["id"] for event in receiver.taken] == ["0:0.0.0", "1:0.0.0", "2:0.0.0", "2:1.0.0", "1:1.0.0"]


def test_stopping_does_not_wait_for_a_receiver_that_hangs(receiver: Receiver, log: Log, run: Run):
    """The delivery is cut off; it comes again after the next start."""
    receiver.script.append(Answer(hang=True))
    emit(log, [0])
    runner = run(hook(receiver.url()))
    until(lambda: receiver.got)
    started = time.monotonic()
    runner.stop()
    stopped = time.monotonic() - started
    again = run(hook(receiver.url()))
    until(lambda: again.status().delivered == 1)

    assert stopped < 6
    assert [event["id"] for event in receiver.taken] == ["0:0.0.0"]


def test_the_time_of_a_request_is_that_of_its_sending(receiver: Receiver):
    """Not that of the event, which may be long ago: receivers refuse what is old."""
    before = system_clock() // 1000
    sink = hook(receiver.url())
    sink.deliver([out(0, 0)])
    sink.close()

    assert before <= int(receiver.got[0].headers["webhook-timestamp"]) <= system_clock() // 1000
