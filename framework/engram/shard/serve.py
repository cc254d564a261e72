"""A recovered shard at work: new records, queries between them, snapshots beside them. Before: `replay`."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from engram.clock import Clock
from engram.errors import Corrupt, EngramError, Fenced, Misuse, Rejected, Unavailable
from engram.image.image import Handled
from engram.log.base import Log
from engram.shard.outbox import Outbox
from engram.shard.owned import Owned
from engram.shard.requests import Answer, Ask, Await, Incoming, Refusal, Replies, Response

# Between two looks at the requests: about this many commands, so that a query waits a few milliseconds at most.
_RECORDS_AT_ONCE = 256
_COMMANDS_AT_ONCE = 2000

_logger = structlog.get_logger()

Send = Callable[[bytes, Response], None]


def handle_new(owned: Owned, log: Log, outbox: Outbox, send: Send) -> bool:
    """Handles what is new in the partition, up to a bound. True when there may be more.

    The writers get their replies, and effects go to the outbox. Stops the partition at a record of a newer
    epoch, or one that cannot be decoded.
    """
    image = owned.image
    commands = 0
    try:
        if not owned.unread:
            owned.unread.extend(log.read(owned.partition, image.offset, limit=_RECORDS_AT_ONCE))
        while owned.unread and commands < _COMMANDS_AT_ONCE:
            record = owned.unread.popleft()
            handled = image.handle(record)
            if image.epoch != owned.epoch:
                raise Fenced(f"A newer owner has partition {owned.partition} since record {image.epoch}.")
            outbox.add(handled, image)
            if handled.failures:
                _report_failures(owned, record.offset, handled)
            if handled.outcomes and handled.writer:  # nobody waits for what came as a plain record
                send(handled.writer.encode(), Replies(owned.partition, record.offset, handled.outcomes))
            commands += len(handled.outcomes) + 1
    except (Corrupt, Fenced) as problem:
        owned.stop(problem)
        _logger.error("partition_stopped", partition=owned.partition, problem=str(problem))
        return False
    except Unavailable as problem:
        _logger.warning("log_unavailable", partition=owned.partition, problem=str(problem))
        return False
    return commands > 0


def _report_failures(owned: Owned, offset: int, handled: Handled) -> None:
    for index, problem in handled.failures.items():
        _logger.error(
            "command_quarantined",
            position=f"{owned.partition}:{offset}.{index}",
            exc_info=(type(problem), problem, problem.__traceback__),
        )


def answer_await(request: Await, owned: Owned) -> Replies | None:
    """The outcomes asked for, as far as they are known."""
    found = [(index, owned.image.recall(session, sequence)) for index, session, sequence in request.commands]
    known = [(index, outcome) for index, outcome in found if outcome is not None]
    if not known:
        return None
    return Replies(request.partition, request.offset, [outcome for _, outcome in known], [index for index, _ in known])


class Questions:
    """The queries of a shard: answered from live state, or parked until the state has come far enough."""

    def __init__(self, send: Send, clock: Clock) -> None:
        self._send = send
        self._clock = clock
        self._parked: list[tuple[int, Incoming, Ask]] = []  # with the time at which each is given up

    def ask(self, incoming: Incoming, ask: Ask, owned: Owned) -> None:
        if owned.state in ("loading", "replaying"):
            self._send(incoming.sender, Refusal(ask.id, "recovering", f"Partition {ask.partition} is {owned.state}."))
        elif self._far_enough(ask, owned):
            self._send(incoming.sender, _answer(ask, owned))
        else:
            self._parked.append((self._clock() + ask.timeout_ms, incoming, ask))

    def look_again(self, owned: dict[int, Owned]) -> None:
        """Answers what can be answered now, and gives up what is overdue."""
        if not self._parked:
            return
        now = self._clock()
        parked, self._parked = self._parked, []
        for deadline, incoming, ask in parked:
            of = owned[ask.partition]
            if self._far_enough(ask, of):
                self._send(incoming.sender, _answer(ask, of))
            elif now >= deadline:
                text = f"Partition {ask.partition} is at record {of.image.offset}, {_wanted(ask)} was asked for."
                self._send(incoming.sender, Refusal(ask.id, "behind", text))
            else:
                self._parked.append((deadline, incoming, ask))

    def next_deadline(self) -> int | None:
        return min((deadline for deadline, _, _ in self._parked), default=None)

    def _far_enough(self, ask: Ask, owned: Owned) -> bool:
        # Whole records are handled between two queries, so the offset alone decides.
        return owned.state != "serving" or ask.at_least is None or owned.image.offset > ask.at_least[0]


def _wanted(ask: Ask) -> str:
    assert ask.at_least is not None
    return f"{ask.at_least[0]}.{ask.at_least[1]}"


def _answer(ask: Ask, owned: Owned) -> Answer | Refusal:
    image = owned.image
    if owned.state != "serving":
        return Refusal(ask.id, owned.state, f"Partition {ask.partition} is {owned.state}. {owned.problem}")
    try:
        query = image.codec.decode_query(ask.query, ask.version, ask.body)
        body = image.ask(query, ask.key)
    except Rejected as problem:
        return Refusal(ask.id, "rejected", problem.text, problem.code)
    except Misuse as problem:
        return Refusal(ask.id, "misuse", str(problem))
    except EngramError as problem:
        return Refusal(ask.id, "failed", str(problem))
    except Exception as problem:
        _logger.exception("query_failed", query=ask.query, key=ask.key)
        return Refusal(ask.id, "failed", f"Query {ask.query} raised {type(problem).__name__}: {problem}")
    last = image.offset - 1
    return Answer(ask.id, ask.partition, last, image.last_index, body)
