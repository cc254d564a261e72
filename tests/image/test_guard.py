"""What is captured before a handler runs: what it can assign, or everything when that cannot be told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps

import pytest
from engram import App, Command, Context, Entity, Rejected
from engram.codec.codec import Codec
from engram.codec.record import Envelope, Kind, Record, encode_commands
from engram.image.guard import assigned_fields, guard_for
from engram.image.image import Image

ALL = None


@dataclass(slots=True, kw_only=True)
class Desk(Entity, name="desk"):
    drawers: list[str] = field(default_factory=list)
    height: int = 0
    owner: str = ""

    def clear(self) -> None:
        self.drawers = []
        self.owner = ""

    @property
    def lowered(self) -> int:
        self.height -= 1
        return self.height

    @staticmethod
    def same(desk: Desk) -> Desk:
        desk.owner = "same"
        return desk


def tidy(desk: Desk) -> None:
    desk.height = 0
    desk.drawers = ["tidy"]


def tidy_for(owner: str, *, desk: Desk) -> None:
    tidy(desk)
    desk.owner = owner


def returned(desk: Desk) -> Desk:
    return desk


def again(desk: Desk, times: int) -> None:
    desk.height = times
    if times:
        again(desk, times - 1)


def ping(desk: Desk) -> None:
    desk.height += 1
    if desk.height < 10:
        pong(desk)


def pong(desk: Desk) -> None:
    ping(desk)
    desk.owner = "pong"


def with_all(*desks: Desk) -> None:
    for desk in desks:
        desk.owner = "one of all"


@wraps(tidy)
def wrapped(desk: Desk) -> None:
    desk.owner = "wrapped"


def wrap(function: Callable[[Desk], None]) -> Callable[[Desk], None]:
    def around(desk: Desk) -> None:
        desk.owner = "around"
        function(desk)

    return around


@wrap
def decorated(desk: Desk) -> None:
    desk.height = 1


by_lambda = lambda desk: setattr(desk, "owner", "lambda")  # noqa: E731


class Raise(Command[Desk, None], name="raise"):
    def handle(self, desk: Desk, ctx: Context) -> None:
        desk.height += 1
        raise Rejected("no")


class Fill(Command[Desk, None], name="fill"):
    def handle(self, desk: Desk, ctx: Context) -> None:
        desk.drawers.append("pen")
        for other in desk.drawers:
            desk.drawers[0] = other + desk.owner
        raise Rejected("no")


class Swap(Command[Desk, None], name="swap"):
    def handle(self, desk: Desk, ctx: Context) -> None:
        desk.owner, desk.drawers = "swapped", [desk.owner]
        desk.drawers.append("x")
        raise Rejected("no")


class Tidy(Command[Desk, None], name="tidy"):
    def handle(self, desk: Desk, ctx: Context) -> None:
        tidy(desk)
        raise Rejected("no")


class Clear(Command[Desk, None], name="clear"):
    def handle(self, desk: Desk, ctx: Context) -> None:
        desk.clear()
        raise Rejected("no")


class Alias(Command[Desk, None], name="alias"):
    def handle(self, desk: Desk, ctx: Context) -> None:
        it = desk
        it.owner = "alias"
        raise Rejected("no")


class Forget(Command[Desk, None], name="forget"):
    def handle(self, desk: Desk, ctx: Context) -> None:
        del desk.owner
        raise Rejected("no")


class Later(Command[Desk, None], name="later"):
    def handle(self, desk: Desk, ctx: Context) -> None:
        def rename() -> None:
            desk.owner = "later"

        rename()
        raise Rejected("no")


class Rekey(Command[Desk, None], name="rekey"):
    def handle(self, desk: Desk, ctx: Context) -> None:
        desk.key = "another"
        raise Rejected("no")


class TidyFor(Command[Desk, None], name="tidy_for"):
    def handle(self, desk: Desk, ctx: Context) -> None:
        tidy_for("ada", desk=desk)
        raise Rejected("no")


class Lower(Command[Desk, None], name="lower"):
    def handle(self, desk: Desk, ctx: Context) -> None:
        if desk.lowered < 100:
            raise Rejected("no")


class Divide(Command[Desk, None], name="divide"):
    def handle(self, desk: Desk, ctx: Context) -> None:
        desk.height = desk.lowered // 0


class Return(Command[Desk, None], name="return"):
    def handle(self, desk: Desk, ctx: Context) -> None:
        returned(desk).owner = "returned"
        raise Rejected("no")


class Again(Command[Desk, None], name="again"):
    def handle(self, desk: Desk, ctx: Context) -> None:
        again(desk, 3)
        raise Rejected("no")


class Mutual(Command[Desk, None], name="mutual"):
    def handle(self, desk: Desk, ctx: Context) -> None:
        ping(desk)
        raise Rejected("no")


class WithAll(Command[Desk, None], name="with_all"):
    def handle(self, desk: Desk, ctx: Context) -> None:
        with_all(desk)
        raise Rejected("no")


class Starred(Command[Desk, None], name="starred"):
    def handle(self, desk: Desk, ctx: Context) -> None:
        named = {"desk": desk}
        tidy_for("eve", **named)
        raise Rejected("no")


class AfterStar(Command[Desk, None], name="after_star"):
    def handle(self, desk: Desk, ctx: Context) -> None:
        which = [1]
        last_of_two(*which, desk)
        raise Rejected("no")


def last_of_two(number: int, desk: Desk) -> None:
    desk.height = number


class Wrapped(Command[Desk, None], name="wrapped"):
    def handle(self, desk: Desk, ctx: Context) -> None:
        wrapped(desk)
        raise Rejected("no")


class Decorated(Command[Desk, None], name="decorated"):
    def handle(self, desk: Desk, ctx: Context) -> None:
        decorated(desk)
        raise Rejected("no")


class ByLambda(Command[Desk, None], name="by_lambda"):
    def handle(self, desk: Desk, ctx: Context) -> None:
        by_lambda(desk)
        raise Rejected("no")


class BuiltIn(Command[Desk, None], name="built_in"):
    def handle(self, desk: Desk, ctx: Context) -> None:
        setattr(desk, "owner", "built in")  # noqa: B010
        raise Rejected("no")


class Static(Command[Desk, None], name="static"):
    def handle(self, desk: Desk, ctx: Context) -> None:
        desk.same(desk)
        raise Rejected("no")


class Shadowed(Command[Desk, None], name="shadowed"):
    """Its `tidy` is not that of the module."""

    def handle(self, desk: Desk, ctx: Context) -> None:
        def tidy(desk: Desk) -> None:
            returned(desk).owner = "shadowed"

        tidy(desk)
        raise Rejected("no")


class Given(Command[Desk, None], name="given"):
    """Nor is this one's."""

    def handle(self, desk: Desk, ctx: Context) -> None:
        for tidy in (returned, by_lambda):
            tidy(desk)
        raise Rejected("no")


