"""The codec: everything comes back as it was, old versions come up to date, and the rest is refused."""

import dataclasses
import json
import math
from datetime import UTC, date, datetime, time, timedelta, timezone
from typing import Any

import pytest
from engram import App, Command, Context, Corrupt, Entity, Json, upcaster
from engram.codec.codec import Codec, Commands, Messages
from engram.codec.record import Envelope, Epoch, Kind, Origin, Record, encode_commands, encode_epoch, encode_messages
from engram.model.effects import Message
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from pydantic_core import PydanticSerializationError

from tests.codec.shop import (
    Box,
    Boxes,
    Colour,
    Measure,
    Pack,
    Point,
    Price,
    Put,
    Rank,
    Seal,
    Sealed,
    Shelf,
    Slip,
    Sticker,
    Weigh,
    app,
)

CODEC = Codec(app)

ZONES = st.one_of(
    st.none(), st.just(UTC), st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
)
TEXTS = st.text(max_size=20)
FLOATS = st.floats()
BLOBS = st.binary(max_size=20)
AMOUNTS = st.decimals(allow_nan=False, allow_infinity=False)
MOMENTS = st.datetimes(timezones=ZONES)
POINTS = st.builds(Point, x=FLOATS, label=TEXTS)
PRICES = st.builds(Price, amount=AMOUNTS, seal=BLOBS)
NUMBERS = st.integers()
SLIPS = st.recursive(
    st.builds(Slip, text=TEXTS, marks=st.lists(FLOATS, max_size=3)),
    lambda inner: st.builds(Slip, text=TEXTS, inner=st.lists(inner, max_size=3)),
    max_leaves=5,
)


def few(keys: st.SearchStrategy[Any], values: st.SearchStrategy[Any] = NUMBERS) -> st.SearchStrategy[Any]:
    return st.dictionaries(keys, values, max_size=3)


BOXES = st.builds(
    Box,
    key=TEXTS,
    flag=st.booleans(),
    number=NUMBERS,
    ratio=FLOATS,
    text=TEXTS,
    blob=BLOBS,
    moment=st.none() | MOMENTS,
    day=st.none() | st.dates(),
    clock=st.none() | st.times(),
    span=st.timedeltas(),
    amount=AMOUNTS,
    serial=st.none() | st.uuids(),
    colour=st.sampled_from(Colour),
    pair=st.tuples(NUMBERS, TEXTS),
    point=st.none() | POINTS,
    price=st.none() | PRICES,
    sticker=st.none() | st.builds(Sticker, text=TEXTS, colour=st.sampled_from(Colour)),
    floats=st.lists(FLOATS, max_size=4),
    blobs=few(TEXTS, BLOBS),
    by_number=few(NUMBERS, TEXTS),
    by_day=few(st.dates()),
    by_moment=few(MOMENTS),
    by_serial=few(st.uuids()),
    by_colour=few(st.sampled_from(Colour)),
    by_rank=few(st.sampled_from(Rank)),
    slips=st.lists(SLIPS, max_size=2),
    named=few(TEXTS, SLIPS),
    rows=st.lists(st.lists(NUMBERS, max_size=3), max_size=3),
)
PACKS = st.builds(
    Pack,
    number=NUMBERS,
    ratio=FLOATS,
    text=TEXTS,
    blob=BLOBS,
    moment=st.none() | MOMENTS,
    span=st.timedeltas(),
    amount=AMOUNTS,
    serial=st.none() | st.uuids(),
    colour=st.sampled_from(Colour),
    points=st.lists(POINTS, max_size=3),
    price=st.none() | PRICES,
    blobs=few(TEXTS, BLOBS),
    floats=st.tuples(FLOATS, FLOATS),
)
COMMANDS = st.one_of(
    PACKS,
    st.builds(Seal),
    st.builds(Weigh, grams=NUMBERS, scale=TEXTS),
    st.builds(Put, box=TEXTS),
)


def plain(value: Any) -> Any:  # noqa: PLR0911 - one return per kind of value
    """`value` with its types and the order of its dicts, in a form in which equal means the same."""
    kind = type(value).__name__
    match value:
        case float():
            return kind, value.hex()
        case datetime() | time():
            return kind, value.replace(tzinfo=None), value.utcoffset()
        case dict():
            return [(plain(k), plain(v)) for k, v in value.items()]
        case list() | tuple():
            return kind, [plain(v) for v in value]
        case BaseModel():
            return kind, [(name, plain(getattr(value, name))) for name in type(value).model_fields]
        case _ if dataclasses.is_dataclass(value):
            return kind, [(f.name, plain(getattr(value, f.name))) for f in dataclasses.fields(value)]
        case _:
            return kind, str(value)


