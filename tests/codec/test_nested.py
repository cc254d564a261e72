"""Named values have versions of their own: the container says them, and upcasters find them wherever they are."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from types import new_class
from typing import Annotated, Any, Literal, NamedTuple

import pytest
from engram import App, Command, Context, Corrupt, Entity, Event, Json, Misuse, Part, upcaster, value
from engram.codec.codec import Codec, Commands
from engram.codec.record import Envelope, Kind, PlainHeader, Record, encode_commands, encode_plain
from engram.image.image import Image
from engram.model.version import join_version, read_version, split_version
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from tests.codec.wallets import UPCASTERS, Coin, Lend, Note, Paid, Pair, Pay, PayLater, Pocket, Wallet, Worth, app

CODEC = Codec(app)
TODAY = "2 coin=3 note=2 pocket=2"


def encoded(value: Any) -> bytes:
    return json.dumps(value).encode()


# What is written


def test_a_version_says_those_of_the_values_inside():
    """What is written carries the versions of all named values that it can hold, however deep."""
    assert CODEC.version_of(Wallet) == TODAY
    assert CODEC.version_of(Pay) == CODEC.version_of(Paid) == CODEC.version_of(Worth) == "1 coin=3"


def test_values_at_version_1_cost_nothing():
    """A container whose values are all at their first version has a plain number, as one without any."""

    @value(name="plain")
    @dataclass(frozen=True)
    class Plain:
        number: int

    class Hold(Command[Wallet, None], name="hold"):
        plain: Plain

        def handle(self, wallet: Wallet, ctx: Context) -> None: ...

    assert Codec(App("holding", commands=[Hold], upcasters=UPCASTERS)).version_of(Hold) == 1


@given(st.integers(0, 999), st.dictionaries(st.from_regex(r"[a-z][a-z0-9_]{0,5}", fullmatch=True), st.integers(0, 99)))
def test_a_version_comes_back_from_its_text(own: int, nested: dict[str, int]):
    """Splitting gives what was joined, without the ones; a number stays a number."""
    version = join_version(own, nested)

    assert split_version(version) == (own, {name: v for name, v in nested.items() if v != 1})
    assert read_version(str(version)) == version


@pytest.mark.parametrize("text", ["", "x", "1 coin", "1  coin=2", "1 Coin=2", "1 coin=-2", "-1", "1 coin=2 ", "²"])
def test_what_is_no_version_is_refused(text: str):
    """Anything else than a number and names with numbers is no version."""
    with pytest.raises(Corrupt, match="not a version"):
        CODEC.decode_command("pay", text, b"{}")


# Reading


def test_everything_comes_up_wherever_it_is():
    """In lists, dicts, unions with None, tuples, named tuples, and inside of other values."""
    old = {
        "key": "ada",
        "owner": "Ada",
        "pockets": {"left": {"coins": [{"cents": 1}, {"cents": 2}]}},
        "notes": [None, {"body": "hi", "coin": {"cents": 3}}],
        "pairs": [["p", {"cents": 4}]],
    }

    assert CODEC.decode_entity("wallet", 1, encoded(old)) == Wallet(
        key="ada",
        owner="Ada",
        pockets={"left": Pocket(coins=[Coin(1, "EUR"), Coin(2, "EUR")])},
        notes=[None, Note(text="hi", coin=Coin(3, "EUR"))],
        pairs=(Pair("p", Coin(4, "EUR")),),
        lucky=Coin(7, "EUR"),
    )


def test_each_value_starts_from_the_version_that_the_container_says():
    """Coins are at version 2 here, notes and pockets at 1, and the wallet at its own."""
    old = {
        "key": "ada",
        "owner": "",
        "pockets": {"p": {"coins": [{"amount": 5}]}},
        "notes": [],
        "pairs": [],
        "lucky": None,
    }
    wallet = CODEC.decode_entity("wallet", "2 coin=2", encoded(old))

    assert wallet == Wallet(key="ada", pockets={"p": Pocket(coins=[Coin(5, "EUR")])})


def test_a_recursive_value_comes_up_all_the_way_down():
    """A pocket in a pocket in a pocket."""
    inner: Json = {"coins": [{"cents": 1}], "inner": {}}
    old = {"coins": [], "inner": {"a": {"coins": [], "inner": {"b": inner}}}}

    assert app.upcast(Pocket, "2", old)["inner"]["a"]["inner"]["b"]["coins"] == [{"amount": 1, "unit": "EUR"}]


def test_what_an_upcaster_puts_in_has_the_version_that_it_says():
    """The wallet's upcaster made a coin of version 2; the others are of the record's version."""
    old = {"key": "ada", "owner": "", "pockets": {}, "notes": [], "pairs": [["p", {"amount": 1, "unit": "USD"}]]}
    wallet: Any = CODEC.decode_entity("wallet", "1 coin=3 note=2 pocket=2", encoded(old))

    assert (wallet.lucky, wallet.pairs[0].coin) == (Coin(7, "EUR"), Coin(1, "USD"))


def test_commands_queries_and_events_are_read_the_same_way():
    """There is one way up, whatever holds the value."""
    body = b'{"coin":{"cents":9}}'

    assert CODEC.decode_command("pay", 1, body) == Pay(coin=Coin(9, "EUR"))
    assert CODEC.decode_event("paid", 1, body) == Paid(coin=Coin(9, "EUR"))
    assert CODEC.decode_query("worth", 1, b'{"unit":{"cents":1}}') == Worth(unit=Coin(1, "EUR"))


def test_a_record_of_many_is_read():
    """A header of today's form has the text, one of before a number, and each line comes up from its own."""
    envelopes = [
        Envelope("pay", 1, "ada", b'{"coin":{"cents":1}}', "s", 0),
        Envelope("pay", "1 coin=2", "ada", b'{"coin":{"amount":2}}', "s", 1),
        Envelope("pay", CODEC.version_of(Pay), "ada", b'{"coin":{"amount":3,"unit":"USD"}}', "s", 2),
    ]
    content = CODEC.decode_record(Record(0, 0, Kind.COMMANDS, 1, encode_commands(envelopes, "w")))

    assert isinstance(content, Commands)
    assert content.commands == [Pay(coin=Coin(1, "EUR")), Pay(coin=Coin(2, "EUR")), Pay(coin=Coin(3, "USD"))]


