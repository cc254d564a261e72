"""An app that has one of everything that can be encoded, and types with a history."""

from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import IntEnum, StrEnum
from typing import NamedTuple
from uuid import UUID

from engram import App, Command, Context, Entity, Event, Json, Part, Query, upcaster
from pydantic import BaseModel, Field


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Rank(IntEnum):
    FIRST = 1
    SECOND = 2


class Point(NamedTuple):
    x: float
    label: str


@dataclass(frozen=True)
class Price:
    amount: Decimal
    seal: bytes


class Sticker(BaseModel, frozen=True):
    text: str
    colour: Colour


@dataclass(slots=True, kw_only=True)
class Slip(Part):
    text: str = ""
    marks: list[float] = field(default_factory=list)
    inner: "list[Slip]" = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Box(Entity, name="box"):
    flag: bool = False
    number: int = 0
    ratio: float = 0.0
    text: str = ""
    blob: bytes = b""
    moment: datetime | None = None
    day: date | None = None
    clock: time | None = None
    span: timedelta = timedelta()
    amount: Decimal = Decimal(0)
    serial: UUID | None = None
    colour: Colour = Colour.RED
    pair: tuple[int, str] = (0, "")
    point: Point | None = None
    price: Price | None = None
    sticker: Sticker | None = None
    floats: list[float] = field(default_factory=list)
    blobs: dict[str, bytes] = field(default_factory=dict)
    by_number: dict[int, str] = field(default_factory=dict)
    by_day: dict[date, int] = field(default_factory=dict)
    by_moment: dict[datetime, int] = field(default_factory=dict)
    by_serial: dict[UUID, int] = field(default_factory=dict)
    by_colour: dict[Colour, int] = field(default_factory=dict)
    by_rank: dict[Rank, int] = field(default_factory=dict)
    slips: list[Slip] = field(default_factory=list)
    named: dict[str, Slip] = field(default_factory=dict)
    rows: list[list[int]] = field(default_factory=list)


class Pack(Command[Box, int], name="pack"):
    number: int = 0
    ratio: float = 0.0
    text: str = ""
    blob: bytes = b""
    moment: datetime | None = None
    span: timedelta = timedelta()
    amount: Decimal = Decimal(0)
    serial: UUID | None = None
    colour: Colour = Colour.RED
    points: tuple[Point, ...] = ()
    price: Price | None = None
    blobs: dict[str, bytes] = Field(default_factory=dict)
    floats: tuple[float, ...] = ()

    def handle(self, box: Box, ctx: Context) -> int:
        return self.number


class Measure(Command[Box, tuple[float, bytes]], name="measure"):
    """Has a field whose name in JSON is a word of Python."""

    from_: str = Field(alias="from")

    def handle(self, box: Box, ctx: Context) -> tuple[float, bytes]:
        return box.ratio, box.blob


class Seal(Command[Box, None], name="seal"):
    def handle(self, box: Box, ctx: Context) -> None: ...


class Weigh(Command[Box, Sticker], name="weigh", version=3):
    """Version 1 had `kilos`, version 2 `grams`, version 3 has `grams` and `scale`."""

    grams: int
    scale: str

    def handle(self, box: Box, ctx: Context) -> Sticker:
        return Sticker(text=str(self.grams), colour=Colour.BLUE)


@upcaster(Weigh, from_version=1)
def kilos_became_grams(old: Json) -> Json:
    return {"grams": old["kilos"] * 1000}


@upcaster(Weigh, from_version=2)
def scales_got_names(old: Json) -> Json:
    return {**old, "scale": "old"}


@dataclass(slots=True, kw_only=True)
class Shelf(Entity, name="shelf", version=2):
    boxes: list[str] = field(default_factory=list)


@upcaster(Shelf, from_version=1)
def one_box_became_many(old: Json) -> Json:
    return {"key": old["key"], "boxes": [old["box"]] if old["box"] else []}


class Put(Command[Shelf, None], name="put"):
    box: str

    def handle(self, shelf: Shelf, ctx: Context) -> None:
        shelf.boxes.append(self.box)


class Boxes(Query[Shelf, list[str]], name="boxes", version=2):
    newest: bool

    def answer(self, shelf: Shelf) -> list[str]:
        return shelf.boxes


@upcaster(Boxes, from_version=1)
def order_was_added(old: Json) -> Json:
    return {"newest": False}


class Sealed(Event, name="sealed"):
    box: str
    at: datetime


app = App(
    "shop",
    commands=[Pack, Measure, Seal, Weigh, Put],
    queries=[Boxes],
    events=[Sealed],
    upcasters=[kilos_became_grams, scales_got_names, one_box_became_many, order_was_added],
)
