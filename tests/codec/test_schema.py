"""The schema of an app: what counts as its shape, what is told of a change, and what is drafted for it."""

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from enum import StrEnum
from types import new_class
from typing import Annotated, Any, NamedTuple, NewType, TypedDict
from uuid import UUID, uuid4

import pytest
from engram import App, Command, Context, Entity, Event, Misuse, Query, upcaster, value
from engram.codec.check import Finding, Held, check
from engram.codec.draft import draft, find_type
from engram.codec.schema import Schema, TypeSchema, read_schema, schema_of, write_schema
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import AwareDatetime, Field

from tests.codec.shop import app as shop
from tests.codec.wallets import app as wallets

_REQUIRED = object()


@dataclass(slots=True, kw_only=True)
class Thing(Entity, name="thing"):
    number: int = 0


class Touch(Command[Thing, None], name="touch"):
    def handle(self, thing: Thing, ctx: Context) -> None: ...


def event(fields: dict[str, Any], *, name: str = "happened", version: int = 1) -> Any:
    """An event with fields: a type each, or a type and a default."""

    def fill(namespace: dict[str, Any]) -> None:
        pairs = {name: tp if isinstance(tp, tuple) else (tp, _REQUIRED) for name, tp in fields.items()}
        annotations = {name: tp for name, (tp, _) in pairs.items()}
        namespace |= {"__module__": __name__, "__annotations__": annotations}
        namespace |= {name: default for name, (_, default) in pairs.items() if default is not _REQUIRED}

    return new_class("Happened", (Event,), {"name": name, "version": version}, fill)


def schema(*events: Any, commands: Any = (Touch,), upcasters: Any = (), version: int = 1) -> Schema:
    return schema_of(App("things", version=version, commands=commands, events=events, upcasters=upcasters))


def found(before: Schema, after: Schema, **held: Held) -> list[Finding]:
    return check(before, after, held, draft="engram schema draft things:app")


def changed(before: dict[str, Any], after: dict[str, Any]) -> str:
    """What is said of an event whose fields changed without a version; empty if nothing is."""
    findings = found(schema(event(before)), schema(event(after)))
    assert all(finding.problem for finding in findings)
    return " ".join(finding.text for finding in findings)


# The text


@pytest.mark.parametrize("app", [shop, wallets], ids=["shop", "wallets"])
def test_a_schema_comes_back_from_its_text(app: App):
    """The text has everything, is the same every time, and no line of it is long."""
    text = write_schema(schema_of(app))

    assert write_schema(read_schema(text, "here")) == text == write_schema(schema_of(app))
    assert json.loads(text)["app"] == app.name
    assert max(map(len, text.splitlines())) < 160


def test_a_field_is_a_line():
    """A diff shows which field changed, and nothing else."""
    before = write_schema(schema(event({"a": int, "b": (str, "x"), "c": float})))
    after = write_schema(schema(event({"a": int, "b": (str, "y"), "c": float})))

    differing = [pair for pair in zip(before.splitlines(), after.splitlines(), strict=True) if len(set(pair)) > 1]
    assert [(one.strip(), other.strip()) for one, other in differing] == [
        ('"b": {"type": "str", "default": "x"},', '"b": {"type": "str", "default": "y"},')
    ]


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Spot(NamedTuple):
    x: int
    y: int = 0


class Loose(TypedDict, total=False):
    a: int


UserId = NewType("UserId", str)


@pytest.mark.parametrize(
    ("tp", "text"),
    [
        (dict[str, datetime], "dict[str, datetime]"),
        (str | None, "str | None"),
        (None | int | str, "int | str | None"),
        (Annotated[int, Field(ge=1, le=9)], "int (ge=1, le=9)"),
        (list[Annotated[str, Field(min_length=1)]], "list[str (min_length=1)]"),
        (tuple[int, ...], "tuple[int, ...]"),
        (tuple[int, str], "tuple[int, str]"),
        (Colour, 'one of "blue", "red"'),
        (Spot, "#Spot"),
        (UserId, "str"),
        (AwareDatetime | None, "AwareDatetime | None"),
        (Any, "any"),
    ],
    ids=str,
)
def test_types_are_written_as_people_write_them(tp: Any, text: str):
    """As in Python, with bounds, and without the names of what is the same in JSON."""
    assert schema(event({"held": tp})).events["happened"].fields["held"].type == text


