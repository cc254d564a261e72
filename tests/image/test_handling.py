"""How an image handles records: in order, once in effect, all or nothing."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
from engram import App, Command, Context, Corrupt, Entity, Event, Misuse, Part, Position, Quarantined, Query, Rejected
from engram.codec.codec import Codec
from engram.codec.record import Kind, Origin
from engram.image.dedupe import Window
from engram.image.image import Image
from engram.image.outcome import Verdict
from engram.image.quarantine import LISTED
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic_core import PydanticSerializationError

from tests.image.workshop import (
    CODEC,
    Count,
    Counted,
    Hear,
    Sent,
    Step,
    Work,
    assert_all_is_tracked,
    commands,
    epoch,
    handle,
    messages,
    replies,
    restored,
    shown,
    whole_freeze,
)

ALREADY = (
    'rejected {"code": "already_handled", "text": "This command was handled before, and its reply is no longer kept."}'
)
REUSED = (
    'rejected {"code": "idempotency_key_reused", '
    '"text": "This idempotency key was used before for a different command."}'
)


@pytest.fixture
def image() -> Image:
    return Image(0, CODEC)


def count_of(image: Image, key: str = "ada") -> int:
    return int(image.ask(Counted(), key))


# Order


def test_commands_are_handled_in_the_order_of_the_log(image):
    """Record by record, and within a record one after the other; each reply is that of its own command."""
    first = handle(image, Sent("ada", Count(by=1), sequence=1), Sent("ada", Count(by=10), sequence=2))
    second = handle(image, Sent("bob", Count(by=5), sequence=3), Sent("ada", Count(by=100), sequence=4))

    assert replies(first) == ["reply 1", "reply 11"]
    assert replies(second) == ["reply 5", "reply 111"]
    assert first.writer == "writer"
    assert (image.offset, image.last_index, image.handled, image.count()) == (2, 1, 4, 2)


@pytest.mark.parametrize(("partition", "offset"), [(0, 0), (0, 2), (1, 1)], ids=["old", "gap", "other partition"])
def test_only_the_next_record_is_handled(image, partition, offset):
    """A record that is not the next one of the partition is `Corrupt`, with both places, and nothing is touched."""
    handle(image, Sent("ada", Count()))
    before = image.digest()
    stray = commands(image, Sent("ada", Count(), sequence=1))._replace(partition=partition, offset=offset)

    with pytest.raises(
        Corrupt, match=f"Partition 0 expected record 1 next and was given record {offset} of partition {partition}"
    ):
        image.handle(stray)

    assert (image.digest(), image.offset) == (before, 1)


def test_time_never_goes_back(image):
    """A handler sees its record's time, or the latest one before it if the writer's clock was behind."""
    seen = []
    for time in (5_000, 1_000, 7_000):
        handle(image, Sent("ada", Work(), sequence=image.offset), time=time)
        seen.append(image.entities["desk"]["ada"].note.split()[0])

    start = datetime(1970, 1, 1, tzinfo=UTC)
    assert seen == [(start + timedelta(seconds=s)).isoformat() for s in (5, 5, 7)]
    assert image.time == 7_000


def test_an_epoch_changes_the_owner_and_nothing_else(image):
    """An epoch record is noted with its offset and the app's version; the digest does not know of it."""
    handle(image, Sent("ada", Count()))
    before = image.digest()

    handled = image.handle(epoch(image, time=9_000))

    assert handled == ("", [], [], [], {}, {}, None, [], [])
    assert (image.epoch, image.app_version, image.offset) == (1, 1, 2)
    assert image.digest() == before


# The same command again


def test_the_same_id_again_gives_the_first_reply(image):
    """A command is handled once, whether it comes again in the same record or later; its reply stays the same."""
    sent = Sent("ada", Count(by=3), sequence=7)

    first = handle(image, sent, sent)
    handle(image, Sent("ada", Count(), session="other"))
    again = handle(image, sent)

    assert replies(first) == ["reply 3", "reply 3"]
    assert replies(again) == ["reply 3"]
    assert count_of(image) == 4
    assert image.handled == 2