def record(kind: Kind, payload: bytes) -> Record:
    return Record(3, 12, kind, 0, payload)


def envelope(command: Command[Any, Any], key: str = "k", sequence: int = 0, **more: Any) -> Envelope:
    declared = command.__engram__
    more = {"session": "s", **more}
    return Envelope(declared.name, declared.version, key, CODEC.encode_body(command), sequence=sequence, **more)


def message(command: Command[Any, Any], origin: Origin, key: str = "k") -> Message:
    declared = command.__engram__
    return Message(declared.name, declared.version, key, CODEC.encode_body(command), origin)


# Round trips


@settings(deadline=None)
@given(BOXES)
def test_entities_come_back_as_they_were(box):
    """State is the same after encoding and decoding: types, order, bytes, floats that are not finite, nested parts."""
    state = CODEC.encode_entity(box)
    back = CODEC.decode_entity("box", 1, state)

    assert plain(back) == plain(box)
    assert CODEC.encode_entity(back) == state


@settings(deadline=None)
@given(COMMANDS)
def test_commands_come_back_as_they_were(command):
    """So do the fields of a command."""
    name, version = command.__engram__.name, command.__engram__.version

    assert plain(CODEC.decode_command(name, version, CODEC.encode_body(command))) == plain(command)


@settings(deadline=None)
@given(st.booleans(), TEXTS, MOMENTS)
def test_queries_and_events_come_back_as_they_were(newest, text, moment):
    """And those of queries and events."""
    query, event = Boxes(newest=newest), Sealed(box=text, at=moment)

    assert plain(CODEC.decode_query("boxes", 2, CODEC.encode_body(query))) == plain(query)
    assert plain(CODEC.decode_event("sealed", 1, CODEC.encode_body(event))) == plain(event)


def test_state_is_readable_json():
    """A person reads state without the app: bytes are base64, other floats are words, times are ISO 8601."""
    box = Box(
        key="b", blob=b"\xff\x00", ratio=-math.inf, moment=datetime(2026, 1, 2, 3, tzinfo=UTC), day=date(2026, 1, 2)
    )

    state = json.loads(CODEC.encode_entity(box))

    assert state["key"] == "b"
    assert state["blob"] == "_wA="
    assert state["ratio"] == "-Infinity"
    assert state["moment"] == "2026-01-02T03:00:00Z"
    assert state["day"] == "2026-01-02"


def test_results_come_back_with_their_types():
    """A reply or answer is encoded by its declared type, and decoded to it."""
    sticker = Sticker(text="5", colour=Colour.RED)

    assert CODEC.decode_result(Weigh, CODEC.result_encoder(Weigh)(sticker)) == sticker
    assert CODEC.decode_result(Boxes, CODEC.result_encoder(Boxes)(["a"])) == ["a"]
    assert CODEC.result_encoder(Seal)(None) == b"null"


@settings(deadline=None)
@given(FLOATS, BLOBS)
def test_results_of_any_bytes_and_floats(ratio, blob):
    """Replies hold bytes that are no text, and floats that are not finite, as state does."""
    back = CODEC.decode_result(Measure, CODEC.result_encoder(Measure)((ratio, blob)))

    assert plain(back) == plain((ratio, blob))


def test_a_field_with_an_alias():
    """A field that has another name in JSON comes back all the same."""
    command = Measure.model_validate_json('{"from":"left"}')

    assert CODEC.decode_command("measure", 1, CODEC.encode_body(command)) == command


@pytest.mark.parametrize("reply", ["five", None, 5.5, [5]])
def test_results_of_another_type_are_refused(reply):
    """A value that is not of the declared type is an error where it is made, not where it is read."""
    with pytest.raises(PydanticSerializationError):
        CODEC.result_encoder(Pack)(reply)


@pytest.mark.parametrize("wrong", [{"number": "five"}, {"floats": ["x"]}, {"slips": [{"text": "x"}]}, {"day": 5}])
def test_state_of_another_type_is_not_encoded(wrong):
    """An entity with a value of the wrong type is refused: better than a snapshot that cannot be read back."""
    with pytest.raises(PydanticSerializationError):
        CODEC.encode_entity(Box(key="b", **wrong))


# Names and versions


@pytest.mark.parametrize(
    ("decode", "what", "known"),
    [
        (CODEC.decode_entity, "entity", "box, shelf"),
        (CODEC.decode_command, "command", "measure, pack, put, seal, weigh"),
        (CODEC.decode_query, "query", "boxes"),
        (CODEC.decode_event, "event", "sealed"),
    ],
)
def test_an_unknown_name(decode, what, known):
    """A name that the app does not have is `Corrupt`, with those that it has."""
    with pytest.raises(Corrupt) as refused:
        decode("crate", 1, b"{}")

    assert str(refused.value) == f"app shop has no {what} named 'crate' (it has: {known})"


