"""Spans of what a shard handles: commands, messages and timers, each below what has caused it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple, Self

import structlog
from opentelemetry.trace import SpanKind, Status, StatusCode, Tracer

from engram.codec.record import BatchHeader, CommandsHeader, MessagesHeader, Record
from engram.errors import EngramError
from engram.image.image import Handled, Image
from engram.image.outcome import Verdict
from engram.log.base import Log
from engram.log.spans import CommandIds
from engram.log.trace import header_of
from engram.model.app import App, entity_of
from engram.model.effects import Place
from engram.model.position import Position
from engram.tracing import is_sampled, span_with_ids, tracer

_logger = structlog.get_logger()


class _Step(NamedTuple):
    """A command that was handled, and where it comes from; `parent` None is the log."""

    index: int  # type: ignore[assignment]  # a field, not tuple.index
    name: str
    key: str
    root: Position
    parent: Position | None


class HandlingSpans:
    """Handles records as the image does, and tells of it. What is replayed is not told again.

    The commands of a record are handled together, so all have the times of their record.
    """

    def __init__(self, made_by: Tracer, log: Log, app: App, shard: int) -> None:
        self._tracer = made_by
        self._ids = CommandIds(log)
        self._app = app
        self._shard = shard

    @classmethod
    def made(cls, log: Log, app: App, shard: int) -> Self | None:
        """None where nobody wants to know."""
        made_by = tracer()
        return None if made_by is None else cls(made_by, log, app, shard)

    def handle(self, image: Image, record: Record) -> Handled:
        """As `Image.handle`."""
        origins, began = dict(image.origins), time.time_ns()
        handled = image.handle(record)
        ended = time.time_ns()
        try:
            sent = Counter(message.origin[1] for message in handled.messages)
            for step in self._steps(record, handled, origins):
                self._tell(step, record, handled, sent, (began, ended))
        except EngramError as problem:  # the record is handled, whatever becomes of its spans
            _logger.warning("spans_not_told", partition=record.partition, offset=record.offset, problem=str(problem))
        return handled

    def _steps(self, record: Record, handled: Handled, origins: Mapping[int, Place]) -> Iterator[_Step]:
        for index, timer in handled.fired:
            scheduler = Position(record.partition, timer.offset, timer.index)
            root = Position.parse(timer.root) if timer.root else scheduler
            yield _Step(index, timer.name, timer.key, root, scheduler)
        header = header_of(record)
        if isinstance(header, CommandsHeader):
            for index in range(len(header.which)):
                if index not in handled.repeats:
                    root = Position(record.partition, record.offset, index)
                    yield _Step(index, _name(header, index), header.keys[index], root, None)
        elif isinstance(header, MessagesHeader):
            of = header.origin_partition
            for index, (offset, sender, number) in enumerate(header.origins):
                if (offset, sender, number) > origins.get(of, (-1, 0, 0)):
                    root = Position.parse(header.cause(index).root)
                    parent = Position(of, offset, sender)
                    yield _Step(index, _name(header, index), header.keys[index], root, parent)
        elif header is not None and 0 not in handled.failures:
            root = Position(record.partition, record.offset, 0)
            yield _Step(0, header.name, header.key or "", root, None)

    def _tell(self, step: _Step, record: Record, handled: Handled, sent: Counter[int], times: tuple[int, int]) -> None:
        position = Position(record.partition, record.offset, step.index)
        ids = self._ids.handled(step.root, position)
        if not is_sampled(self._tracer, ids.trace):
            return
        above = self._ids.logged(step.root) if step.parent is None else self._ids.handled(step.root, step.parent)
        command = self._app.commands.get(step.name)
        attributes = {
            "engram.app": self._app.name,
            "engram.shard": self._shard,
            "engram.position": str(position),
            "engram.root": str(step.root),
            "engram.command": step.name,
            "engram.entity": "" if command is None else str(entity_of(command).__engram__.name),
            "engram.key": step.key,
            "engram.messages": sent[step.index],
            "engram.outcome": _outcome(step, handled),
        }
        with span_with_ids(
            self._tracer,
            f"handle {step.name}",
            ids,
            parent=above.span,
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            span=times,
        ) as span:
            for event in handled.events:
                if event.index == step.index:
                    span.add_event(event.name, {"engram.key": event.key}, timestamp=times[1])
            problem = handled.failures.get(step.index)
            if problem is not None:
                span.record_exception(problem, timestamp=times[1])
                span.set_status(Status(StatusCode.ERROR, str(problem)))


def _name(header: BatchHeader, index: int) -> str:
    return header.types[header.which[index]][0]


def _outcome(step: _Step, handled: Handled) -> str:
    """A reply is waited for of clients' commands alone: of others it is known only that they have failed."""
    if step.index in handled.failures:
        return Verdict.QUARANTINED.value
    known = 0 <= step.index < len(handled.outcomes)
    return handled.outcomes[step.index].verdict.value if known else ""