def test_an_older_id_is_told_that_it_was_handled(image):
    """Only the latest reply of a session is kept: an older command is not handled again, and is told so."""
    handle(image, *(Sent("ada", Count(), sequence=n) for n in (1, 2, 5)))

    assert replies(handle(image, *(Sent("ada", Count(), sequence=n) for n in (2, 1, 4, 5)))) == [
        ALREADY, ALREADY, ALREADY, "reply 3",
    ]  # fmt: skip
    assert count_of(image) == 3


def test_a_refusal_is_remembered_too(image):
    """A command that was rejected or quarantined stays so, though it might succeed now."""
    rejected = Sent("ada", Count(by=-1), sequence=1)
    failed = Sent("ada", Work(end="fail"), session="t", sequence=1)

    first = replies(handle(image, rejected, failed))

    assert first == ['rejected {"code": "negative", "text": "Only up."}', 'quarantined {"error": "RuntimeError"}']
    assert replies(handle(image, rejected, failed)) == first
    assert image.quarantine.count == 1


def test_sessions_do_not_know_of_each_other(image):
    """The same sequence number in another session is another command."""
    handle(image, *(Sent("ada", Count(), session=session, sequence=1) for session in "abc"))

    assert count_of(image) == 3


def test_what_became_of_a_command_can_be_asked(image):
    """`recall` knows the latest of a session and what is older, and nothing of what has not come yet."""
    handle(image, Sent("ada", Count(), sequence=4))

    assert image.recall("s", 4).body == b"1"
    assert image.recall("s", 3).error.code == "already_handled"
    assert image.recall("s", 5) is None
    assert image.recall("t", 0) is None


def test_an_outcome_knows_its_error(image):
    """A reply has none; a rejection gives back code and text; a quarantine says the kind of exception."""
    done, rejected, failed = handle(
        image,
        Sent("ada", Count(), sequence=1),
        Sent("ada", Count(by=-1), sequence=2),
        Sent("ada", Work(end="fail"), sequence=3),
    ).outcomes

    assert done.error is None
    assert isinstance(rejected.error, Rejected)
    assert (rejected.error.code, rejected.error.text) == ("negative", "Only up.")
    assert isinstance(failed.error, Quarantined)
    assert str(failed.error) == "RuntimeError"


def test_an_idempotency_key_is_one_command(image):
    """The same key gives the first reply again, whatever session and sequence number it comes with."""
    first = handle(image, Sent("ada", Count(by=3), sequence=1, idempotency_key="once"))
    again = handle(image, Sent("ada", Count(by=3), session="t", sequence=9, idempotency_key="once"))

    assert replies(first) == replies(again) == ["reply 3"]
    assert count_of(image) == 3
    assert image.recall("t", 9).body == b"3"


@pytest.mark.parametrize("other", [Sent("ada", Count(by=4)), Sent("bob", Count(by=3)), Sent("ada", Hear(text="x"))])
def test_an_idempotency_key_cannot_be_used_for_another_command(image, other):
    """Other fields, another entity or another kind of command under a used key is rejected, and changes nothing."""
    handle(image, Sent("ada", Count(by=3), sequence=1, idempotency_key="once"))
    before = shown(image.entities["desk"]["ada"])

    refused = handle(image, other._replace(sequence=2, idempotency_key="once"))

    assert replies(refused) == [REUSED]
    assert shown(image.entities["desk"]["ada"]) == before
    assert image.count() == 1


def test_the_window_of_idempotency_keys():
    """The latest keys are kept, exactly as many as the window says; the oldest falls out first."""
    image = Image(0, CODEC, window=Window(idempotency_keys=2))
    keys = iter(range(100))

    def send(key: str) -> list[str]:
        return replies(handle(image, Sent("ada", Count(), sequence=next(keys), idempotency_key=key)))

    assert [send(key) for key in "aba"] == [["reply 1"], ["reply 2"], ["reply 1"]]
    assert send("c") == ["reply 3"]
    assert send("b") == ["reply 2"]
    assert send("a") == ["reply 4"]
    assert list(image.dedupe.keys) == ["c", "a"]