CAPTURED = {
    Raise: {"height"},
    Fill: set(),
    Swap: {"owner", "drawers"},
    Tidy: {"height", "drawers"},
    Clear: {"drawers", "owner"},
    TidyFor: {"height", "drawers", "owner"},
    Lower: {"height"},
    Divide: {"height"},
    AfterStar: ALL,
    Again: ALL,
    BuiltIn: ALL,
    ByLambda: ALL,
    Decorated: ALL,
    Given: ALL,
    Mutual: ALL,
    Return: ALL,
    Shadowed: ALL,
    Starred: ALL,
    Static: ALL,
    WithAll: ALL,
    Wrapped: ALL,
    Alias: ALL,
    Forget: ALL,
    Later: {"owner"},
    Rekey: {"key"},
}


def named(case: object) -> str:
    return getattr(case, "__name__", "")


@pytest.mark.parametrize(("command", "fields"), CAPTURED.items(), ids=named)
def test_the_source_tells_what_a_handler_can_assign(command, fields):
    """Fields that are assigned by name, also in functions of modules that it calls by their names, and in methods and
    properties; everything when the entity goes out of sight."""
    assert assigned_fields(command.handle, Desk) == fields


@pytest.mark.parametrize("command", CAPTURED, ids=named)
def test_whatever_is_captured_a_handler_that_raises_leaves_no_trace(command):
    """State is as before, and stays so when the next handler raises too."""
    image = Image(0, Codec(App("office", commands=list(CAPTURED))))
    desk = Desk(key="d", drawers=["a", "b"], height=7, owner="ada")
    image._homes[Desk].put("d", desk)
    rows = [Envelope(command.__engram__.name, 1, "d", b"{}", "s", number) for number in range(2)]

    handled = image.handle(Record(0, 0, Kind.COMMANDS, 0, encode_commands(rows, "w")))

    failed = "quarantined" if command is Divide else "rejected"
    assert [outcome.verdict for outcome in handled.outcomes] == [failed, failed]
    assert image.entities["desk"]["d"] == Desk(key="d", drawers=["a", "b"], height=7, owner="ada")


def test_without_source_everything_is_captured():
    """A handler that was not read from a file, or one that is wrapped, is not trusted."""
    namespace: dict[str, object] = {}
    exec("def handle(self, desk, ctx):\n    desk.height = 1\n", namespace)

    assert assigned_fields(namespace["handle"], Desk) is ALL
    assert assigned_fields(lambda self, desk, ctx: None, Desk) is ALL
    assert guard_for(Desk, ALL).names == ("drawers", "height", "owner")


def test_source_that_is_not_that_of_the_running_code_is_not_trusted():
    """A file that was edited after it was imported says nothing of what runs."""

    def handle(self, desk, ctx):
        desk.height = 1

    def other(self, desk, ctx):
        desk.owner = "x"

    handle.__code__ = handle.__code__.replace(co_names=other.__code__.co_names)

    assert assigned_fields(handle, Desk) is ALL


def test_a_field_that_is_assigned_a_list_gets_a_list_of_the_images_own():
    """After such a command the next one's changes to it are taken back as well."""

    class Assign(Command[Desk, None], name="assign"):
        def handle(self, desk: Desk, ctx: Context) -> None:
            desk.drawers = ["new"]

    image = Image(0, Codec(App("office", commands=[Assign, Fill])))
    rows = [Envelope(name, 1, "d", b"{}", "s", number) for number, name in enumerate(["assign", "fill"])]

    image.handle(Record(0, 0, Kind.COMMANDS, 0, encode_commands(rows, "w")))

    assert image.entities["desk"]["d"].drawers == ["new"]
