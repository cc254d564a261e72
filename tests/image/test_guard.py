"""What is captured before a handler runs: what it can assign, or everything when that cannot be told."""

from __future__ import annotations

from dataclasses import dataclass, field

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


def tidy(desk: Desk) -> None:
    desk.height = 0
    desk.drawers = ["tidy"]


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


CAPTURED = {
    Raise: {"height"},
    Fill: set(),
    Swap: {"owner", "drawers"},
    Tidy: ALL,
    Clear: ALL,
    Alias: ALL,
    Forget: ALL,
    Later: {"owner"},
    Rekey: {"key"},
}


def named(case: object) -> str:
    return getattr(case, "__name__", "")


@pytest.mark.parametrize(("command", "fields"), CAPTURED.items(), ids=named)
def test_the_source_tells_what_a_handler_can_assign(command, fields):
    """Fields that are assigned by name; everything when the entity goes out of sight."""
    assert assigned_fields(command.handle, Desk) == fields


@pytest.mark.parametrize("command", CAPTURED, ids=named)
def test_whatever_is_captured_a_handler_that_raises_leaves_no_trace(command):
    """State is as before, and stays so when the next handler raises too."""
    image = Image(0, Codec(App("office", commands=list(CAPTURED))))
    desk = Desk(key="d", drawers=["a", "b"], height=7, owner="ada")
    image._homes[Desk].put("d", desk)
    rows = [Envelope(command.__engram__.name, 1, "d", b"{}", "s", number) for number in range(2)]

    handled = image.handle(Record(0, 0, Kind.COMMANDS, 0, encode_commands(rows, "w")))

    assert [outcome.verdict for outcome in handled.outcomes] == ["rejected", "rejected"]
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