def active(image: Image, *sessions: str) -> None:
    """A command from each of the sessions, in one record."""
    handle(image, *(Sent("ada", Count(), session=session, sequence=image.offset) for session in sessions))


def test_the_window_of_sessions():
    """When twice the window's sessions are known, a new one makes room by the idle half; those in use stay."""
    image = Image(0, CODEC, window=Window(sessions=2))
    for session in ("a", "b", "c", "d", "b"):
        active(image, session)
    assert sorted(image.dedupe.sessions) == ["a", "b", "c", "d"]

    active(image, "e")

    assert sorted(image.dedupe.sessions) == ["b", "d", "e"]
    assert image.recall("b", 4) is not None
    assert image.recall("a", 0) is None


def test_the_window_of_sessions_forgets_the_same_on_every_owner():
    """Which sessions fall out follows from the log alone, also when they were active in the same record."""
    images = [Image(0, CODEC, window=Window(sessions=2)) for _ in range(2)]
    for image, order in zip(images, ("dcba", "abcd"), strict=True):
        active(image, *order)
    copy = restored(*whole_freeze(images[0]), window=Window(sessions=2))

    for image in (*images, copy):
        active(image, "e")

    assert [sorted(image.dedupe.sessions) for image in (*images, copy)] == [["c", "d", "e"]] * 3


def test_outside_the_window_a_command_is_new():
    """A session that was forgotten starts anew: its old command is handled again."""
    image = Image(0, CODEC, window=Window(sessions=1))
    old = Sent("ada", Count(), session="a", sequence=0)
    handle(image, old)
    active(image, "b")
    active(image, "c")

    assert replies(handle(image, old)) == ["reply 4"]


# Messages


def test_messages_are_handled_once(image):
    """A message whose origin was seen is dropped, be it in another record or among new ones."""
    one, two, three = ((Origin(4, 0, n), "ada", Count(by=10**n)) for n in range(3))

    handled = image.handle(messages(image, one, two))
    image.handle(messages(image, one, two, three))
    image.handle(messages(image, three))

    assert count_of(image) == 111
    assert image.origins == {1: Origin(4, 0, 2)}
    assert (handled.writer, handled.outcomes) == ("", [])


def test_origins_are_kept_by_partition(image):
    """The same origin in another partition is another message."""
    for origin in (1, 2, 1):
        image.handle(messages(image, (Origin(4, 0, 0), "ada", Count()), origin=origin))

    assert count_of(image) == 2
    assert image.origins == {1: Origin(4, 0, 0), 2: Origin(4, 0, 0)}


def test_a_refused_message_is_done_with(image):
    """A message that is rejected or fails changes nothing, and is not tried again."""
    refused = [(Origin(4, 0, 0), "ada", Count(by=-1)), (Origin(4, 0, 1), "ada", Work(end="fail", tell=["bob"]))]

    handled = image.handle(messages(image, *refused))
    image.handle(messages(image, *refused))

    assert image.count() == 0
    assert handled.messages == handled.events == []
    assert list(handled.failures) == [1]
    assert image.quarantine.count == 1


# Effects


def test_effects_say_where_they_come_from(image):
    """Messages and events leave in order, each with offset, index and number of its command, and with its body."""
    handle(image, Sent("ada", Count()))

    handled = handle(
        image,
        Sent("ada", Work(tell=["bob", "cleo"]), sequence=1),
        Sent("bob", Work(tell=["x", "y"], end="reject"), sequence=2),
        Sent("cleo", Work(tell=["x"], end="fail"), sequence=3),
        Sent("bob", Work(tell=["ada"]), sequence=4),
    )

    assert [(m.key, m.name, m.version, m.origin) for m in handled.messages] == [
        ("bob", "hear", 1, Origin(1, 0, 0)),
        ("cleo", "hear", 1, Origin(1, 0, 1)),
        ("ada", "hear", 1, Origin(1, 3, 0)),
    ]
    assert [e[:4] for e in handled.events] == [(0, 1, 0, 0), (0, 1, 0, 1), (0, 1, 3, 0)]
    assert [(e.key, e.body, e.root) for e in handled.events] == [
        ("ada", b'{"text":"bob"}', "0:1.0"), ("ada", b'{"text":"cleo"}', "0:1.0"), ("bob", b'{"text":"ada"}', "0:1.3"),
    ]  # fmt: skip