def test_a_default_that_is_made_each_time_is_not_recorded():
    """A baseline must be the same tomorrow."""
    made = schema(event({"id": (UUID, Field(default_factory=uuid4)), "day": (date, Field(default_factory=date.today))}))
    fields = made.events["happened"].fields

    assert [(fields[name].made, fields[name].has_default) for name in ("id", "day")] == [(True, True)] * 2


def test_what_is_not_a_baseline_is_refused():
    """Another file, or one of a newer Engram, is told by its name."""
    with pytest.raises(Misuse, match=r"there\.json is not a schema that this Engram reads: app: Field required"):
        read_schema('{"format": 1}', "there.json")
    with pytest.raises(Misuse, match=r"there\.json has format 9, and this Engram reads format 1"):
        read_schema('{"format": 9, "app": "x", "version": 1}', "there.json")


# What is no change


def test_docstrings_methods_order_and_class_names_do_not_count():
    """What does not change the JSON is not part of the shape."""

    @dataclass(frozen=True)
    class Before:
        a: int
        b: list[int]

    @dataclass(frozen=True)
    class After:
        """Now with words."""

        b: list[int]
        a: int

        def total(self) -> int:
            return self.a

    one, other = schema(event({"x": list[Before], "y": str})), schema(event({"y": str, "x": list[After]}))

    assert [finding.problem for finding in found(one, other)] == [False]  # the baseline has another class name
    assert "written otherwise" in found(one, other)[0].text


def test_a_class_may_get_a_name():
    """As version 1 a named value is what it was without a name; and so is what holds it."""

    @dataclass(frozen=True)
    class Nameless:
        a: int
        b: "list[Nameless] | None" = None

    globals()["Nameless"] = Nameless
    before = schema(event({"x": list[Nameless]}))
    value(name="named")(Nameless)
    after = schema(event({"x": list[Nameless]}))

    assert [(f.kind, f.problem) for f in found(before, after)] == [("value", False)]
    assert [(f.kind, f.problem) for f in found(after, before)] == [("value", False)]


def test_a_value_that_gets_its_name_with_another_shape_is_told():
    """Its first version would have to be what was written before."""
    one, other = (dataclass(frozen=True)(type("It", (), {"__annotations__": {"n": tp}})) for tp in (int, str))
    text = found(schema(event({"x": one})), schema(event({"x": value(name="it")(other)})))[0].text

    assert "event happened changed" in text
    assert "field n of it was int and is str" in text


def test_a_changed_value_does_not_change_what_holds_it():
    """A named value has a version of its own, and what holds it needs none."""

    def with_fields(version: int, **fields: Any) -> Any:
        cls = dataclass(frozen=True)(type("Coin", (), {"__annotations__": fields}))
        return value(name="coin", version=version)(cls)

    new = with_fields(2, amount=int)
    step = upcaster(new, from_version=1)(lambda old: old)
    before, after = schema(event({"x": with_fields(1, cents=int)})), schema(event({"x": new}), upcasters=[step])
    forgotten = schema(event({"x": with_fields(1, amount=int)}))

    assert [(f.kind, f.problem) for f in found(before, after)] == [("value", False)]
    assert [(f.kind, f.problem) for f in found(before, forgotten)] == [("value", True)]
    assert "It is in event happened." in found(before, forgotten)[0].text


def test_another_value_in_a_field_is_a_change_of_what_holds_it():
    """Also if both have the same shape: their upcasters are not the same."""
    one, other = (
        value(name=name)(dataclass(frozen=True)(type("It", (), {"__annotations__": {"n": int}})))
        for name in ("coin", "token")
    )
    text = found(schema(event({"x": list[one]})), schema(event({"x": list[other]})))[0].text

    assert "event happened changed" in text
    assert "field x held @coin and holds @token." in text