def test_a_plain_record_may_say_the_versions_of_values():
    """Who writes to Kafka without Engram says the same text in the header `version`."""
    header = PlainHeader(name="pay", version="1 coin=2", key="ada")
    record = Record(0, 0, Kind.PLAIN, 1, encode_plain(header, b'{"coin":{"amount":2}}'))

    content = CODEC.decode_record(record)
    assert isinstance(content, Commands)
    assert content.commands == [Pay(coin=Coin(2, "EUR"))]


# What an image writes and keeps


def handled(image: Image, *commands: Command[Any, Any], time: int) -> Any:
    bodies = [(c.__engram__.name or "", CODEC.version_of(type(c)), "ada", CODEC.encode_body(c)) for c in commands]
    envelopes = [Envelope(*body, "s", image.offset * 10 + number) for number, body in enumerate(bodies)]
    return image.handle(Record(0, image.offset, Kind.COMMANDS, time, encode_commands(envelopes, "w")))


def test_messages_events_timers_and_the_quarantine_say_all_versions():
    """What leaves a handler, waits, or failed, can be read when its values have moved on."""
    image = Image(0, CODEC)
    coin = Coin(1, "EUR")
    done = handled(
        image, Pay(coin=coin), PayLater(coin=coin), Lend(coin=coin, whom="bob"), Pay(coin=Coin(-1, "EUR")), time=1
    )

    assert [message.version for message in done.messages] == ["1 coin=3"]
    assert [event.version for event in done.events] == ["1 coin=3"]
    assert [timer.version for timer in image.memory().timers] == ["1 coin=3"]
    assert [row.version for row in image.memory().quarantine] == ["1 coin=3"]
    assert type(image.memory()).model_validate_json(image.memory().model_dump_json()) == image.memory()


def test_a_timer_of_an_older_version_fires():
    """A command that was scheduled before its values had their versions is brought up when its time comes."""
    image = Image(0, CODEC)
    handled(image, PayLater(coin=Coin(1, "EUR")), time=1)
    (timer,) = image.memory().timers
    old = image.memory().model_copy(update={"timers": [timer._replace(version=1, body='{"coin":{"cents":41}}')]})
    again = Image(0, CODEC)
    again.load([], old)
    again.handle(Record(0, 1, Kind.TICK, 10_000_000, b""))

    wallet: Any = again.entities["wallet"]["ada"]
    assert list(wallet.pockets["left"].coins) == [Coin(41, "EUR")]


# Refusals


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("1 coin=4", "coin in Pay is at version 4 there, but this app knows only up to 3: run the newer code"),
        ("2 coin=3", "Pay is at version 2 there, but this app knows only up to 1: run the newer code"),
        ("1 coin=0", "coin in Pay is at version 0 there, but versions start at 1"),
        ("1 coin=3 gem=2", "gem in Pay is at version 2 there, but this app has no value gem: run the newer code"),
    ],
)
def test_a_downgrade_is_refused_with_names_and_numbers(version: str, said: str):
    """Older code does not read what newer code wrote, and says which type and which versions."""
    with pytest.raises(Corrupt) as refused:
        CODEC.decode_command("pay", version, b'{"coin":{"amount":1,"unit":"EUR"}}')

    assert said in str(refused.value)


