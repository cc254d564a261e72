"""An app whose commands are little programs: lists of steps that change a desk in every way that Python has.

The steps work on plain objects and on those of an image alike, so a plain twin tells what the image should hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields
from typing import Any, Literal, NamedTuple

from engram import App, Command, Context, Entity, Event, Part, Query, Rejected
from engram.codec.codec import Codec
from engram.codec.record import Envelope, Epoch, Kind, Origin, Record, encode_commands, encode_epoch, encode_messages
from engram.image.contents import EntityRow, Memory
from engram.image.dedupe import Window
from engram.image.image import Handled, Image
from engram.image.tracked import TrackedDict, TrackedList
from engram.model.effects import Message
from hypothesis import strategies as st
from pydantic import TypeAdapter

# More than the size up to which a dict is copied when a key leaves its middle.
MANY = 68


@dataclass(slots=True, kw_only=True)
class Card(Part):
    title: str = ""
    likes: int = 0
    tags: list[int] = field(default_factory=list)
    links: dict[int, int] = field(default_factory=dict)
    under: list[Card] = field(default_factory=list)


def _rows() -> list[list[int]]:
    return [[3, 1], [2]]


def _two_cards() -> list[Card]:
    return [Card(title="a", tags=[1, 2]), Card(title="b", links={1: 1, 2: 2}, under=[Card(title="c")])]


def _many() -> dict[int, int]:
    return {n: n for n in range(MANY)}


def _stock() -> dict[int, list[int]]:
    return {n: [n] for n in range(MANY)}


@dataclass(slots=True, kw_only=True)
class Board(Part):
    """The same fields as a desk, as a part."""

    count: int = 0
    numbers: list[int] = field(default_factory=list)
    rows: list[list[int]] = field(default_factory=_rows)
    cards: list[Card] = field(default_factory=_two_cards)
    many: dict[int, int] = field(default_factory=_many)
    stock: dict[int, list[int]] = field(default_factory=_stock)
    named: dict[int, Card] = field(default_factory=dict)
    top: Card | None = None


@dataclass(slots=True, kw_only=True)
class Desk(Entity, name="desk"):
    count: int = 0
    note: str = ""
    numbers: list[int] = field(default_factory=list)
    rows: list[list[int]] = field(default_factory=_rows)
    cards: list[Card] = field(default_factory=_two_cards)
    many: dict[int, int] = field(default_factory=_many)
    stock: dict[int, list[int]] = field(default_factory=_stock)
    named: dict[int, Card] = field(default_factory=dict)
    top: Card | None = None


class Step(NamedTuple):
    """One change. What the numbers mean is the step's business; `again` asks for a value that is there already."""

    what: str
    target: int = 0
    a: int = 0
    b: int = 0
    again: bool = False


def take(steps: Iterable[Step], desk: Any) -> None:
    """Takes the steps. One that cannot be taken is left out, as by a handler that catches the error."""
    for step in steps:
        try:
            _STEPS[step.what](desk, step)
        except (IndexError, KeyError, ValueError):
            continue


def _cards(desk: Any) -> list[Card]:
    first = [*desk.cards, *desk.named.values(), *([desk.top] if desk.top else [])]
    return [*first, *(inner for card in first for inner in card.under)]


def _lists(desk: Any) -> list[tuple[list[Any], str]]:
    """All lists of a desk, with what they hold."""
    cards = _cards(desk)
    return [
        (desk.numbers, "number"),
        (desk.rows, "row"),
        (desk.cards, "card"),
        *((row, "number") for row in desk.rows),
        *((row, "number") for row in list(desk.stock.values())[:2]),
        *((card.tags, "number") for card in cards),
        *((card.under, "new card") for card in cards),
    ]


def _dicts(desk: Any) -> list[tuple[dict[int, Any], str]]:
    """All dicts of a desk, with what they hold. The large ones come more than once, to be met more often."""
    large: list[tuple[dict[int, Any], str]] = [(desk.many, "number"), (desk.stock, "row")]
    return [*large, (desk.named, "card"), *large, *((card.links, "number") for card in _cards(desk))]