# What is told


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ({"a": int}, {"a": int, "b": str}, "field b is new (str)."),
        ({"a": int, "b": str}, {"a": int}, "field b is gone (str)."),
        ({"a": int}, {"a": str}, "field a was int and is str."),
        ({"a": list[int]}, {"a": dict[str, int]}, "field a was list[int] and is dict[str, int]."),
        ({"a": (int, 1)}, {"a": (int, 2)}, "field a had default 1 and has default 2."),
        ({"a": (int, 1)}, {"a": int}, "field a had default 1 and has no default."),
        ({"a": int}, {"b": int}, "field a is gone and b is new (int), which looks like a rename."),
        ({"a": Spot}, {"a": tuple[int, int]}, "field a was #Spot and is tuple[int, int]."),
        ({"a": Annotated[int, Field(ge=1)]}, {"a": int}, "field a was int (ge=1) and is int."),
        ({"a": int}, {"a": (int, Field(alias="A"))}, "field a may be missing, or is called otherwise in JSON."),
    ],
    ids=lambda case: str(case)[:40],
)
def test_what_changed_is_told(before: dict[str, Any], after: dict[str, Any], said: str):
    """Which type and version, which field and how, and what to do."""
    text = changed(before, after)

    assert text.startswith("event happened changed, and is still at version 1: ")
    assert said in text
    assert "Write version=2 into its class statement, and an upcaster from version 1: " in text
    assert "`engram schema draft things:app event:happened` drafts it." in text


def test_a_change_in_a_class_without_a_name_is_told_where_it_is():
    """The class is part of whatever holds it, however deep."""
    one, other = (
        dataclass(frozen=True)(type("Inner", (), {"__annotations__": fields})) for fields in ({"a": int}, {"a": str})
    )

    assert "field a of Inner was int and is str." in changed({"x": dict[str, list[one]]}, {"x": dict[str, list[other]]})


def test_places_in_a_named_tuple_are_its_shape():
    """In JSON it is an array: the order of its fields counts."""

    class Spot(NamedTuple):
        x: int
        y: int

    class Other(NamedTuple):
        y: int
        x: int

    assert "the fields of Other have other places in an array" in changed({"s": Spot}, {"s": Other})


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"a": int}, {"a": int, "b": (str, "")}),
        ({"a": (int, 1)}, {"a": (int, 2)}),
        ({"a": int}, {"a": int | None}),
        ({"a": (str, "")}, {"a": (str | int, "")}),
    ],
    ids=["new, with a default", "default", "or nothing", "or something else"],
)
def test_a_compatible_change_is_a_change_too(before: dict[str, Any], after: dict[str, Any]):
    """It needs a version, because older code could not read the new; but the upcaster has nothing to do."""
    assert "What was written before still reads as it is" in changed(before, after)
    assert "cannot be read as it is" in changed({**before, "z": int}, {**after, "z": str})


def test_a_version_makes_a_change_right():
    """With a new version, and the upcaster that App asks for, there is nothing to refuse."""
    new = event({"b": int}, version=2)
    after = schema(new, upcasters=[upcaster(new, from_version=1)(lambda old: {"b": old["a"]})])
    (finding,) = found(schema(event({"a": int})), after)

    assert not finding.problem
    assert finding.text.startswith("event happened went from version 1 to 2: field a is gone and b is new")
    assert "Affected: in log 7 of event happened version 1." in (
        found(schema(event({"a": int})), after, log=Counter({("event", "happened", 1): 7}))[0].text
    )


def test_a_version_that_goes_back_is_refused():
    """Older code must refuse what newer code wrote, so the numbers only grow."""
    new = event({"a": int}, version=2)
    before = schema(new, upcasters=[upcaster(new, from_version=1)(lambda old: old)])
    (finding,) = found(before, schema(event({"a": int})))

    assert finding.problem
    assert "event happened is at version 1, and was at 2 in the baseline" in finding.text