# All or nothing


@dataclass(slots=True, kw_only=True)
class Line(Part):
    text: str = ""
    below: "list[Line]" = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Note(Entity, name="note"):
    edits: int = 0
    tags: list[str] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    index: dict[str, list[int]] = field(default_factory=dict)
    title: Line | None = None


def scribble(note: Note) -> None:
    """Changes everything there is."""
    note.edits += 1
    note.tags.append("tag")
    note.lines.append(Line(text="line"))
    note.lines[0].text += "!"
    note.lines[0].below.append(Line())
    note.index.setdefault("a", []).append(note.edits)
    note.index["b"] = note.index["a"]
    note.title = note.lines[0]


class Edited(Event, name="edited"):
    text: str


class Unlisted(Event, name="unlisted"):
    pass


class Edit(Command[Note, int], name="edit"):
    def handle(self, note: Note, ctx: Context) -> int:
        scribble(note)
        ctx.send("other", Edit())
        ctx.emit(Edited(text="x"))
        return note.edits


class Scrawl(Command[Note, None], name="scrawl"):
    """The same name as that of another class: not the app's."""

    def handle(self, note: Note, ctx: Context) -> None: ...


# What a handler must not do, or may do wrong, with the exception that it comes to.
WAYS: dict[str, tuple[Callable[[Note, Context], object], str]] = {
    "divide by zero": (lambda _note, _ctx: 1 // 0, "ZeroDivisionError"),
    "change the key": (lambda note, _ctx: setattr(note, "key", "another"), "Misuse"),
    "delete a number": (lambda note, _ctx: delattr(note, "edits"), "AttributeError"),
    "delete a list": (lambda note, _ctx: delattr(note, "tags"), "AttributeError"),
    "tie a knot": (lambda note, _ctx: note.lines[0].below.append(note.lines[0]), "RecursionError"),
    "send to nobody": (lambda _note, ctx: ctx.send("", Edit()), "Misuse"),
    "send to a long key": (lambda _note, ctx: ctx.send("k" * 2000, Edit()), "Misuse"),
    "send what is not listed": (lambda _note, ctx: ctx.send("other", Scrawl()), "Misuse"),
    "send no command": (lambda _note, ctx: ctx.send("other", "Edit"), "Misuse"),
    "send what cannot be written": (
        lambda _note, ctx: ctx.send("other", Spoil(way="\ud800")),
        "PydanticSerializationError",
    ),
    "emit what is not listed": (lambda _note, ctx: ctx.emit(Unlisted()), "Misuse"),
    "emit what cannot be written": (lambda _note, ctx: ctx.emit(Edited(text="\ud800")), "PydanticSerializationError"),
}


class Spoil(Command[Note, int], name="spoil"):
    """Changes and sends much, and then does something wrong, or replies what it should not."""

    way: str
    reply: int | str | None = 0

    def handle(self, note: Note, ctx: Context) -> int:
        scribble(note)
        ctx.send("other", Edit())
        ctx.emit(Edited(text="x"))
        if self.way == "reject":
            raise Rejected("spoilt", "As asked.")
        if self.way in WAYS:
            WAYS[self.way][0](note, ctx)
        return self.reply


class Edits(Query[Note, int], name="edits"):
    def answer(self, note: Note) -> int:
        return note.edits


class Meddle(Query[Note, int], name="meddle"):
    """Reads as no query should: it changes what it reads."""

    what: str
    reject: bool = False

    def answer(self, note: Note) -> int:
        match self.what:
            case "field":
                note.edits += 1
            case "list":
                note.tags.append("x")
            case "part":
                note.lines[0].text = "x"
            case "nested":
                note.index.setdefault("new", []).append(1)
            case "all":
                scribble(note)
        if self.reject:
            raise Rejected("no")
        return note.edits


class Tags(Query[Note, list[str]], name="tags"):
    def answer(self, note: Note) -> list[str]:
        return note.tags


class Vague(Query[Note, int], name="vague"):
    text: str | None

    def answer(self, note: Note) -> int:
        return self.text


notes = Codec(App("notes", commands=[Edit, Spoil], queries=[Edits, Meddle, Tags, Vague], events=[Edited]))


@pytest.fixture
def notebook() -> Image:
    """An image with one note that was edited twice."""
    image = Image(0, notes)
    handle(image, Sent("ada", Edit(), sequence=1), Sent("ada", Edit(), sequence=2))
    return image


def state(image: Image) -> dict[str, bytes]:
    return {key: shown(entity) for key, entity in image.entities["note"].items()}


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (Spoil(way="reject"), None),
        (Spoil(way="reply text", reply="many"), "PydanticSerializationError"),
        (Spoil(way="reply nothing", reply=None), "PydanticSerializationError"),
        *((Spoil(way=way), error) for way, (_, error) in WAYS.items()),
    ],
    ids=lambda value: value.way if isinstance(value, Spoil) else "",
)
def test_a_handler_that_does_not_end_well_leaves_no_trace(notebook, command, error):
    """Whatever goes wrong, and however late: state and effects are as before, and the next command works."""
    before = state(notebook)

    handled = handle(notebook, Sent("ada", command, sequence=3), Sent("new", command, sequence=4))

    verdict = Verdict.QUARANTINED if error else Verdict.REJECTED
    assert [outcome.verdict for outcome in handled.outcomes] == [verdict, verdict]
    assert [type(problem).__name__ for problem in handled.failures.values()] == ([error] * 2 if error else [])
    assert handled.messages == handled.events == []
    assert state(notebook) == before
    assert_all_is_tracked(notebook.entities["note"]["ada"], notebook._undo)
    after = handle(notebook, Sent("ada", Edit(), sequence=5))
    assert replies(after) == ["reply 3"]
    assert (len(after.messages), len(after.events)) == (1, 1)