def test_an_unknown_name_where_there_is_none():
    """The message is plain also when the app has nothing of the kind."""
    with pytest.raises(Corrupt, match=r"app bare has no event named 'x' \(it has: none\)"):
        Codec(App("bare", commands=[Seal])).decode_event("x", 1, b"{}")


@settings(deadline=None)
@given(st.integers(min_value=4))
def test_a_newer_version(version):
    """A version that the app does not know yet is `Corrupt`, with both numbers."""
    with pytest.raises(Corrupt) as refused:
        CODEC.decode_command("weigh", version, b'{"grams":1,"scale":"s"}')

    assert str(refused.value) == (
        f"Weigh is at version {version} there, but this app knows only up to 3: run the newer code"
    )


@settings(deadline=None)
@given(st.integers(max_value=0))
def test_a_version_that_cannot_be(version):
    """Versions start at 1, so anything below is damage."""
    with pytest.raises(Corrupt, match="but versions start at 1"):
        CODEC.decode_command("weigh", version, b'{"grams":1,"scale":"s"}')


def test_old_versions_are_brought_up():
    """Each old version goes through all the steps that it needs, on every kind of read."""
    assert CODEC.decode_command("weigh", 1, b'{"kilos":2}') == Weigh(grams=2000, scale="old")
    assert CODEC.decode_command("weigh", 2, b'{"grams":7}') == Weigh(grams=7, scale="old")
    assert CODEC.decode_command("weigh", 3, b'{"grams":7,"scale":"new"}') == Weigh(grams=7, scale="new")
    assert CODEC.decode_query("boxes", 1, b"{}") == Boxes(newest=False)
    assert CODEC.decode_entity("shelf", 1, b'{"key":"s","box":"b"}') == Shelf(key="s", boxes=["b"])


def test_the_old_form_is_not_taken_for_the_new_one():
    """A body of an old form under the new version number is refused, not guessed at."""
    with pytest.raises(Corrupt, match="Weigh version 3: grams: Field required; scale: Field required; kilos"):
        CODEC.decode_command("weigh", 3, b'{"kilos":2}')


@pytest.mark.parametrize(
    "body", [b"", b"{", b"nonsense", b"\xff", b"[]", b"5", b"null", b'{"kilos":"x"}', b'{"other":1}']
)
def test_old_bytes_that_do_not_fit(body):
    """Damage in an old version is `Corrupt` like in the newest, whatever the upcaster makes of it."""
    with pytest.raises(Corrupt, match="Weigh"):
        CODEC.decode_command("weigh", 1, body)


def test_an_upcaster_that_fails():
    """What goes wrong in an upcaster, or with what it returns, is told with the version it started from."""

    class Tip(Command[Box, None], name="tip", version=3):
        def handle(self, box: Box, ctx: Context) -> None: ...

    @upcaster(Tip, from_version=1)
    def cannot(old: Json) -> Json:
        raise RuntimeError("no way")

    @upcaster(Tip, from_version=2)
    def not_json(old: Json) -> Json:
        return {"at": datetime(2026, 1, 1, tzinfo=UTC)}

    codec = Codec(App("bare", commands=[Tip], upcasters=[cannot, not_json]))

    with pytest.raises(Corrupt, match=r"the upcasters of Tip from version 1 failed: RuntimeError\('no way'\)"):
        codec.decode_command("tip", 1, b"{}")
    with pytest.raises(Corrupt, match="the upcasters of Tip from version 2 failed: TypeError"):
        codec.decode_command("tip", 2, b"{}")


@pytest.mark.parametrize(
    "state", [b"", b"{}", b'{"key":1}', b'{"key":"b","more":1}', b'{"key":"b","number":1.5}', b"[]"]
)
def test_state_that_does_not_fit(state):
    """State that is not of its type is `Corrupt`, and the message names type and version."""
    with pytest.raises(Corrupt, match="Box version 1: "):
        CODEC.decode_entity("box", 1, state)


# Records

BATCHES = st.lists(
    st.builds(
        envelope,
        COMMANDS,
        key=TEXTS,
        session=st.sampled_from(["s", "t", "ü"]),
        sequence=st.integers(0, 2**62),
        idempotency_key=st.none() | TEXTS,
    ),
    min_size=1,
    max_size=8,
)