def test_a_type_that_vanished_is_told():
    """While a log may have it, it must be kept; where it is looked for and not found, it may go."""
    before, after = schema(event({"a": int})), schema()
    (unknown,) = found(before, after)
    (held,) = found(before, after, log=Counter({("event", "happened", 1): 1204}))
    (gone,) = found(before, after, log=Counter({("event", "other", 1): 3}))

    assert unknown.problem
    assert (
        "event happened (version 1) is not in the app any more. A log or a snapshot may still have it." in unknown.text
    )
    assert held.problem
    assert "Affected: in log 1,204 of event happened version 1." in held.text
    assert not gone.problem


def test_a_renamed_type_is_guessed():
    """A new type of the same shape is most likely the old one, whose name was changed: names are for ever."""
    findings = found(schema(event({"a": int})), schema(event({"a": int}, name="occurred")))

    assert "It looks as if it was renamed to occurred" in findings[0].text
    assert [finding.problem for finding in findings] == [True, False]


def test_what_is_affected_is_counted():
    """By version, in every place; of a value, through whatever holds it."""
    before = schema_of(wallets)
    coin = before.values["coin"]
    forgotten = TypeSchema(version=3, fields={"amount": coin.fields["amount"]})
    after = before.model_copy(update={"values": {**before.values, "coin": forgotten}})
    held = {
        "the log": Counter(
            {("command", "pay", 1): 3, ("command", "pay", "1 coin=3"): 2000, ("command", "other", 1): 5}
        ),
        "the snapshots": Counter({("entity", "wallet", "2 coin=3 note=2 pocket=2"): 7}),
    }
    (finding,) = check(before, after, held, draft="draft")

    assert finding.problem
    assert (
        "It is in entity wallet, command lend, command pay, command pay_later, query worth and event paid."
        in finding.text
    )
    assert "in the log 3 of command pay version 1 and 2,000 of command pay version 1 coin=3" in finding.text
    assert "in the snapshots 7 of entity wallet version 2 coin=3 note=2 pocket=2." in finding.text
    assert "other" not in finding.text


def test_replies_and_answers_are_told_and_not_refused():
    """They are never read again from a log, so they have no version."""

    class Count(Query[Thing, int], name="count"):
        def answer(self, thing: Thing) -> int:
            return 1

    class CountAll(Query[Thing, list[int]], name="count"):
        def answer(self, thing: Thing) -> list[int]:
            return [1]

    one, other = (schema_of(App("things", commands=[Touch], queries=[query])) for query in (Count, CountAll))
    (finding,) = found(one, other)

    assert not finding.problem
    assert "query count has other answers (list[int], before: int)" in finding.text


def test_another_version_of_the_app_is_for_the_baseline():
    """It is in the baseline, so that its history says which shapes a version of the code had."""
    (finding,) = found(schema(version=1), schema(version=2))

    assert (finding.problem, finding.text) == (False, "app things went from version 1 to 2.")


# Drafts


@dataclass(slots=True, kw_only=True)
class Before(Entity, name="drafted"):
    name: str = ""
    old: int = 0
    kind: str = ""
    when: datetime = datetime(2024, 1, 1, tzinfo=UTC)


@dataclass(slots=True, kw_only=True)
class Drafted(Entity, name="drafted"):
    title: str = ""
    kind: int = 0
    when: datetime = datetime(2024, 1, 1, tzinfo=UTC)
    tags: list[str] = field(default_factory=list)


def drafted_app(entity: Any, version: int = 1, upcasters: Any = ()) -> App:
    class Change(Command[entity, None], name="change"):
        def handle(self, drafted: Any, ctx: Context) -> None: ...

    return App("drafting", version=version, commands=[Change], upcasters=upcasters)


def test_a_draft_is_an_upcaster_with_its_test():
    """It runs: what is known is written, and what is not is marked. Its test has an example of the old."""
    before, after = schema_of(drafted_app(Before)), schema_of(drafted_app(Drafted))
    text = draft(before, after, "entity", "drafted", cls=Drafted, app="tests.some:app")
    code, tests = text.split("# In its tests:")
    names: dict[str, Any] = {}
    exec(compile(code.replace(f"from {__name__} import Drafted", ""), "draft", "exec"), {"Drafted": Drafted}, names)
    made = names["drafted_from_version_1"]
    old = {"name": "Ada", "old": 1, "kind": "x", "when": "2024-01-01T00:00:00Z"}

    assert (made.of, made.from_version) == (Drafted, 1)
    assert made.step(old) == {"title": "Ada", "kind": ..., "when": "2024-01-01T00:00:00Z", "tags": []}
    assert "app.upcast(Drafted, 1, old)" in tests
    assert "'old': 0" in tests
    compile(tests, "tests", "exec")


