"""Mistakes of an app's author that a type checker finds, so that they need not be found at run time."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

START = """
from dataclasses import dataclass

from engram import App, Client, Command, Context, Entity, Event, Principal, Query


@dataclass(slots=True, kw_only=True)
class User(Entity, name="user"):
    posts: int = 0


@dataclass(slots=True, kw_only=True)
class Page(Entity, name="page"):
    text: str = ""


class Publish(Command[User, str], name="publish"):
    text: str

    def handle(self, user: User, ctx: Context) -> str:
        user.posts += 1
        return ctx.new_id()


class Posts(Query[User, int], name="posts"):
    def answer(self, user: User) -> int:
        return user.posts


app = App("social", commands=[Publish], queries=[Posts])
"""

# A mistake that is added to the good app, and the code of the error that must be found in it.
MISTAKES = {
    "wrong_entity": (
        """
class Like(Command[User, None], name="like"):
    def handle(self, page: Page, ctx: Context) -> None: ...
""",
        "override",
    ),
    "wrong_entity_to_authorize": (
        """
class Likes(Query[User, int], name="likes"):
    def answer(self, user: User) -> int:
        return 0

    def authorize_entity(self, principal: Principal, page: Page) -> bool:
        return True
""",
        "override",
    ),
    "wrong_reply_declared": (
        """
class Like(Command[User, int], name="like"):
    def handle(self, user: User, ctx: Context) -> str:
        return ""
""",
        "override",
    ),
    "wrong_reply_returned": (
        """
class Like(Command[User, int], name="like"):
    def handle(self, user: User, ctx: Context) -> int:
        return user.key
""",
        "return-value",
    ),
    "no_context": (
        """
class Like(Command[User, None], name="like"):
    def handle(self, user: User) -> None: ...
""",
        "override",
    ),
    "wrong_context": (
        """
class Like(Command[User, None], name="like"):
    def handle(self, user: User, ctx: int) -> None: ...
""",
        "override",
    ),
    "query_with_context": (
        """
class Likes(Query[User, int], name="likes"):
    def answer(self, user: User, ctx: Context) -> int:
        return 0
""",
        "override",
    ),
    "query_of_another_entity": (
        """
class Likes(Query[User, int], name="likes"):
    def answer(self, page: Page) -> int:
        return 0
""",
        "override",
    ),
    "not_an_entity": (
        """
class Like(Command[int, None], name="like"):
    def handle(self, user: int, ctx: Context) -> None: ...
""",
        "type-var",
    ),
    "unknown_field_of_an_entity": (
        """
def likes(user: User) -> int:
    return user.likes
""",
        "attr-defined",
    ),
    "unknown_field_of_a_command": ('Publish(text="x", to="all")', "call-arg"),
    "missing_field_of_a_command": ("Publish()", "call-arg"),
    "command_is_frozen": ('Publish(text="x").text = "y"', "misc"),
    "query_among_the_commands": ('App("social", commands=[Posts])', "list-item"),
    "wrong_use_of_a_reply": (
        """
async def publish(client: Client) -> int:
    return await client.send("ada", Publish(text="x"))
""",
        "arg-type",
    ),
    "wrong_use_of_an_answer": (
        """
async def posts(client: Client) -> str:
    return await client.ask("ada", Posts())
""",
        "arg-type",
    ),
    "a_query_is_not_sent": (
        """
async def send(client: Client) -> None:
    await client.send("ada", Posts())
""",
        "arg-type",
    ),
    "an_event_is_not_sent": (
        """
class Seen(Event, name="seen"):
    text: str


def tell(ctx: Context) -> None:
    ctx.send("ada", Seen(text="x"))
""",
        "arg-type",
    ),
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The codes of the errors that mypy finds in each file, in one run over all of them."""
    folder = tmp_path_factory.mktemp("snippets")
    (folder / "good.py").write_text(START)
    for name, (mistake, _) in MISTAKES.items():
        (folder / f"{name}.py").write_text(f"{START}\n\n{mistake}")
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", *sorted(map(str, folder.glob("*.py")))],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert checked.returncode in (0, 1), checked.stdout + checked.stderr
    codes: dict[str, set[str]] = {name: set() for name in ("good", *MISTAKES)}
    for name, code in re.findall(r"(\w+)\.py:\d+: error: .*\[([a-z-]+)\]$", checked.stdout, re.MULTILINE):
        codes[name].add(code)
    return codes


def test_a_good_app_passes(found):
    """An app as in the documentation has no errors under `mypy --strict`."""
    assert found["good"] == set()


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_a_type_error(found, mistake):
    """Each mistake is found, by the error that it is."""
    _, code = MISTAKES[mistake]

    assert code in found[mistake]