@settings(deadline=None)
@given(BATCHES, TEXTS)
def test_records_of_commands_come_back_as_they_were(envelopes, writer):
    """A batch gives back its commands in order, each with its key, session, sequence number and idempotency key."""
    header, commands = CODEC.decode_record(record(Kind.COMMANDS, encode_commands(envelopes, writer)))

    assert header.writer == writer
    assert header.keys == [e.key for e in envelopes]
    assert [header.sessions[number] for number in header.session] == [e.session for e in envelopes]
    assert header.sequence == [e.sequence for e in envelopes]
    assert [header.idempotency.get(i) for i in range(len(envelopes))] == [e.idempotency_key for e in envelopes]
    assert [CODEC.encode_body(c) for c in commands] == [e.body for e in envelopes]
    assert [type(c).__engram__.name for c in commands] == [e.name for e in envelopes]


@settings(deadline=None)
@given(st.lists(st.tuples(COMMANDS, TEXTS, st.builds(Origin, NUMBERS, NUMBERS, NUMBERS)), min_size=1, max_size=8))
def test_records_of_messages_come_back_as_they_were(sent):
    """A batch of messages gives back each command with its key and origin."""
    messages = [message(command, origin, key) for command, key, origin in sent]

    header, commands = CODEC.decode_record(record(Kind.MESSAGES, encode_messages(messages, 5)))

    assert header.origin_partition == 5
    assert header.origins == [m.origin for m in messages]
    assert header.keys == [m.key for m in messages]
    assert [CODEC.encode_body(c) for c in commands] == [m.body for m in messages]


def test_records_of_epochs_come_back_as_they_were():
    """An epoch record gives back who took the partition, with which version of the app, and where they answer."""
    epoch = Epoch(owner="shard-1", app_version=3, address="tcp://127.0.0.1:5000")

    assert CODEC.decode_record(record(Kind.EPOCH, encode_epoch(epoch))) == epoch


def test_versions_are_mixed_in_a_record():
    """Old and new versions of one command may be in the same record, and all come out as the newest, in order."""
    old, older, new = (
        Envelope("weigh", 2, "a", b'{"grams":2}', "s", 1),
        Envelope("weigh", 1, "b", b'{"kilos":1}', "s", 2),
        Envelope("weigh", 3, "c", b'{"grams":3,"scale":"new"}', "s", 3),
    )

    _, commands = CODEC.decode_record(record(Kind.COMMANDS, encode_commands([old, new, older, old], "w")))

    assert commands == [
        Weigh(grams=2, scale="old"),
        Weigh(grams=3, scale="new"),
        Weigh(grams=1000, scale="old"),
        Weigh(grams=2, scale="old"),
    ]


@pytest.mark.parametrize(
    ("name", "version", "why"),
    [
        ("crate", 1, "app shop has no command named 'crate'"),
        ("weigh", 4, "Weigh is at version 4 there, but this app knows only up to 3"),
        ("weigh", 0, "versions start at 1"),
    ],
)
def test_a_record_that_this_app_cannot_read(name, version, why):
    """An unknown name or a newer version in a record is `Corrupt`, with the record's place."""
    strange = Envelope(name, version, "k", b'{"grams":1,"scale":"s"}', "s", 1)

    with pytest.raises(Corrupt, match=f"Record 12 of partition 3 cannot be decoded: .*{why}"):
        CODEC.decode_record(record(Kind.COMMANDS, encode_commands([envelope(Seal()), strange], "w")))


WHOLE = [
    record(
        Kind.COMMANDS,
        encode_commands(
            [
                envelope(Put(box="b"), "shelf", 1),
                envelope(Pack(ratio=math.nan, blob=b"\xff"), "box", 2, session="t", idempotency_key="once"),
                Envelope("weigh", 1, "box", b'{"kilos":1}', "s", 3),
                envelope(Seal(), "box", 4),
            ],
            "writer",
        ),
    ),
    record(
        Kind.MESSAGES,
        encode_messages([message(Put(box="b"), Origin(1, 0, 0)), message(Seal(), Origin(1, 0, 1))], 2),
    ),
    record(Kind.EPOCH, encode_epoch(Epoch(owner="o", app_version=1))),
]


def check_decodes_or_corrupt(damaged: Record) -> None:
    """Nothing but `Corrupt` is raised; what decodes has one of everything per command."""
    try:
        content = CODEC.decode_record(damaged)
    except Corrupt:
        return
    if isinstance(content, Commands):
        header, count = content.header, len(content.commands)
        assert len(header.keys) == len(header.session) == len(header.sequence) == count
        assert all(0 <= number < len(header.sessions) for number in header.session)
    elif isinstance(content, Messages):
        assert len(content.header.keys) == len(content.header.origins) == len(content.commands)