def test_a_value_that_was_dropped_since_does_not_matter():
    """What a newer version of a container, or of a value in it, has no more may have had any version."""
    old = {"key": "a", "owner": "", "pockets": {}, "notes": [], "pairs": []}

    assert isinstance(CODEC.decode_entity("wallet", "1 gem=5", encoded(old)), Wallet)
    assert CODEC.decode_command("pay", "1 coin=2 gem=5", b'{"coin":{"amount":1}}') == Pay(coin=Coin(1, "EUR"))


def test_an_upcaster_of_a_value_that_fails_is_told():
    """Broken data is not decoded as something else."""
    with pytest.raises(Corrupt, match=r"upcasters of Pay from version 1 failed: KeyError\('cents'\)"):
        CODEC.decode_command("pay", 1, b'{"coin":{"amount":1}}')


def problems(*commands: Any, upcasters: Sequence[Any] = ()) -> str:
    with pytest.raises(Misuse) as refused:
        App("bad", commands=commands, upcasters=upcasters)
    return str(refused.value)


def holding(tp: Any, name: str = "hold") -> Any:
    """A command with one field of a type."""

    def fill(namespace: dict[str, Any]) -> None:
        namespace |= {"__module__": __name__, "__annotations__": {"held": tp}, "handle": lambda self, entity, ctx: None}

    return new_class(name.title(), (Command[Plain, None],), {"name": name}, fill)


@dataclass(slots=True, kw_only=True)
class Plain(Entity, name="plain"):
    number: int = 0


def test_a_gap_in_a_values_chain_is_refused():
    """As for what holds it: every step up to today must be there."""
    said = problems(holding(Coin), upcasters=[cents for cents in UPCASTERS if cents.of is Coin][:1])

    assert "Coin is at version 3 but has no upcaster from 2 to 3" in said


def test_two_values_of_one_name_are_refused():
    """Names of values are for one class each, in the whole app."""

    @value(name="coin")
    @dataclass(frozen=True)
    class Other:
        number: int

    said = problems(holding(list[Other]), holding(Coin, "keep"), upcasters=[u for u in UPCASTERS if u.of is Coin])

    assert "value name 'coin' is used by Other and by Coin" in said


def test_a_version_without_a_name_is_refused():
    """Without a name nothing could say the version."""

    @dataclass(slots=True, kw_only=True)
    class Nameless(Part, version=2):
        number: int = 0

    assert "value Nameless has no name" in problems(holding(Nameless))


def test_a_name_for_something_else_is_refused():
    """Only what is an object in JSON has upcasters."""

    @value(name="row")
    class NamedRow(NamedTuple):
        number: int

    assert "value NamedRow has a name, but only dataclasses and pydantic models may have one" in problems(
        holding(NamedRow)
    )


def test_an_upcaster_of_a_value_that_is_nowhere_is_refused():
    """It would never run."""
    assert "is for Coin, which this app does not have" in problems(holding(int), upcasters=UPCASTERS[:2])


def test_a_subclass_of_a_named_value_has_no_name():
    """A name is a class's own: what derives from it is a piece of what holds it, until it has one."""

    class LoudNote(Note, frozen=True):
        loud: bool = True

    @dataclass(slots=True, kw_only=True)
    class BigPocket(Pocket):
        size: int = 0

    made = App(
        "loud",
        commands=[holding(dict[str, LoudNote]), holding(BigPocket, "keep")],
        upcasters=[*UPCASTERS[:2], UPCASTERS[3]],
    )

    assert sorted(made.values) == ["coin", "pocket"]


# Unions


class Cat(BaseModel, frozen=True):
    kind: Literal["cat"] = "cat"
    lives: int


@value(name="dog", version=2)
class Dog(BaseModel, frozen=True):
    kind: Literal["dog"] = "dog"
    barks: int


@upcaster(Dog, from_version=1)
def dogs_bark(old: Json) -> Json:
    return {"kind": "dog", "barks": old["noise"]}


def test_a_union_whose_members_have_tags_is_told_apart():
    """A field of a Literal type says which one an old value is; also inside of an annotated union with others."""
    pet = Annotated[Cat | Dog, Field(discriminator="kind")] | None | int
    hold = holding(list[pet])
    codec = Codec(App("pets", commands=[hold], upcasters=[dogs_bark]))
    old = [{"kind": "cat", "lives": 7}, None, {"kind": "dog", "noise": 3}, 5]

    assert codec.decode_command("hold", 1, encoded({"held": old})) == hold(held=[Cat(lives=7), None, Dog(barks=3), 5])