def _value(desk: Any, kind: str, step: Step) -> Any:
    """A new value of this kind, or one that the desk has already."""
    if kind == "number":
        return step.b
    there = {"row": [*desk.rows, *desk.stock.values()][:4], "card": _cards(desk), "new card": []}[kind]
    if step.again and there:
        return there[step.b % len(there)]
    return [step.b, step.a] if kind == "row" else Card(title=str(step.b), tags=[step.a], links={step.a: step.b})


def _on_list(change: Callable[[list[Any], Any, Step], object]) -> Callable[[Any, Step], None]:
    def step_on_list(desk: Any, step: Step) -> None:
        lists = _lists(desk)
        chosen, kind = lists[step.target % len(lists)]
        change(chosen, _value(desk, kind, step), step)

    return step_on_list


def _on_dict(change: Callable[[dict[int, Any], Any, Step], object]) -> Callable[[Any, Step], None]:
    def step_on_dict(desk: Any, step: Step) -> None:
        dicts = _dicts(desk)
        chosen, kind = dicts[step.target % len(dicts)]
        change(chosen, _value(desk, kind, step), step)

    return step_on_dict


def _on_card(change: Callable[[Card, list[Card], Step], object]) -> Callable[[Any, Step], None]:
    def step_on_card(desk: Any, step: Step) -> None:
        cards = _cards(desk)
        if cards:
            change(cards[step.target % len(cards)], cards, step)

    return step_on_card


def _a_key(held: dict[int, Any], step: Step) -> int:
    """A key that is there: the last one, the first one, or one between."""
    return list(held)[step.a % len(held)] if held else step.a


def _in_order(value: Any) -> Any:
    return value.title if isinstance(value, Card) else value


def _multiply(held: list[Any], step: Step) -> None:
    if len(held) < 20:
        held *= step.a % 3


def _add(held: list[Any], values: list[Any]) -> None:
    held += values


def _merge(held: dict[int, Any], values: dict[int, Any]) -> None:
    held |= values


def _nest(card: Card, other: Card) -> None:
    # A card under itself would have no end.
    if not other.under and card is not other:
        card.under.append(other)


def _assign(name: str, value: Callable[[Any, Step], Any]) -> Callable[[Any, Step], None]:
    return lambda desk, step: setattr(desk, name, value(desk, step))


def _swap(desk: Any, _step: Step) -> None:
    desk.numbers, desk.rows = [*map(len, desk.rows)], [desk.numbers, desk.numbers]