def test_a_draft_of_nothing_is_refused():
    """A type that did not change has nothing to be upcast."""
    same = schema_of(wallets)

    with pytest.raises(Misuse, match="value coin is as in the baseline: there is nothing to upcast"):
        draft(same, same, "value", "coin", cls=Thing, app="x:app")


def test_a_type_is_found_by_its_name_or_class():
    """Where a name is used for more than one kind, the kind must be said."""
    classes: Any = {("entity", "user"): Thing, ("event", "user"): Touch, ("value", "coin"): Drafted}
    of = schema()

    assert find_type(of, "coin", classes) == find_type(of, "Drafted", classes) == ("value", "coin")
    assert find_type(of, "event:user", classes) == ("event", "user")
    with pytest.raises(Misuse, match="more than one user: write entity:user or event:user"):
        find_type(of, "user", classes)
    with pytest.raises(Misuse, match="has no type nobody"):
        find_type(of, "nobody", classes)


# Every change of shape is found

LEAVES: dict[str, Any] = {"int": int, "str": str, "float": float, "datetime": datetime, "colour": Colour}
NAMES = st.sampled_from(["a", "b", "c", "d"])
TREES = st.recursive(
    st.sampled_from(sorted(LEAVES)),
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(["list", "dict", "optional", "tuple"]), inner),
        st.dictionaries(NAMES, inner, min_size=1, max_size=3),
    ),
    max_leaves=5,
)


def canonical(tree: Any) -> Any:
    """A tree without what makes no difference: something or nothing or nothing."""
    if isinstance(tree, dict):
        return {name: canonical(inner) for name, inner in tree.items()}
    if isinstance(tree, tuple):
        inner = canonical(tree[1])
        twice = isinstance(inner, tuple) and tree[0] == inner[0] == "optional"
        return inner if twice else (tree[0], inner)
    return tree


def built(tree: Any, class_name: Callable[[], str]) -> Any:
    """The type of a tree; its classes have whatever names."""
    if isinstance(tree, dict):
        fields = [(name, built(inner, class_name)) for name, inner in tree.items()]
        return dataclasses.make_dataclass(class_name(), fields, frozen=True)
    if isinstance(tree, tuple):
        inner = built(tree[1], class_name)
        forms = {"list": list[inner], "dict": dict[str, inner], "optional": inner | None, "tuple": tuple[inner, int]}
        return forms[tree[0]]
    return LEAVES[tree]


def variants(tree: Any) -> Iterator[Any]:
    """Trees that differ from one in one place."""
    yield ("list", tree)
    if isinstance(tree, dict):
        for name, inner in tree.items():
            others = {other: held for other, held in tree.items() if other != name}
            yield {**others, "z": inner}
            yield {**tree, "new": "int"}
            if others:
                yield others
            yield from ({**others, name: variant} for variant in variants(inner))
    elif isinstance(tree, tuple):
        yield from ((tree[0], variant) for variant in variants(tree[1]))
    else:
        yield from (leaf for leaf in LEAVES if leaf != tree)


@settings(max_examples=100, deadline=None)
@given(TREES, TREES, st.data())
def test_every_change_of_a_shape_is_found_and_nothing_else(one: Any, other: Any, data: st.DataObject):
    """Two shapes are refused if and only if they differ, whatever their classes are called, also in one place only."""
    names = st.sampled_from(["Some", "Other", "More"])

    def of(tree: Any) -> Schema:
        return schema(event({"held": built(tree, lambda: data.draw(names))}))

    near = data.draw(st.sampled_from(list(variants(one))), label="near")
    for tree in (one, other, near):
        problems = [finding for finding in found(of(one), of(tree)) if finding.problem]
        assert bool(problems) == (canonical(one) != canonical(tree)), problems
