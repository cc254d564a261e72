"""A recovered shard at work: new records, queries between them, snapshots beside them. Before: `replay`."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from engram.clock import Clock
from engram.errors import Corrupt, Denied, EngramError, Fenced, Misuse, Quarantined, Rejected, Unavailable
from engram.image.image import Handled, Image
from engram.log.base import Log
from engram.shard.look import look_into
from engram.shard.outbox import Outbox
from engram.shard.owned import Owned
from engram.shard.requests import (
    Answer,
    Ask,
    AskEffects,
    AskQuarantine,
    Await,
    EffectsReport,
    Incoming,
    Look,
    QuarantineReport,
    Question,
    Refusal,
    Replies,
    Response,
    Subscription,
)
from engram.shard.spans import HandlingSpans
from engram.shard.watched import Evaluate

# Between two looks at the requests: about this many commands, so that a query waits a few milliseconds at most.
_RECORDS_AT_ONCE = 256
_COMMANDS_AT_ONCE = 2000

_logger = structlog.get_logger()

Send = Callable[[bytes, Response], None]


def handle_new(owned: Owned, log: Log, outbox: Outbox, send: Send, spans: HandlingSpans | None = None) -> int:
    """Handles what is new in the partition, up to a bound; how much it was, records and commands. There may be more,
    unless it was nothing.

    The writers get their replies, and effects go to the outbox. Stops the partition at a record of a newer
    epoch, or one that cannot be decoded.
    """
    image = owned.image
    commands = 0
    owned.unsure = False
    try:
        if not owned.unread:
            owned.unread.extend(log.read(owned.partition, image.offset, limit=_RECORDS_AT_ONCE))
        while owned.unread and owned.unread[0].offset != owned.end and commands < _COMMANDS_AT_ONCE:
            owned.handling = record = owned.unread.popleft()
            handled = image.handle(record) if spans is None else spans.handle(image, record)
            owned.handling = None
            owned.check_epoch()
            outbox.add(handled)
            owned.sent.add(record.offset, handled, outbox.last_of)
            if owned.watched:
                owned.watched.after(handled, image.place, evaluation(image), send)
            if handled.failures:
                _report_failures(owned, record.offset, handled)
            if handled.outcomes and handled.writer:  # nobody waits for what came as a plain record
                send(handled.writer.encode(), Replies(owned.partition, record.offset, handled.outcomes))
            commands += len(handled.outcomes) + 1
    except (Corrupt, Fenced) as problem:
        owned.stop(problem)
        _logger.error("partition_stopped", partition=owned.partition, problem=str(problem))
        return 0
    except Unavailable as problem:
        _logger.warning("log_unavailable", partition=owned.partition, problem=str(problem))
        owned.unsure = True
        return 0
    return commands


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


def subscribe(incoming: Incoming, request: Subscription, owned: Owned, send: Send, now: int) -> None:
    """Answers as long as the partition is served; a gateway comes back when it hears of another owner."""
    if owned.state == "serving":
        image = owned.image
        owned.watched.subscribe(incoming.sender, request, image.place, evaluation(image), send, now=now)


def evaluation(image: Image) -> Evaluate:
    return lambda ask: _answer_look(ask, image) if isinstance(ask, Look) else _answer_query(ask, image)


class Questions:
    """What a shard is asked: answered from live state, or parked until the state has come far enough."""

    def __init__(self, send: Send, clock: Clock) -> None:
        self._send = send
        self._clock = clock
        self._parked: list[tuple[int, Incoming, Question]] = []  # with the time at which each is given up

    def ask(self, incoming: Incoming, ask: Question, owned: Owned) -> None:
        if owned.state in ("loading", "replaying"):
            self._send(incoming.sender, Refusal(ask.id, "recovering", f"Partition {ask.partition} is {owned.state}."))
        elif self._far_enough(ask, owned):
            self._send(incoming.sender, _answer(ask, owned))
        else:
            self._parked.append((self._clock() + ask.timeout_ms, incoming, ask))

    def answered(self, incoming: Incoming, owned: dict[int, Owned]) -> bool:
        """Answers a query or a look if that takes no more than the state that is there; whether it did."""
        ask = incoming.request
        if not isinstance(ask, Ask | Look):
            return False
        of = owned.get(ask.partition)
        if of is None or of.state != "serving" or (ask.at_least is not None and of.image.offset <= ask.at_least[0]):
            return False
        self._send(incoming.sender, evaluation(of.image)(ask))
        return True

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
                self._send(incoming.sender, _behind(ask, of.image.offset - 1))
            else:
                self._parked.append((deadline, incoming, ask))

    def next_deadline(self) -> int | None:
        return min((deadline for deadline, _, _ in self._parked), default=None)

    def _far_enough(self, ask: Question, owned: Owned) -> bool:
        if owned.state != "serving":
            return True
        if isinstance(ask, AskEffects):
            origins = owned.image.origins
            if any(of not in origins or origins[of] < last for of, _, last in ask.arrived):
                return False
        # Whole records are handled between two queries, so the offset alone decides.
        return ask.at_least is None or owned.image.offset > ask.at_least[0]


def _behind(ask: Question, at: int) -> Refusal:
    if ask.at_least is None:
        text = f"Partition {ask.partition} is at record {at}, and not all messages that were sent to it are handled."
        return Refusal(ask.id, "behind", text, at=at)
    asked_for = ask.at_least[0]
    lag = f"Partition {ask.partition} is at record {at}, and record {asked_for} was asked for: {asked_for - at} to go."
    return Refusal(ask.id, "behind", f"{lag} Ask again, or wait longer.", at=at)


def _answer(ask: Question, owned: Owned) -> Answer | Refusal:
    if owned.state != "serving":
        return Refusal(ask.id, owned.state, f"Partition {ask.partition} is {owned.state}. {owned.problem}")
    if isinstance(ask, AskQuarantine):
        return _answer_with(ask, owned.image, _quarantined(ask, owned).model_dump_json().encode())
    if isinstance(ask, AskEffects):
        return _answer_effects(ask, owned)
    return evaluation(owned.image)(ask)


def _answer_effects(ask: AskEffects, owned: Owned) -> Answer | Refusal:
    if ask.command is not None:
        found = owned.sent.by_command(*ask.command)
    else:
        sent = owned.sent.by_roots(ask.roots, ask.arrived)
        found = None if sent is None else (ask.roots, sent)
    if found is None:
        text = (
            f"Partition {ask.partition} does not remember any more what was sent: it is long ago, or has moved since."
        )
        return Refusal(ask.id, "forgotten", text)
    return _answer_with(ask, owned.image, EffectsReport(roots=found[0], sent=found[1]).model_dump_json().encode())


def _answer_query(ask: Ask, image: Image) -> Answer | Refusal:
    try:
        query = image.codec.decode_query(ask.query, ask.version, ask.body)
        body = image.ask(query, ask.key, ask.principal)
    except Rejected as problem:
        return Refusal(ask.id, "rejected", problem.text, problem.code)
    except Denied as problem:
        return Refusal(ask.id, "denied", str(problem))
    except Misuse as problem:
        return Refusal(ask.id, "misuse", str(problem))
    except EngramError as problem:
        return Refusal(ask.id, "failed", str(problem))
    except Exception as problem:
        _logger.exception("query_failed", query=ask.query, key=ask.key)
        return Refusal(ask.id, "failed", f"Query {ask.query} raised {type(problem).__name__}: {problem}")
    return _answer_with(ask, image, body)


def _answer_look(look: Look, image: Image) -> Answer | Refusal:
    try:
        return _answer_with(look, image, look_into(image, look))
    except Unavailable as problem:
        return Refusal(look.id, "building", str(problem))
    except Misuse as problem:
        return Refusal(look.id, "misuse", str(problem))
    except Quarantined as problem:
        return Refusal(look.id, "failed", str(problem))
    except Exception as problem:
        _logger.exception("look_failed", model=look.model, place=look.place)
        return Refusal(look.id, "failed", f"Read model {look.model} raised {type(problem).__name__}: {problem}")


def _answer_with(ask: Question, image: Image, body: bytes) -> Answer:
    return Answer(ask.id, ask.partition, *image.place, body)


def _quarantined(ask: AskQuarantine, owned: Owned) -> QuarantineReport:
    quarantine = owned.image.quarantine
    listed = quarantine.listed
    if ask.place is not None:
        rows = [row for row in listed if (row.offset, row.index) == ask.place]
    else:
        rows = [row._replace(body="", traceback="") for row in listed[: -ask.limit - 1 : -1]]
    return QuarantineReport(count=quarantine.count, listed=len(listed), rows=rows)