_STEPS: dict[str, Callable[[Any, Step], None]] = {
    "append": _on_list(lambda held, value, _: held.append(value)),
    "extend": _on_list(lambda held, value, _: held.extend([value, value])),
    "extend_by_itself": _on_list(lambda held, _, __: held.extend(held) if len(held) < 20 else None),
    "insert": _on_list(lambda held, value, s: held.insert(s.a, value)),
    "pop": _on_list(lambda held, _, __: held.pop()),
    "pop_at": _on_list(lambda held, _, s: held.pop(s.a)),
    "remove": _on_list(lambda held, _, s: held.remove(held[s.a])),
    "clear_list": _on_list(lambda held, _, __: held.clear()),
    "sort": _on_list(lambda held, _, s: held.sort(key=_in_order, reverse=s.again)),
    "reverse": _on_list(lambda held, _, __: held.reverse()),
    "set_at": _on_list(lambda held, value, s: held.__setitem__(s.a, value)),
    "set_slice": _on_list(lambda held, value, s: held.__setitem__(slice(s.a, s.b), [value, *held[:1]])),
    "set_stride": _on_list(lambda held, value, s: held.__setitem__(slice(s.a, None, 2), [value])),
    "delete_at": _on_list(lambda held, _, s: held.__delitem__(s.a)),
    "delete_slice": _on_list(lambda held, _, s: held.__delitem__(slice(s.a, s.b))),
    "delete_stride": _on_list(lambda held, _, s: held.__delitem__(slice(s.a, None, 2))),
    "add": _on_list(lambda held, value, _: _add(held, [value])),
    "multiply": _on_list(lambda held, _, s: _multiply(held, s)),
    "move": _on_list(lambda held, _, s: held.append(held.pop(s.a))),
    "set_key": _on_dict(lambda held, value, s: held.__setitem__(s.a, value)),
    "set_key_again": _on_dict(lambda held, value, s: held.__setitem__(_a_key(held, s), value)),
    "delete_key": _on_dict(lambda held, _, s: held.__delitem__(_a_key(held, s))),
    "delete_key_equal": _on_dict(lambda held, _, s: held.__delitem__(float(_a_key(held, s)))),
    "pop_key": _on_dict(lambda held, _, s: held.pop(_a_key(held, s))),
    "pop_missing": _on_dict(lambda held, _, s: held.pop(s.b, None)),
    "pop_item": _on_dict(lambda held, _, __: held.popitem()),
    "set_default": _on_dict(lambda held, value, s: held.setdefault(s.a, value)),
    "update": _on_dict(lambda held, value, s: held.update({s.a: value, s.b: value})),
    "merge": _on_dict(lambda held, value, s: _merge(held, {s.a: value})),
    "clear_dict": _on_dict(lambda held, _, __: held.clear()),
    "move_to_end": _on_dict(lambda held, _, s: held.__setitem__(key := _a_key(held, s), held.pop(key))),
    "insert_and_drop": _on_dict(lambda held, value, s: (held.__setitem__(99, value), held.popitem())),
    "like": _on_card(lambda card, _, s: setattr(card, "likes", s.a)),
    "new_tags": _on_card(lambda card, _, s: setattr(card, "tags", [s.a])),
    "share_tags": _on_card(lambda card, cards, s: setattr(card, "tags", cards[s.a % len(cards)].tags)),
    "add_tags": _on_card(lambda card, _, s: setattr(card, "tags", [*card.tags, s.a])),
    "new_links": _on_card(lambda card, _, s: setattr(card, "links", {s.a: s.b})),
    "share_links": _on_card(lambda card, cards, s: setattr(card, "links", cards[s.a % len(cards)].links)),
    "nest": _on_card(lambda card, cards, s: _nest(card, cards[s.a % len(cards)])),
    "count": _assign("count", lambda desk, s: desk.count + s.a),
    "assign_numbers": _assign("numbers", lambda desk, s: desk.rows[0] if s.again and desk.rows else [s.a, s.b]),
    "assign_rows": _assign("rows", lambda desk, s: [desk.numbers, [s.a]] if s.again else [[s.a], [s.b]]),
    "assign_cards": _assign("cards", lambda desk, s: [*_cards(desk)[:4], Card(title=str(s.a))]),
    "assign_many": _assign("many", lambda desk, s: {**desk.many, s.a: s.b}),
    "assign_top": _assign("top", lambda desk, s: None if s.b == 0 else _value(desk, "card", s)),
    "swap": _swap,
}

NUMBERS = st.integers(-4, 6)
STEPS = st.builds(Step, st.sampled_from(sorted(_STEPS)), st.integers(0, 12), NUMBERS, NUMBERS, st.booleans())
PROGRAMS = st.lists(STEPS, max_size=8)


# The app


class Noted(Event, name="noted"):
    text: str


class Work(Command[Desk, str], name="work"):
    """Takes the steps, then ends as asked. The reply is an id."""

    steps: tuple[Step, ...] = ()
    end: Literal["reply", "reject", "fail"] = "reply"
    tell: tuple[str, ...] = ()

    def handle(self, desk: Desk, ctx: Context) -> str:
        take(self.steps, desk)
        desk.note = f"{ctx.now.isoformat()} {ctx.random.random()}"
        for key in self.tell:
            ctx.send(key, Hear(text=ctx.new_id()))
            ctx.emit(Noted(text=key))
        match self.end:
            case "reject":
                raise Rejected("asked_to", "As asked.")
            case "fail":
                raise RuntimeError("as asked")
        return ctx.new_id()


class Hear(Command[Desk, None], name="hear"):
    text: str

    def handle(self, desk: Desk, ctx: Context) -> None:
        desk.cards.append(Card(title=self.text))
        del desk.cards[:-3]


class Count(Command[Desk, int], name="count"):
    """Counts up; the reply is the new number. The smallest thing that shows how often it was handled."""

    by: int = 1

    def handle(self, desk: Desk, ctx: Context) -> int:
        if self.by < 0:
            raise Rejected("negative", "Only up.")
        desk.count += self.by
        return desk.count


