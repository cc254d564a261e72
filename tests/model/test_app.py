"""What `App(...)` accepts, and how it refuses what is wrong."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
from engram import App, Command, Context, Entity, Event, Json, Misuse, Part, Query, upcaster
from pydantic import BaseModel
from typing_extensions import TypedDict


@dataclass(slots=True, kw_only=True)
class Counter(Entity, name="counter"):
    total: int = 0


class Add(Command[Counter, int], name="add"):
    amount: int = 1

    def handle(self, counter: Counter, ctx: Context) -> int:
        counter.total += self.amount
        return counter.total


class Total(Query[Counter, int], name="total"):
    def answer(self, counter: Counter) -> int:
        return counter.total


class Added(Event, name="added"):
    amount: int


@dataclass(slots=True, kw_only=True)
class Meter(Entity, name="meter", version=3):
    reading: int = 0


class Read(Command[Meter, None], name="read"):
    def handle(self, meter: Meter, ctx: Context) -> None:
        meter.reading += 1


@upcaster(Meter, from_version=1)
def first_step(old: Json) -> Json:
    return {**old, "reading": old["value"]}


@upcaster(Meter, from_version=2)
def second_step(old: Json) -> Json:
    return {"key": old["key"], "reading": old["reading"]}


def problems(name: str = "shop", **parts: Any) -> list[str]:
    """What `App(...)` says is wrong."""
    with pytest.raises(Misuse) as refused:
        App(name, **parts)
    head, *listed = str(refused.value).split("\n  - ")
    assert head == f"App {name!r} cannot start; to be put right:"
    return listed


def problems_of(annotation: Any, **default: Any) -> list[str]:
    """What `App(...)` says of an entity with one field of this type."""
    given = default or {"default": None}

    @dataclass(slots=True, kw_only=True)
    class Thing(Entity, name="thing"):
        held: annotation = field(**given)

    class Touch(Command[Thing, None], name="touch"):
        def handle(self, thing: Thing, ctx: Context) -> None: ...

    return problems(commands=[Touch])


def test_a_good_app_knows_its_parts_by_their_names():
    """An app lists its commands, queries and events by name, and the entities that these are for."""
    app = App(
        "shop", version=4, commands=[Add, Read], queries=[Total], events=[Added], upcasters=[first_step, second_step]
    )

    assert app.commands == {"add": Add, "read": Read}
    assert app.queries == {"total": Total}
    assert app.events == {"added": Added}
    assert app.entities == {"counter": Counter, "meter": Meter}
    assert repr(app) == "<App shop version 4: 2 commands, 1 queries>"


def test_all_problems_are_in_one_message():
    """A bad app is refused once, with everything that is wrong with it."""

    class Nameless(Command[Counter, None]):
        def handle(self, counter: Counter, ctx: Context) -> None: ...

    class Shouted(Query[Counter, int], name="TOTAL", version=0):
        def answer(self, counter: Counter) -> int:
            return counter.total

    listed = problems("Bad shop", version=0, commands=[Nameless, Read, int], queries=[Shouted])

    assert listed == [
        "the app is named 'Bad shop': use lower case letters, digits and _, starting with a letter",
        "the app has version 0: versions start at 1",
        "command Nameless has no name: write name=... in its class statement",
        "<class 'int'> is listed as command but is not a subclass of Command",
        "query Shouted is named 'TOTAL': use lower case letters, digits and _, starting with a letter, at most 64",
        "query Shouted has version 0: versions start at 1",
        "Meter is at version 3 but has no upcaster from 1 to 2, 2 to 3",
    ]


def test_no_commands():
    """An app without commands is refused: nothing could ever change."""
    assert problems(commands=[]) == ["the app has no commands, so nothing could ever change: list at least one"]


def test_two_commands_of_one_name():
    """A name stands for one command; the message has both classes."""

    class Sum(Command[Counter, int], name="add"):
        def handle(self, counter: Counter, ctx: Context) -> int:
            return counter.total

    assert problems(commands=[Add, Sum]) == ["command name 'add' is used by Add and by Sum"]


def test_two_entities_of_one_name():
    """A name stands for one entity type, also when the types are only named by their commands."""

    @dataclass(slots=True, kw_only=True)
    class Abacus(Entity, name="counter"):
        beads: int = 0

    class Push(Command[Abacus, None], name="push"):
        def handle(self, abacus: Abacus, ctx: Context) -> None: ...

    assert problems(commands=[Add, Push]) == ["entity name 'counter' is used by Counter and by Abacus"]


def test_a_class_may_be_listed_twice():
    """Listing the same class twice says nothing new, and is no problem."""
    assert App("shop", commands=[Add, Add]).commands == {"add": Add}


@pytest.mark.parametrize("name", ["", "Follow", "1st", "_x", "a-b", "a b", "ä", "a" * 65, "a\n"])
def test_ill_formed_names(name):
    """Names are lower case letters, digits and _, start with a letter, and have at most 64 characters."""

    class Odd(Command[Counter, None], name=name):
        def handle(self, counter: Counter, ctx: Context) -> None: ...

    (problem,) = problems(commands=[Odd])

    assert problem.startswith(f"command Odd is named {name!r}: use lower case letters")


def test_a_subclass_does_not_inherit_its_name():
    """A name is declared by the class itself, so a subclass without one has none."""

    class More(Add):
        pass

    assert problems(commands=[More]) == ["command More has no name: write name=... in its class statement"]


def test_an_entity_without_a_name():
    """An entity needs a name as well, for its snapshots."""

    @dataclass(slots=True, kw_only=True)
    class Thing(Entity):
        held: int = 0

    class Touch(Command[Thing, None], name="touch"):
        def handle(self, thing: Thing, ctx: Context) -> None: ...

    assert problems(commands=[Touch]) == ["entity Thing has no name: write name=... in its class statement"]


def test_a_gap_between_upcasters():
    """Every version below the declared one needs its step."""
    assert problems(commands=[Read], upcasters=[second_step]) == [
        "Meter is at version 3 but has no upcaster from 1 to 2"
    ]


def test_two_upcasters_from_one_version():
    """Which of two steps to take would be a guess."""

    @upcaster(Meter, from_version=1)
    def another(old: Json) -> Json:
        return old

    assert problems(commands=[Read], upcasters=[first_step, second_step, another]) == [
        "Meter has two upcasters from version 1"
    ]


def test_an_upcaster_of_another_app():
    """An upcaster must be of a type that the app has."""
    assert problems(commands=[Add], upcasters=[first_step]) == [
        "the upcaster first_step is for Meter, which this app does not have"
    ]


@pytest.mark.parametrize("version", [0, 3, 4])
def test_an_upcaster_from_a_version_that_never_was(version):
    """An upcaster starts at a version between 1 and the last but one."""

    @upcaster(Meter, from_version=version)
    def stray(old: Json) -> Json:
        return old

    assert problems(commands=[Read], upcasters=[first_step, second_step, stray]) == [
        f"the upcaster stray starts from version {version} of Meter, which is at version 3"
    ]


def test_upcasters_run_in_the_order_of_versions():
    """However they are listed, steps run from the old version to the new one, and only those that are needed."""
    app = App("shop", commands=[Read], upcasters=[second_step, first_step])

    assert app.upcast(Meter, 1, {"key": "m", "value": 7}) == {"key": "m", "reading": 7}
    assert app.upcast(Meter, 2, {"key": "m", "reading": 7, "gone": 1}) == {"key": "m", "reading": 7}
    assert app.upcast(Meter, 3, {"key": "m"}) == {"key": "m"}


def test_an_entity_that_is_not_a_slotted_dataclass():
    """A plain class, and a dataclass without slots, are refused: attributes could appear that nobody encodes."""

    class Plain(Entity, name="plain"):
        pass

    @dataclass(kw_only=True)
    class Loose(Entity, name="loose"):
        held: int = 0

    class TouchPlain(Command[Plain, None], name="touch_plain"):
        def handle(self, thing: Plain, ctx: Context) -> None: ...

    class TouchLoose(Command[Loose, None], name="touch_loose"):
        def handle(self, thing: Loose, ctx: Context) -> None: ...

    hint = "is not a slotted dataclass: put @dataclass(slots=True, kw_only=True) above it"
    assert problems(commands=[TouchPlain, TouchLoose]) == [f"entity Plain {hint}", f"entity Loose {hint}"]


def test_a_field_without_a_default():
    """A new entity is made from its key alone, so every other field needs a default."""

    @dataclass(slots=True, kw_only=True)
    class Thing(Entity, name="thing"):
        held: int

    class Touch(Command[Thing, None], name="touch"):
        def handle(self, thing: Thing, ctx: Context) -> None: ...

    assert problems(commands=[Touch]) == [
        "entity Thing: field held needs a default, for the first command of a new key"
    ]


@pytest.mark.parametrize("annotation", [set[str], frozenset[int], set, dict[str, set[str]], list[frozenset[str]]])
def test_sets_in_state(annotation):
    """Sets are refused at any depth: their order differs from process to process."""
    (problem,) = problems_of(annotation)

    assert problem.startswith("entity Thing: field held: ")
    assert "iterates in no fixed order: use dict[..., None] or a sorted list" in problem


class Loose(BaseModel):
    held: int = 0


@dataclass
class Open:
    held: int = 0


@dataclass
class Unslotted(Part):
    held: int = 0


@dataclass(frozen=True)
class Half:
    held: list[int]


@pytest.mark.parametrize(
    ("annotation", "why"),
    [
        (Loose, "Loose is a mutable pydantic model: make it frozen, or a Part"),
        (list[Open], "Open is a mutable dataclass: derive it from engram.Part, or freeze it"),
        (dict[str, Unslotted], "Unslotted is a Part but not @dataclass(slots=True)"),
        (Half, "Half.held of a frozen type can change in place: use a tuple"),
        (list, "list says not what it holds: write list[str], dict[str, int], ..."),
        (dict, "dict says not what it holds: write list[str], dict[str, int], ..."),
        (tuple[list[int], ...], "a tuple cannot hold list[int], which changes in place: use a list, or a Part"),
        (bytearray, "bytearray is not a type that can be kept: "),
        (Any, "Any is not a type that can be kept: "),
    ],
)
def test_types_that_cannot_be_state(annotation, why):
    """Values that change in place unseen, or that nobody can encode, are refused with the way out."""
    (problem,) = problems_of(annotation)

    assert problem.startswith(f"entity Thing: field held: {why}")


@pytest.mark.parametrize("key", [float, bytes, tuple[int, int], str | int, Any])
def test_dict_keys_that_do_not_come_back_from_json(key):
    """A dict's keys must have one text form that leads back to them."""
    (problem,) = problems_of(dict[key, int])

    assert problem.startswith("entity Thing: field held: a dict's keys must be str, int, date, datetime, UUID")


