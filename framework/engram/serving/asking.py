"""Spans around what is asked of somebody else: of a gateway by a client, of shards by a gateway."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from opentelemetry import propagate
from opentelemetry.trace import SpanKind, Tracer

from engram.tracing import tracer

_ATTRIBUTES = {"send": "command", "ask": "query", "look": "read_model"}


class AskingSpans:
    """Spans around what is asked. Without an SDK nothing is done."""

    def __init__(self, made_by: Tracer | None) -> None:
        self._tracer = made_by

    @classmethod
    def made(cls) -> Self:
        return cls(tracer())

    @contextmanager
    def around(self, what: str, name: str, place: str) -> Iterator[None]:
        """Something that is asked of somebody else: a command that is sent, a query, a look into a read model."""
        if self._tracer is None:
            yield
            return
        attributes = {f"engram.{_ATTRIBUTES[what]}": name, "engram.key": place}
        with self._tracer.start_as_current_span(f"{what} {name}", kind=SpanKind.CLIENT, attributes=attributes):
            yield

    def carried(self) -> dict[str, str]:
        """The headers that say which trace a request belongs to."""
        headers: dict[str, str] = {}
        if self._tracer is not None:
            propagate.inject(headers)
        return headers