def test_a_failed_command_differs_from_one_that_did_nothing_in_nothing():
    """The digest of the whole image does not tell whether a handler changed much before it raised."""
    busy, idle = Image(0, CODEC), Image(0, CODEC)
    for end in ("reply", "reject", "fail"):
        steps = [Step("append"), Step("set_key", a=70), Step("delete_key", a=3), Step("nest", a=1)]
        for image, program in ((busy, steps), (idle, steps if end == "reply" else [])):
            handle(image, Sent("ada", Work(steps=program, end=end, tell=["bob"]), sequence=image.offset))

    assert busy.digest() == idle.digest()


def test_an_entity_begins_with_a_command_that_succeeds(image):
    """A key whose first command is refused has no entity; the next command that succeeds makes it, from the start."""
    handle(
        image, Sent("ada", Count(by=-1), sequence=1), Sent("ada", Work(steps=[Step("append")], end="fail"), sequence=2)
    )
    assert image.count() == 0
    assert image.entities == {"desk": {}}

    assert replies(handle(image, Sent("ada", Count(by=2), sequence=3))) == ["reply 2"]
    assert list(image.entities["desk"]) == ["ada"]


@dataclass(slots=True, kw_only=True)
class Empty(Entity, name="empty"):
    """An entity that is only there."""


@dataclass(slots=True, kw_only=True)
class Single(Entity, name="single"):
    held: list[int] = field(default_factory=list)


class Make(Command[Empty, str], name="make"):
    fail: bool = False

    def handle(self, empty: Empty, ctx: Context) -> str:
        if self.fail:
            empty.key = "another"
        return empty.key


class Hold(Command[Single, int], name="hold"):
    fail: bool = False

    def handle(self, single: Single, ctx: Context) -> int:
        single.held.append(1)
        if self.fail:
            single.held = []
            single.key = "another"
        return len(single.held)