@st.composite
def damaged_bytes(draw: st.DrawFn) -> Record:
    """A record of which some bytes were changed, cut out, doubled or put in."""
    whole = draw(st.sampled_from(WHOLE))
    payload = bytearray(whole.payload)
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(payload)))
        end = draw(st.integers(start, min(len(payload), start + 40)))
        payload[start:end] = draw(
            st.one_of(
                st.binary(max_size=3),
                st.sampled_from([b"\n", b"0", b"-1", b"[", b"]", b"{}", b"null", b'"', b",", b"NaN", b"9" * 40]),
                st.just(bytes(payload[start:end]) * 2),
            )
        )
    return whole._replace(payload=bytes(payload))


@settings(max_examples=300, deadline=None)
@given(damaged_bytes())
def test_damaged_bytes(damaged):
    """Whatever happens to a record's bytes, it is refused as `Corrupt` or it decodes to something whole."""
    check_decodes_or_corrupt(damaged)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 9) | st.sampled_from(["", "seal", "s"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["0", "key"]), inner, max_size=2),
    max_leaves=4,
)


@st.composite
def damaged_values(draw: st.DrawFn) -> Record:
    """A record that is still JSON, of which one value was replaced, dropped or doubled."""
    whole = draw(st.sampled_from(WHOLE))
    lines = [json.loads(line) for line in whole.payload.split(b"\n")]
    holder: Any = lines
    while True:
        if not holder:
            break
        place = draw(st.sampled_from(list(holder) if isinstance(holder, dict) else range(len(holder))))
        if not isinstance(holder[place], list | dict) or draw(st.booleans()):
            break
        holder = holder[place]
    if holder and isinstance(holder, list):
        holder[place : place + 1] = draw(st.lists(JSON, max_size=2) | st.just([holder[place]] * 2))
    elif holder:
        holder[place] = draw(JSON)
    return whole._replace(payload=b"\n".join(json.dumps(line).encode() for line in lines))


@settings(max_examples=300, deadline=None)
@given(damaged_values())
def test_damaged_values(damaged):
    """So it is when the bytes are still JSON, and only some value in them is wrong."""
    check_decodes_or_corrupt(damaged)


def changed_header(**columns: Any) -> Record:
    head, *lines = WHOLE[0].payload.split(b"\n")
    header = json.dumps({**json.loads(head), **columns}).encode()
    return WHOLE[0]._replace(payload=b"\n".join([header, *lines]))


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"sequence": [1, 2]}, r"its columns differ in length: \[2, 4\]"),
        ({"session": [0]}, r"its columns differ in length: \[1, 4\]"),
        ({"keys": ["k"] * 5}, r"its columns differ in length: \[4, 5\]"),
        ({"session": [0, 9, 0, 0]}, "a command of a session that is not among its 2"),
        ({"session": [0, -1, 0, 0]}, "a command of a session that is not among its 2"),
        ({"types": [["put", 1]]}, "4 lines of bodies for 1 types"),
        ({"which": [0, 0, 2, 3]}, "more commands of a type than bodies in its line"),
        ({"which": [0, 1, 2, 7]}, "list index out of range"),
        ({"more": 1}, "Object contains unknown field `more`"),
    ],
)
def test_a_header_that_does_not_agree_with_itself(columns, why):
    """Columns of different lengths, and numbers that point nowhere, are found before any command is handled."""
    with pytest.raises(Corrupt, match=f"^Record 12 of partition 3 cannot be decoded: {why}"):
        CODEC.decode_record(changed_header(**columns))


@pytest.mark.parametrize("line", [b"5", b"null", b"{}", b'"x"', b"[5]"])
def test_old_bodies_that_are_not_in_an_array(line):
    """A line of old bodies that is JSON of another form is `Corrupt`."""
    head, *lines = WHOLE[0].payload.split(b"\n")
    assert b'["weigh",1]' in head

    with pytest.raises(Corrupt, match="Record 12 of partition 3 cannot be decoded"):
        CODEC.decode_record(WHOLE[0]._replace(payload=b"\n".join([head, *lines[:2], line, lines[3]])))


def test_entities_of_several_types_keep_their_names():
    """An entity is encoded as the type that it is, whatever else the app has."""

    @dataclasses.dataclass(slots=True, kw_only=True)
    class Crate(Entity, name="crate"):
        boxes: int = 0

    assert CODEC.encode_entity(Shelf(key="s", boxes=["b"])) == b'{"key":"s","boxes":["b"]}'
    with pytest.raises(KeyError):
        CODEC.encode_entity(Crate(key="c"))