def test_a_union_that_cannot_be_told_apart_is_refused():
    """Two kinds of object, without anything that says which one it is."""
    steps = [u for u in UPCASTERS if u.of in (Coin, Note)]

    assert "in a union with Coin and Note it cannot be told which one an old value is" in problems(
        holding(dict[str, Coin | Note]), upcasters=steps
    )


# By hand


class Shape(NamedTuple):
    """A type, and how a value of it is made: its JSON of the old versions and of today."""

    type: Any
    pairs: st.SearchStrategy[tuple[Any, Any]]


def coins(version: int) -> st.SearchStrategy[tuple[Any, Any]]:
    forms = {1: lambda n: {"cents": n}, 2: lambda n: {"amount": n}, 3: lambda n: {"amount": n, "unit": "EUR"}}
    return st.integers(0, 99).map(lambda n: (forms[version](n), forms[3](n)))


def notes(version: int, coin: int) -> st.SearchStrategy[tuple[Any, Any]]:
    word = "body" if version == 1 else "text"
    return st.tuples(st.text(max_size=3), coins(coin)).map(
        lambda made: ({word: made[0], "coin": made[1][0]}, {"text": made[0], "coin": made[1][1]})
    )


def several(pairs: st.SearchStrategy[tuple[Any, Any]]) -> st.SearchStrategy[tuple[Any, Any]]:
    return st.lists(pairs, max_size=3).map(lambda made: ([old for old, _ in made], [new for _, new in made]))


def entries(pairs: st.SearchStrategy[tuple[Any, Any]]) -> st.SearchStrategy[tuple[Any, Any]]:
    return st.dictionaries(st.text(max_size=3), pairs, max_size=3).map(
        lambda made: ({k: old for k, (old, _) in made.items()}, {k: new for k, (_, new) in made.items()})
    )


def wider(inner: st.SearchStrategy[Shape]) -> st.SearchStrategy[Shape]:
    nothing = st.just((None, None))

    def row(shape: Shape) -> Shape:
        pairs = st.tuples(st.integers(0, 9), shape.pairs).map(lambda m: ([m[0], m[1][0]], [m[0], m[1][1]]))
        return Shape(tuple[int, shape.type], pairs)

    def struct(shape: Shape) -> Shape:
        made = dataclass(frozen=True)(type("Struct", (), {"__annotations__": {"here": shape.type, "n": int}}))
        return Shape(made, shape.pairs.map(lambda m: ({"here": m[0], "n": 1}, {"here": m[1], "n": 1})))

    return st.one_of(
        inner.map(lambda s: Shape(list[s.type], several(s.pairs))),
        inner.map(lambda s: Shape(tuple[s.type, ...], several(s.pairs))),
        inner.map(lambda s: Shape(dict[str, s.type], entries(s.pairs))),
        inner.map(lambda s: Shape(s.type | None, st.one_of(nothing, s.pairs))),
        inner.map(row),
        inner.map(struct),
    )


@settings(max_examples=150, deadline=None)
@given(st.data(), st.integers(1, 3), st.integers(1, 2))
def test_upcasting_nested_values_is_upcasting_by_hand(data: st.DataObject, coin: int, note: int):
    """In any shape, what is read is what somebody gets who rewrites each value where it stands."""
    leaves = [
        Shape(Coin, coins(coin)),
        Shape(Note, notes(note, coin)),
        Shape(int, st.integers(0, 9).map(lambda n: (n, n))),
    ]
    shape = data.draw(st.recursive(st.sampled_from(leaves), wider, max_leaves=4), label="shape")

    def fill(namespace: dict[str, Any]) -> None:
        namespace |= {"__module__": __name__, "__annotations__": {"held": shape.type}}

    event = new_class("Holding", (Event,), {"name": "holding"}, fill)
    holds = [holding(Coin), holding(Note, "keep")]  # so that the app has both
    steps = [u for u in UPCASTERS if u.of in (Coin, Note)]
    made = App("shapes", commands=holds, events=[event], upcasters=steps)
    old, new = data.draw(shape.pairs, label="value")
    version = join_version(1, {"coin": coin, "note": note})

    codec = Codec(made)
    assert codec.decode_event("holding", version, encoded({"held": old})) == codec.decode_event(
        "holding", codec.version_of(event), encoded({"held": new})
    )
    assert made.upcast(event, version, {"held": old}) == {"held": new}