def test_entities_with_hardly_any_fields():
    """All or nothing holds for an entity with one field, and with none but its key."""
    image = Image(0, Codec(App("small", commands=[Make, Hold])))

    handled = handle(
        image,
        *(Sent("a", Make(fail=fail), sequence=n) for n, fail in enumerate([True, False, True])),
        *(Sent("a", Hold(fail=fail), sequence=n) for n, fail in enumerate([True, False, True, False], 3)),
    )

    misuse = 'quarantined {"error": "Misuse"}'
    assert replies(handled) == [misuse, 'reply "a"', misuse, misuse, "reply 1", misuse, "reply 2"]
    assert image.entities == {"empty": {"a": Empty(key="a")}, "single": {"a": Single(key="a", held=[1, 1])}}


def test_quarantine(image):
    """A quarantined command is listed with its place and its error, and the partition goes on."""
    handled = handle(
        image,
        Sent("ada", Count(), sequence=1),
        Sent("ada", Work(end="fail"), sequence=2),
        Sent("ada", Count(), sequence=3),
    )

    assert replies(handled) == ["reply 1", 'quarantined {"error": "RuntimeError"}', "reply 2"]
    (row,) = image.quarantine.listed
    assert row[:4] == (0, 1, "work", "ada")
    assert image.codec.decode_command(row.command, row.version, row.body.encode()) == Work(end="fail")
    assert row.error == "RuntimeError: as asked"
    assert 'raise RuntimeError("as asked")' in row.traceback
    assert "image.py" not in row.traceback, "it begins with the handler"
    assert image.quarantine.count == 1
    assert [str(problem) for problem in handled.failures.values()] == ["as asked"]
    assert handled.failures[1].__traceback__ is not None


def test_the_list_of_quarantined_commands_is_bounded(image):
    """Beyond its bound commands are only counted: a flood of failures does not fill the memory."""
    handle(image, *(Sent("ada", Work(end="fail"), sequence=n) for n in range(LISTED + 5)))

    assert len(image.quarantine.listed) == LISTED
    assert image.quarantine.count == LISTED + 5


def test_assigned_containers_belong_to_the_image(image):
    """A plain list, dict or part that a handler assigns is tracked after the command, at any depth."""
    steps = [Step("assign_cards"), Step("assign_rows"), Step("assign_many"), Step("assign_top", b=1), Step("swap")]
    handle(image, Sent("ada", Work(steps=steps)))

    desk = image.entities["desk"]["ada"]
    assert_all_is_tracked(desk, image._undo)
    before = shown(desk)
    handle(image, Sent("ada", Work(steps=[*steps, Step("append", target=3), Step("like")], end="reject"), sequence=1))
    assert shown(desk) == before


def test_ids_and_randomness_belong_to_the_command(image):
    """Two commands of one record, at the same time, get different ids and numbers; a replay gets the same."""
    record = commands(image, Sent("ada", Work(), sequence=1), Sent("bob", Work(), sequence=2))
    replica = Image(0, CODEC)

    live, replayed = image.handle(record), replica.handle(record)

    one, other = (image.entities["desk"][key].note for key in ("ada", "bob"))
    assert one != other
    assert replies(live)[0] != replies(live)[1]
    assert replies(live) == replies(replayed)
    assert image.digest() == replica.digest()


def test_a_handler_knows_its_position(image):
    """The position that a handler sees is that of its command."""
    seen = []

    class Where(Command[Note, None], name="where"):
        def handle(self, note: Note, ctx: Context) -> None:
            seen.append(ctx.position)

    image = Image(3, Codec(App("where", commands=[Where])))
    handle(image, Sent("a", Where(), sequence=1), Sent("a", Where(), sequence=2))
    handle(image, Sent("a", Where(), sequence=3))

    assert seen == [Position(3, 0, 0), Position(3, 0, 1), Position(3, 1, 0)]


# Damage


