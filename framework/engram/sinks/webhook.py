"""An HTTP address as a sink: each event, or a few at a time, in a POST that is signed."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime

from engram.clock import Clock, system_clock
from engram.errors import Unavailable
from engram.log.stream import cause_of, id_of, time_text
from engram.model.effects import OutEvent
from engram.sinks.address import checked_addresses
from engram.sinks.base import NotNow
from engram.sinks.signature import signed

# For each step of an exchange, and for the whole of it: a receiver that sends a byte now and then is not waited for.
_STEP_S = 10.0
_EXCHANGE_S = 30.0
_ANSWER_BYTES = 64 * 1024
# However long a receiver wants to be left alone; it is asked again then.
_LONGEST_RETRY_AFTER_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Receiver:
    """Where a webhook goes. `path` has the query with it; `secrets` sign, all of them."""

    name: str
    secure: bool
    host: str
    port: int
    path: str
    secrets: list[bytes]
    allow_private: bool = False
    batch: int = 1


class WebhookSink:
    """See `engram.sinks.base.Sink`: idempotent, if the receiver drops what has an id that it has seen.

    A 2xx is taken for delivered, and nothing else; redirects are not followed. Bodies are CloudEvents as JSON: one, or
    with `batch` a list of up to so many, where each has its own id.
    """

    def __init__(self, receiver: Receiver, app: str, *, clock: Clock = system_clock) -> None:
        """Raises `Misuse` when the address is inside and that is not allowed."""
        self.name = receiver.name
        self.at_once = receiver.batch
        self._receiver = receiver
        self._app = app
        self._clock = clock
        self._context = ssl.create_default_context() if receiver.secure else None
        self._connection: _Connection | None = None
        with suppress(Unavailable):  # a name that means nothing now may mean something later
            checked_addresses(receiver.host, receiver.port, allow_private=receiver.allow_private)

    def deliver(self, events: Sequence[OutEvent]) -> None:
        if self._receiver.batch == 1:
            for event in events:
                self._post(f"{self._app}/{id_of(event)}", "application/cloudevents+json", self._cloud_event(event))
            return
        body = b"[" + b",".join(map(self._cloud_event, events)) + b"]"
        message_id = f"{self._app}/{id_of(events[0])}-{id_of(events[-1])}"
        self._post(message_id, "application/cloudevents-batch+json", body)

    def close(self) -> None:
        connection = self._connection
        if connection is not None:
            connection.cut()

    def _cloud_event(self, event: OutEvent) -> bytes:
        """CloudEvents' attributes, `typeversion`, `cause` and `root` among them as extensions; the body as it is."""
        attributes = {
            "specversion": "1.0",
            "id": id_of(event),
            "source": f"/engram/{self._app}",
            "type": event.name,
            "subject": event.key,
            "time": time_text(event.time),
            "datacontenttype": "application/json",
            "typeversion": event.version,
            "cause": cause_of(event),
            "root": event.root,
        }
        head = json.dumps(attributes, ensure_ascii=False, separators=(",", ":"))
        return head[:-1].encode() + b',"data":' + event.body + b"}"

    def _post(self, message_id: str, content_type: str, body: bytes) -> None:
        now = self._clock()
        headers = {
            "Content-Type": content_type,
            "User-Agent": "engram",
            **signed(self._receiver.secrets, message_id, now // 1000, body),
        }
        try:
            status, retry_after = self._exchange(body, headers)
        except (OSError, http.client.HTTPException) as problem:
            raise Unavailable(f"{self.name} does not answer: {str(problem) or type(problem).__name__}.") from problem
        if 200 <= status < 300:
            return
        more = ": redirects are not followed, so write the address that it leads to" if 300 <= status < 400 else ""
        refusal = f"{self.name} answered {status} to {message_id}{more}."
        seconds = _seconds_until(retry_after, now)
        raise Unavailable(refusal) if seconds is None else NotNow(refusal, seconds)

    def _exchange(self, body: bytes, headers: dict[str, str]) -> tuple[int, str]:
        # A connection that was kept may have been closed at the other end meanwhile: then a new one, once. That the
        # receiver has the request all the same is possible, and no harm.
        kept = self._connection is not None
        try:
            return self._try_exchange(body, headers)
        except (OSError, http.client.HTTPException) as problem:
            self._drop()
            if not kept or isinstance(problem, TimeoutError):
                raise
        try:
            return self._try_exchange(body, headers)
        except BaseException:
            self._drop()
            raise

    def _try_exchange(self, body: bytes, headers: dict[str, str]) -> tuple[int, str]:
        if self._connection is None:
            self._connection = _Connection(self._receiver, self._context)
        connection = self._connection
        with connection.cut_after(_EXCHANGE_S):
            connection.request("POST", self._receiver.path, body, headers)
            response = connection.getresponse()
            rest = response.read(_ANSWER_BYTES + 1)  # read to its end, or the connection cannot be kept
        if len(rest) > _ANSWER_BYTES or response.will_close:
            self._drop()
        return response.status, response.headers.get("Retry-After", "")

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class _Connection(http.client.HTTPConnection):
    """Connects to an address that was looked at, whatever the name would mean if it were asked again."""

    def __init__(self, receiver: Receiver, context: ssl.SSLContext | None) -> None:
        super().__init__(receiver.host, receiver.port, timeout=_STEP_S)
        self.default_port = 80 if context is None else 443  # left out of the header Host
        self._receiver = receiver
        self._context = context
        self._late = False

    def connect(self) -> None:
        where = self._receiver
        addresses = checked_addresses(where.host, where.port, allow_private=where.allow_private)
        self.sock = _first(addresses, lambda address: socket.create_connection((address, where.port), _STEP_S))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._context is not None:
            self.sock = self._context.wrap_socket(self.sock, server_hostname=where.host)

    def cut(self) -> None:
        """Ends what is under way on another thread."""
        sock = self.sock
        if sock is not None:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    @contextmanager
    def cut_after(self, seconds: float) -> Iterator[None]:
        self._late = False
        timer = threading.Timer(seconds, self._be_late)
        timer.daemon = True
        timer.start()
        problem: Exception | None = None
        try:
            yield
        except (OSError, http.client.HTTPException) as failure:
            problem = failure
        finally:
            timer.cancel()
        if self._late:  # also without an error: an answer that was cut off can look whole
            raise TimeoutError(f"it took longer than {seconds:g} s") from problem
        if problem is not None:
            raise problem

    def _be_late(self) -> None:
        self._late = True
        self.cut()


def _first(addresses: list[str], connect: Callable[[str], socket.socket]) -> socket.socket:
    """A connection to the first address that takes one."""
    for address in addresses[:-1]:
        with suppress(OSError):
            return connect(address)
    return connect(addresses[-1])


def _seconds_until(retry_after: str, now: int) -> float | None:
    """What a header Retry-After says: seconds, or a date."""
    try:
        seconds = float(int(retry_after))
    except ValueError:
        try:
            moment = parsedate_to_datetime(retry_after)
        except ValueError:
            return None
        seconds = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() - now / 1000
    return min(max(seconds, 0.0), _LONGEST_RETRY_AFTER_S)