class Counted(Query[Desk, int], name="counted"):
    def answer(self, desk: Desk) -> int:
        return desk.count


app = App("workshop", commands=[Work, Hear, Count], queries=[Counted], events=[Noted])
CODEC = Codec(app)


# Records


class Sent(NamedTuple):
    """A command on its way, with the id that makes it this one."""

    key: str
    command: Command[Any, Any]
    session: str = "s"
    sequence: int = 0
    idempotency_key: str | None = None


def envelope(sent: Sent, codec: Codec = CODEC) -> Envelope:
    declared = sent.command.__engram__
    body = codec.encode_body(sent.command)
    return Envelope(
        declared.name or "", declared.version, sent.key, body, sent.session, sent.sequence, sent.idempotency_key
    )


def commands(image: Image, *sent: Sent, time: int = 0) -> Record:
    """The next record of the image's partition, with these commands."""
    payload = encode_commands([envelope(s, image.codec) for s in sent], "writer")
    return Record(image.partition, image.offset, Kind.COMMANDS, time, payload)


def messages(image: Image, *sent: tuple[Origin, str, Command[Any, Any]], time: int = 0, origin: int = 1) -> Record:
    """The next record of the image's partition, with these messages from another one."""
    batch = [
        Message(c.__engram__.name or "", c.__engram__.version, key, image.codec.encode_body(c), place)
        for place, key, c in sent
    ]
    return Record(image.partition, image.offset, Kind.MESSAGES, time, encode_messages(batch, origin))


def epoch(image: Image, *, time: int = 0) -> Record:
    """The next record of the image's partition, by a new owner."""
    payload = encode_epoch(Epoch(owner="owner", app_version=image.app.version))
    return Record(image.partition, image.offset, Kind.EPOCH, time, payload)


def handle(image: Image, *sent: Sent, time: int = 0) -> Handled:
    """Handles one record with these commands."""
    return image.handle(commands(image, *sent, time=time))


def replies(handled: Handled) -> list[str]:
    """The outcomes as text, verdict and body."""
    return [f"{o.verdict} {o.body.decode()}" for o in handled.outcomes]


# Copies and comparisons


def restored(rows: list[EntityRow], memory: Memory, *, partition: int = 0, window: Window | None = None) -> Image:
    """A new image from a snapshot's contents, which went through their written form."""
    image = Image(partition, CODEC, window=window)
    image.load(rows, Memory.model_validate_json(memory.model_dump_json()))
    return image


def whole_freeze(image: Image) -> tuple[list[EntityRow], Memory]:
    """All of an image at this moment."""
    freeze = image.begin_freeze()
    while freeze.advance(1000):
        pass
    image.end_freeze()
    return freeze.rows, freeze.memory


_BOARD = TypeAdapter(Board)


def shown(value: Any) -> bytes:
    """A board or desk as text: two are shown alike when their values and the order of their dicts are alike."""
    adapter: TypeAdapter[Any] = _BOARD if isinstance(value, Board) else TypeAdapter(type(value))
    return adapter.dump_json(value, warnings="error")


def apart(board: Board) -> Board:
    """A plain copy in which nothing is in two places, as after a restart."""
    return _BOARD.validate_json(shown(board))


def mutable_values(value: Any) -> Iterator[Any]:
    """Every list, dict and part in `value`, itself included."""
    match value:
        case list():
            yield value
            for element in value:
                yield from mutable_values(element)
        case dict():
            yield value
            for element in value.values():
                yield from mutable_values(element)
        case Part() | Entity():
            yield value
            for each in fields(value):
                yield from mutable_values(getattr(value, each.name))


def assert_all_is_tracked(value: Any, undo: object) -> None:
    """Every change of anything in `value` will be noted in `undo`, and nothing is in two places."""
    found = [held for held in mutable_values(value) if not isinstance(held, Entity)]
    assert len({id(held) for held in found}) == len(found), "something is in two places"
    for held in found:
        assert isinstance(held, TrackedList | TrackedDict | Part), f"{held!r} is not tracked"
        assert held._undo is undo, f"{held!r} does not belong to the image"
