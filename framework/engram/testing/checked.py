"""An image under observation: whatever a record touches is checked at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from engram.codec.codec import Codec, Commands, Messages
from engram.codec.record import Kind, Record
from engram.errors import Corrupt
from engram.image.image import Handled, Image
from engram.image.outcome import Verdict
from engram.model.app import entity_of
from engram.model.command import Command
from engram.model.context import Means, Outgoing
from engram.model.entity import Entity
from engram.model.nested import written_version
from engram.model.read_model import source_of
from engram.model.version import Version
from engram.shard.determinism.guard import DeterminismGuard
from engram.shard.determinism.outside import Touch
from engram.shard.search import FtsIndex

B = TypeVar("B")
Rows = dict[tuple[str, str], bytes]
Named = list[tuple[Command[Any, Any], str]]


class CheckedImage:
    """A partition's image, and a twin that handles the same records for itself. After each record:

    - every entity that changed comes back from its encoded form as it was, and so do replies, messages, events;
    - only entities that the record names have changed, and none if its command was refused;
    - the twin has come to the same, in state, replies and effects;
    - no handler has touched anything outside: the clock, chance, the environment, files, and so on;
    - read models have the rows of every entity that changed, and the same rows from its copy.

    What does not hold is an `AssertionError` that names the command. Handlers therefore run twice.
    """

    def __init__(self, partition: int, codec: Codec) -> None:
        self._codec = codec
        guard = DeterminismGuard(codec.app, self._note_touch, closely=True)
        self.image = Image(partition, codec, observe=self._watch_effects, around=guard.around, new_text_index=FtsIndex)
        self._twin = Image(partition, codec)
        self.places: dict[str, dict[str, None]] = {name: {} for name in codec.app.read_models}  # that ever had rows
        self._rows: Rows = {}
        self._touches: list[tuple[type[Command[Any, Any]], Touch]] = []
        self._changed: list[tuple[str, Any, Any]] = []  # effects that do not come back: how, which, and as what

    def handle(self, record: Record) -> Handled:
        named = self._named(record)
        told = " and ".join(tell(command, key) for command, key in named)
        self._changed.clear()
        self._touches.clear()
        handled = self.image.handle(record)
        for cls, touch in self._touches:
            raise AssertionError(f"{told} is not deterministic: {cls.__name__} {touch}.")
        self._check_replies([command for command, _ in named], handled, told)
        for how, effect, back in self._changed:
            raise AssertionError(
                f"{effect!r}, {how} by {told}, does not come back from the log as it was: it became {back!r}."
            )
        self._check_read_models(told)
        self._check_entities(named, handled, told)
        self._check_twin(record, handled, told)
        return handled

    def _named(self, record: Record) -> Named:
        """The commands that the record has handled, and their keys; for a tick, those of the timers."""
        if record.kind is Kind.TICK:
            due = sorted(timer for timer in self.image.timers.all() if timer.due <= record.time)
            return [(self._codec.decode_command(t.name, t.version, t.body.encode()), t.key) for t in due]
        content = self._codec.decode_record(record)
        assert isinstance(content, Commands | Messages)
        return list(zip(content.commands, content.header.keys, strict=True))

    def _note_touch(self, cls: type[Command[Any, Any]], touch: Touch) -> None:
        self._touches.append((cls, touch))

    def _check_replies(self, commands: list[Command[Any, Any]], handled: Handled, told: str) -> None:
        for command, outcome in zip(commands, handled.outcomes, strict=False):  # messages have no replies
            if outcome.verdict is Verdict.REPLY:
                check_result(self._codec, type(command), outcome.body, f"The reply of {told}")

    def _watch_effects(self, means: Means) -> Means:
        """Has every command and event compared with what it is encoded to, at the moment that it leaves a handler."""
        return means._replace(
            commands=self._watched("sent", means.commands, self._codec.decode_command),
            events=self._watched("emitted", means.events, self._codec.decode_event),
        )

    def _watched(
        self, how: str, leaving: dict[type[Any], Outgoing], decode: Callable[[str, Version, bytes], Any]
    ) -> dict[type[Any], Outgoing]:
        def encode(outgoing: Outgoing, effect: Any) -> bytes:
            body = outgoing.encode(effect)
            back = decode(outgoing.name, outgoing.version, body)
            if not same(back, effect):
                self._changed.append((how, effect, back))
            return body

        return {cls: outgoing._replace(encode=partial(encode, outgoing)) for cls, outgoing in leaving.items()}

    def _check_entities(self, commands: Named, handled: Handled, told: str) -> None:
        rows = self._encode(self.image, told)
        refused = [outcome.verdict is not Verdict.REPLY for outcome in handled.outcomes]
        named = {
            (entity_of(type(command)).__engram__.name, key)
            for index, (command, key) in enumerate(commands)
            if index >= len(refused) or not refused[index]
        }
        for (name, key), state in rows.items():
            if state == self._rows.get((name, key)):
                continue
            if (name, key) not in named:
                how = "was refused, and yet" if refused and all(refused) else "is not for it, and yet"
                raise AssertionError(
                    f"{told} {how} {name} {key!r} has changed: {_text(self._rows.get((name, key)))} became "
                    f"{_text(state)}."
                )
            self._check_state(self.image.entities[name][key], state, told)
        self._rows = rows

    def _check_state(self, entity: Entity, state: bytes, told: str) -> None:
        what = f"After {told}, {type(entity).__name__} {entity.key!r}"
        name = entity.__engram__.name or ""
        back = _back(what, self._codec.decode_entity, name, self._codec.version_of(type(entity)), state)
        if not same(back, entity) or self._codec.encode_entity(back) != state:
            raise AssertionError(
                f"{what} does not come back from a snapshot as it was: {entity!r} became {back!r}. "
                "Does a field hold a value that is not of its declared type?"
            )
        self._check_rows(entity, back, told)

    def _check_rows(self, entity: Entity, back: Entity, told: str) -> None:
        for name, cls in self._codec.app.read_models.items():
            if source_of(cls) is not type(entity):
                continue
            rows, again = list(cls().rows(entity)), list(cls().rows(back))
            if not same(rows, again):
                raise AssertionError(
                    f"After {told}, read model {name} has other rows of a copy of {entity.key!r}: {again!r} instead "
                    f"of {rows!r}. Rows may depend on nothing but the entity."
                )
            self.places[name].update(dict.fromkeys(row[0] for row in rows))
            codec = self._codec.rows[name]
            copies = codec.decode(codec.encode(rows))
            if not same(copies, rows):
                raise AssertionError(
                    f"After {told}, rows of {entity.key!r} in read model {name} do not come back as they were: "
                    f"{rows!r} became {copies!r}. Are they of the declared type?"
                )

    def _check_read_models(self, told: str) -> None:
        states = [] if self.image.read_models is None else self.image.read_models.states()
        for state in states:
            if state.problem:
                raise AssertionError(f"{told} broke a read model. {state.problem}")

    def _check_twin(self, record: Record, handled: Handled, told: str) -> None:
        again = self._twin.handle(record)
        difference = None
        for place, state in self._encode(self._twin, told).items():
            if state != self._rows.get(place):
                difference = f"{place[0]} {place[1]!r} is {_text(state)} instead of {_text(self._rows.get(place))}"
        if not same(again.outcomes, handled.outcomes):
            difference = f"the outcome is {again.outcomes} instead of {handled.outcomes}"
        elif not same((again.messages, again.events), (handled.messages, handled.events)):
            difference = "it sends or emits something else"
        elif difference is None and self._twin.digest() != self.image.digest():
            difference = "the digest is another"
        if difference is not None:
            raise AssertionError(
                f"{told} is not deterministic. Handled again from the same record, {difference}. A handler may "
                "depend on nothing but its command, its entity and ctx: use ctx.now, ctx.new_id() and ctx.random."
            )

    def _encode(self, image: Image, told: str) -> Rows:
        rows: Rows = {}
        for name, entities in image.entities.items():
            for key, entity in entities.items():
                try:
                    rows[name, key] = self._codec.encode_entity(entity)
                except ValueError as problem:
                    raise AssertionError(
                        f"After {told}, {type(entity).__name__} {key!r} cannot be encoded: {problem}"
                    ) from problem
        return rows


def tell(command: Command[Any, Any], key: str) -> str:
    return f"{command!r} for {key!r}"


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal. By their text if need be: NaN is not equal to itself."""
    return bool(one == other) or repr(one) == repr(other)


def check_boundary(body: bytes, original: B, decode: Callable[[str, Version, bytes], Any], what: str) -> None:
    """Raises `AssertionError` unless a command, query or event comes back from its encoded form as it was."""
    declared = type(original).__engram__  # type: ignore[attr-defined]  # every boundary has it
    back = _back(what, decode, declared.name or "", written_version(type(original)), body)
    if not same(back, original):
        raise AssertionError(f"{what} does not come back from the log as it was: it became {back!r}.")


def check_result(codec: Codec, of: type[Any], body: bytes, what: str) -> Any:
    """A reply or answer as its receiver sees it; raises `AssertionError` unless it is what was given."""
    back = _back(what, codec.decode_result, of, body)
    if codec.result_encoder(of)(back) != body:
        raise AssertionError(f"{what} does not come back as it was: {body.decode()} became {back!r}.")
    return back


def _back(what: str, decode: Callable[..., Any], *encoded: Any) -> Any:
    try:
        return decode(*encoded)
    except (Corrupt, ValueError) as problem:
        raise AssertionError(f"{what} cannot be decoded again: {problem}") from problem


def _text(state: bytes | None) -> str:
    return "nothing" if state is None else state.decode()