def test_an_annotation_that_cannot_be_resolved():
    """A name that means nothing is the app's problem, in the entity as in its parts."""

    @dataclass(slots=True, kw_only=True)
    class Page(Part):
        held: "Nowhere" = 0  # noqa: F821 - the point

    (in_entity,) = problems_of("Nowhere")
    (in_part,) = problems_of(list[Page])

    assert in_entity == "entity Thing: its annotations cannot be resolved: name 'Nowhere' is not defined"
    assert in_part == (
        "entity Thing: field held: an annotation of its type cannot be resolved: name 'Nowhere' is not defined"
    )


class Tagged(BaseModel, frozen=True):
    tags: frozenset[str]


class Pair(NamedTuple):
    tags: set[str]


class Sheet(TypedDict):
    tags: set[str]


@dataclass(frozen=True)
class Leaf:
    tags: set[str]


@pytest.mark.parametrize("reply", [set[str], list[set[str]], Tagged, list[Pair], dict[str, Sheet], Leaf | None])
def test_sets_in_a_reply(reply):
    """A reply is kept for whoever asks again, so it must read the same on every replay: no sets, at any depth."""

    class Ask(Command[Counter, reply], name="ask"):
        def handle(self, counter: Counter, ctx: Context): ...

    (problem,) = problems(commands=[Ask])

    assert problem.startswith("Ask: its result: ")
    assert problem.endswith("has no fixed order: use a list or a tuple")


