"""Who may what, as an app declares it, asked without anything that runs."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from engram import App, Command, Context, Denied, Entity, Misuse, Principal, Query, Rejected, allow
from engram.codec.codec import Codec
from engram.image.image import Image
from engram.model.guarded import Guarded
from engram.model.principal import ANONYMOUS, Rule

ADA = Principal("ada")
BOB = Principal("bob", frozenset({"editor"}))
OLGA = Principal("olga", frozenset({"operator"}))

MATRIX = {
    allow.anyone: [True, True, True, True],
    allow.known: [False, True, True, True],
    allow.owner: [False, True, False, False],
    allow.operator: [False, False, False, True],
    allow.nobody: [False, False, False, False],
    allow.role("editor"): [False, False, True, False],
    allow.owner | allow.operator: [False, True, False, True],
}


@pytest.mark.parametrize(("rule", "expected"), MATRIX.items(), ids=repr)
def test_the_rules(rule: Rule, expected: list[bool]):
    """For Ada's entity: somebody without a token, Ada, Bob the editor, and Olga the operator."""
    assert [rule(who, "ada") for who in (ANONYMOUS, ADA, BOB, OLGA)] == expected


def test_somebody_without_a_name_owns_nothing():
    """Neither an empty key nor that of what is shared."""
    assert not allow.owner(ANONYMOUS, "")
    assert not allow.owner(ANONYMOUS, "*")


@dataclass(slots=True, kw_only=True)
class Page(Entity, name="page"):
    readers: str = ""
    text: str = "dear diary"
    looks: int = 0


class Write(Command[Page, None], name="write", authorize=allow.owner):
    text: str

    def handle(self, page: Page, ctx: Context) -> None:
        page.text = self.text


class Shout(Command[Page, None], name="shout"):
    text: str

    def handle(self, page: Page, ctx: Context) -> None: ...

    def authorize(self, principal: Principal, key: str) -> bool:
        return "operator" in principal.roles or len(self.text) < 10


class Undeclared(Command[Page, None], name="undeclared"):
    def handle(self, page: Page, ctx: Context) -> None: ...


class Read(Query[Page, str], name="read", authorize=allow.anyone):
    def answer(self, page: Page) -> str:
        return page.text

    def authorize_entity(self, principal: Principal, page: Page) -> bool:
        return principal.name in page.readers.split()


class Peek(Query[Page, str], name="peek", authorize=allow.anyone):
    def answer(self, page: Page) -> str:
        return page.text

    def authorize_entity(self, principal: Principal, page: Page) -> bool:
        page.looks += 1
        raise Rejected("not_today", "Come back later.")


def test_a_command_says_who_may_by_a_rule_or_by_a_method():
    """A method sees the fields; what says nothing is for nobody."""
    assert Write(text="x").authorize(ADA, "ada")
    assert not Write(text="x").authorize(OLGA, "ada")
    assert Shout(text="x").authorize(BOB, "ada")
    assert not Shout(text="x" * 10).authorize(BOB, "ada")
    assert Shout(text="x" * 10).authorize(OLGA, "ada")
    assert not any(Undeclared().authorize(who, "ada") for who in (ANONYMOUS, ADA, OLGA))
    assert (Write.says_who(), Shout.says_who(), Undeclared.says_who()) == (True, True, False)


def test_a_rule_is_inherited_and_can_be_replaced():
    """As everything of a class."""

    class WriteMore(Write, name="write_more"): ...

    class WriteAll(Write, name="write_all", authorize=allow.anyone): ...

    assert not WriteMore(text="x").authorize(BOB, "ada")
    assert WriteAll(text="x").authorize(BOB, "ada")


def test_whatever_clients_can_ask_for_can_say_who_may():
    """`Guarded` goes with any class that has keywords of its own, not only with commands and queries."""

    class Report(Guarded):
        def __init_subclass__(cls, *, name: str, authorize: Rule | None = None) -> None:
            super().__init_subclass__(authorize=authorize)

    class Sums(Report, name="sums", authorize=allow.operator): ...

    class Open(Report, name="open"): ...

    assert (Sums().authorize(OLGA, ""), Sums().authorize(ADA, "")) == (True, False)
    assert (Sums.says_who(), Open.says_who(), Open().authorize(OLGA, "")) == (True, False, False)


def test_a_rule_that_is_none_is_refused_by_the_app():
    """With what to write instead."""

    class Forget(Command[Page, None], name="forget", authorize=True):
        def handle(self, page: Page, ctx: Context) -> None: ...

    with pytest.raises(Misuse, match="Forget says authorize=True: write a rule"):
        App("diaries", commands=[Forget])


def test_the_state_decides_before_the_answer_is_made():
    """Who is no reader gets `Denied`, without a word of the text; without authentication nobody is asked."""
    image = Image(0, Codec(App("diaries", commands=[Write], queries=[Read, Peek])))

    with pytest.raises(Denied) as denied:
        image.ask(Read(), "ada", ADA)
    assert "dear diary" not in str(denied.value)
    assert image.ask(Read(), "ada") == b'"dear diary"'


def test_authorization_that_changes_the_entity_leaves_no_trace():
    """It is asked as a query is: whatever it does is taken back."""
    image = Image(0, Codec(App("diaries", commands=[Write], queries=[Read, Peek])))
    before = image.digest()

    with pytest.raises(Rejected, match="not_today"):
        image.ask(Peek(), "ada", ADA)
    assert image.digest() == before