@settings(deadline=None)
@given(st.data())
def test_a_damaged_record_touches_nothing(data):
    """A record of which bytes were lost or changed is `Corrupt` and leaves the image as it was, or is handled whole."""
    image = Image(0, CODEC)
    handle(image, Sent("ada", Count(), sequence=1))
    before = image.digest(), image.handled
    whole = commands(image, *(Sent("ada", Count(by=n), session=f"s{n}", sequence=n) for n in range(2, 5)))
    start = data.draw(st.integers(0, len(whole.payload)))
    end = data.draw(st.integers(start, len(whole.payload)))
    new = data.draw(st.binary(max_size=2) | st.sampled_from([b"0", b"9", b"-1", b"[]", b"]", b"\n"]))
    damaged = whole._replace(payload=whole.payload[:start] + new + whole.payload[end:])

    try:
        handled = image.handle(damaged)
    except Corrupt:
        assert (image.digest(), image.handled, image.offset) == (*before, 1)
    else:
        assert len(handled.outcomes) == 3
        assert image.offset == 2


@pytest.mark.parametrize(
    "columns",
    [{"sequence": [1]}, {"session": [0, 0]}, {"session": [0, 0, 7]}, {"keys": ["ada"]}, {"which": [0]}],
    ids=str,
)
def test_a_record_is_checked_before_its_first_command(image, columns):
    """A header that is wrong for a later command of the record stops the earlier ones as well."""
    whole = commands(image, *(Sent("ada", Count(), sequence=n) for n in range(3)))
    head, *lines = whole.payload.split(b"\n")
    damaged = json.dumps({**json.loads(head), **columns}).encode()

    with pytest.raises(Corrupt, match="Record 0 of partition 0 cannot be decoded"):
        image.handle(whole._replace(payload=b"\n".join([damaged, *lines])))

    assert (image.count(), image.handled, image.offset) == (0, 0, 0)


def test_messages_are_checked_before_the_first(image):
    """So it is with messages."""
    whole = messages(image, *((Origin(0, 0, n), "ada", Count()) for n in range(3)))
    assert whole.kind is Kind.MESSAGES
    damaged = whole.payload.replace(b'"numbers":[0,1,2]', b'"numbers":[0,1]')

    with pytest.raises(Corrupt, match=r"its columns differ in length: \[2, 3\]"):
        image.handle(whole._replace(payload=damaged))

    assert image.count() == 0


# Queries


def test_a_query_reads_live_state(notebook):
    """A query answers from the entity as it is now, as JSON."""
    assert notebook.ask(Edits(), "ada") == b"2"
    assert notebook.ask(Tags(), "ada") == b'["tag","tag"]'


def test_a_query_of_a_key_that_nobody_reached(notebook):
    """It is answered from a fresh entity, which is not kept."""
    assert notebook.ask(Edits(), "nobody") == b"0"
    assert list(notebook.entities["note"]) == ["ada"]


@pytest.mark.parametrize("what", ["field", "list", "part", "nested", "all"])
def test_a_query_that_changes_state_is_refused(notebook, what):
    """The change is taken back, and the query fails: queries only read."""
    before = state(notebook), notebook.digest()

    with pytest.raises(Misuse, match="Query Meddle changed its entity; queries only read"):
        notebook.ask(Meddle(what=what), "ada")

    assert (state(notebook), notebook.digest()) == before
    assert_all_is_tracked(notebook.entities["note"]["ada"], notebook._undo)
    assert replies(handle(notebook, Sent("ada", Edit(), sequence=5))) == ["reply 3"]


def test_a_query_may_be_rejected(notebook):
    """A query may refuse to answer; a change that it made before that is taken back as well."""
    before = notebook.digest()

    with pytest.raises(Rejected, match="no"):
        notebook.ask(Meddle(what="all", reject=True), "ada")

    assert notebook.digest() == before


@pytest.mark.parametrize("text", ["many", None])
def test_an_answer_of_another_type(notebook, text):
    """An answer that is not of the declared type is an error, not something for the asker to find out."""
    with pytest.raises(PydanticSerializationError):
        notebook.ask(Vague(text=text), "ada")