def test_sets_in_the_fields_of_commands_queries_and_events():
    """What is logged, asked or let out holds no sets either."""

    class Tag(Command[Counter, None], name="tag"):
        tags: set[str]

        def handle(self, counter: Counter, ctx: Context) -> None: ...

    class Having(Query[Counter, int], name="having"):
        tags: list[frozenset[str]]

        def answer(self, counter: Counter) -> int:
            return 0

    class Tagging(Event, name="tagging"):
        sheet: Sheet

    listed = problems(commands=[Tag], queries=[Having], events=[Tagging])

    assert [problem.split(":")[:2] for problem in listed] == [
        ["Tag", " field tags"],
        ["Having", " field tags"],
        ["Tagging", " field sheet"],
    ]


def test_a_reply_that_cannot_be_encoded():
    """A type that pydantic knows nothing of is refused at start, not at the first reply."""

    class Odd: ...

    class Ask(Command[Counter, Odd], name="ask"):
        def handle(self, counter: Counter, ctx: Context) -> Odd: ...

    (problem,) = problems(commands=[Ask])

    assert problem.startswith("Ask: its result: ")
    assert "Odd'> cannot be encoded: " in problem


def test_a_command_without_handle_and_a_query_without_answer():
    """A class that misses its one method is refused, with the method's name."""

    class Idle(Command[Counter, None], name="idle"):
        pass

    class Mute(Query[Counter, int], name="mute"):
        pass

    assert problems(commands=[Idle], queries=[Mute]) == ["Idle does not define handle", "Mute does not define answer"]


def test_a_command_that_does_not_say_its_types():
    """Without the types between the brackets nobody knows which entity a command is for."""

    class Vague(Command, name="vague"):
        def handle(self, counter: Any, ctx: Context) -> None: ...

    class Unclear(Query, name="unclear"):
        def answer(self, counter: Any) -> None: ...

    class Astray(Command[int, None], name="astray"):
        def handle(self, counter: Any, ctx: Context) -> None: ...

    assert problems(commands=[Vague, Astray], queries=[Unclear]) == [
        "Vague does not say its types: derive it from Command[SomeEntity, SomeResult]",
        "Astray does not say its types: derive it from Command[SomeEntity, SomeResult]",
        "Unclear does not say its types: derive it from Query[SomeEntity, SomeResult]",
    ]


def test_things_listed_in_the_wrong_place():
    """A query among the commands, or an instance instead of a class, is named."""
    listed = problems(commands=[Add, Total], events=[Added(amount=1)])

    assert listed == [
        f"{Total!r} is listed as command but is not a subclass of Command",
        "Added(amount=1) is listed as event but is not a subclass of Event",
    ]
