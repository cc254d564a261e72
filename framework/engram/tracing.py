"""Traces with OpenTelemetry: whether there are any, and what the spans of a command are called by.

Only its API is needed. Without an SDK, `tracer` is None, and nothing that makes spans is ever called. What happens to a
command after it was logged is a trace of its own, whose ids follow from positions, so that every shard knows them
without being told: see docs/decisions/0018-watching-and-traces.md.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanContext, SpanKind, TraceFlags, Tracer

from engram.errors import Misuse

EXPORTER_ENV = "OTEL_TRACES_EXPORTER"
# What the standard calls it, and what the packages call it.
_EXPORTERS = {"otlp": "otlp_proto_http"}


class SpanIds(NamedTuple):
    """What a span is called by."""

    trace: int
    span: int

    def context(self) -> SpanContext:
        flags = TraceFlags(TraceFlags.SAMPLED)
        return SpanContext(self.trace, self.span, is_remote=True, trace_flags=flags)


_next: ContextVar[SpanIds | None] = ContextVar("engram_next_span", default=None)


class TraceIds:
    """The ids of spans, for an SDK: `TracerProvider(id_generator=TraceIds())`. Those of commands follow from their
    positions, all others are random.

    With another generator the spans of a command are in the right trace, and without their parents.
    """

    def generate_trace_id(self) -> int:
        wanted = _next.get()
        return _random(128) if wanted is None else wanted.trace

    def generate_span_id(self) -> int:
        wanted = _next.get()
        return _random(64) if wanted is None else wanted.span

    def is_trace_id_random(self) -> bool:
        return True  # a digest is spread as evenly, which is what samplers rely on


def _random(bits: int) -> int:
    return secrets.randbits(bits) or 1


def tracer() -> Tracer | None:
    """What makes spans in this process; None if no SDK is set up."""
    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    return provider.get_tracer("engram")


def is_sampled(tracer: Tracer, trace_id: int) -> bool:
    """Whether the trace is wanted: what the SDK's sampler says of its root, so that all shards say the same."""
    sampler: Any = getattr(tracer, "sampler", None)
    return sampler is None or bool(sampler.should_sample(Context(), trace_id, "engram").decision.is_sampled())


@contextmanager
def span_with_ids(
    tracer: Tracer,
    name: str,
    ids: SpanIds,
    *,
    parent: int | None,
    kind: SpanKind,
    attributes: Mapping[str, Any],
    span: tuple[int, int],
    links: Sequence[SpanContext] = (),
) -> Iterator[Span]:
    """A span of a command, from one time to another, in nanoseconds. `parent` is a span of the same trace."""
    if parent is None and not isinstance(getattr(tracer, "id_generator", None), TraceIds):
        parent = ids.span  # which nobody has: only with a parent does it come into that trace
    context = Context()
    if parent is not None:
        context = trace.set_span_in_context(NonRecordingSpan(SpanIds(ids.trace, parent).context()), context)
    token = _next.set(ids)
    try:
        made = tracer.start_span(
            name, context, kind, attributes=dict(attributes), links=[Link(link) for link in links], start_time=span[0]
        )
    finally:
        _next.reset(token)
    try:
        yield made
    finally:
        made.end(end_time=span[1])


def start_tracing(service: str) -> None:
    """Sets an SDK up for this process, if `OTEL_TRACES_EXPORTER` names where spans go, as `service` unless
    `OTEL_SERVICE_NAME` says otherwise. Called by programs, never by importing something. One that is set up already
    stays.

    Raises `Misuse` when the SDK or the exporter is not installed.
    """
    name = os.environ.get(EXPORTER_ENV, "none")
    if name in ("", "none") or tracer() is not None:
        return
    try:
        from importlib.metadata import entry_points

        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as problem:
        raise Misuse(f"{EXPORTER_ENV}={name}, and there is no SDK: pip install 'engram[tracing]'.") from problem
    found = list(entry_points(group="opentelemetry_traces_exporter", name=_EXPORTERS.get(name, name)))
    if not found:
        raise Misuse(f"{EXPORTER_ENV}={name}, and no such exporter is installed: pip install 'engram[tracing]'.")
    ids: Any = TraceIds()
    named = {"service.name": os.environ.get("OTEL_SERVICE_NAME") or service}
    provider = TracerProvider(resource=Resource.create(named), id_generator=ids)
    provider.add_span_processor(BatchSpanProcessor(found[0].load()()))
    trace.set_tracer_provider(provider)


def flush_spans() -> None:
    """Sends what was not sent yet: before a process ends that nobody gives the time for it."""
    flush = getattr(trace.get_tracer_provider(), "force_flush", None)
    if flush is not None:
        flush()
