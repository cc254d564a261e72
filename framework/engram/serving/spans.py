"""Spans of a gateway: requests, and commands that were logged."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import structlog
from opentelemetry import propagate, trace
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer
from starlette.requests import Request
from starlette.responses import Response

from engram.errors import EngramError
from engram.log.base import Log
from engram.log.spans import CommandIds
from engram.model.position import Position
from engram.serving.asking import AskingSpans
from engram.tracing import is_sampled, span_with_ids

Endpoint = Callable[[Request], Awaitable[Response]]

_logger = structlog.get_logger()


class GatewaySpans(AskingSpans):
    """The same in a gateway, and spans of requests and of commands that were logged."""

    def __init__(self, made_by: Tracer | None, log: Log) -> None:
        super().__init__(made_by)
        self._ids = CommandIds(log)

    def request(self, route: str, endpoint: Endpoint) -> Endpoint:
        """The endpoint with a span for each request, in the trace that the request names; for a stream until it
        begins."""
        if self._tracer is None:
            return endpoint
        made_by = self._tracer

        async def traced(request: Request) -> Response:
            attributes = {"http.request.method": request.method, "http.route": route, "url.path": request.url.path}
            with made_by.start_as_current_span(
                f"{request.method} {route}", propagate.extract(request.headers), SpanKind.SERVER, attributes
            ) as span:
                response = await endpoint(request)
                span.set_attribute("http.response.status_code", response.status_code)
                if response.status_code >= 500:
                    span.set_status(Status(StatusCode.ERROR))
                return response

        return traced

    def begin(self) -> int:
        """When something began, in nanoseconds; 0 if nobody wants to know."""
        return 0 if self._tracer is None else time.time_ns()

    async def logged(self, name: str, key: str, position: Position, began: int) -> None:
        """A command is durable: one span in the trace of who has sent it, and one that begins its own. They link to
        each other, because the log does not say who sent it, and nobody knew its position before."""
        if self._tracer is None:
            return
        try:
            if not self._ids.knows(position.partition):
                await asyncio.to_thread(self._ids.logged, position)
            ids = self._ids.logged(position)
        except EngramError as problem:
            _logger.warning("spans_not_told", position=str(position), problem=str(problem))
            return
        attributes: dict[str, Any] = {"engram.command": name, "engram.key": key, "engram.position": str(position)}
        sampled = is_sampled(self._tracer, ids.trace)
        links = [Link(ids.context())] if sampled else []
        made: Span = self._tracer.start_span(
            f"append {name}", kind=SpanKind.PRODUCER, attributes=attributes, links=links, start_time=began
        )
        made.end()
        if sampled:
            sender = trace.get_current_span().get_span_context()
            with span_with_ids(
                self._tracer,
                f"log {name}",
                ids,
                parent=None,
                kind=SpanKind.PRODUCER,
                attributes=attributes,
                span=(began, time.time_ns()),
                links=[sender] if sender.is_valid else [],
            ):
                pass
