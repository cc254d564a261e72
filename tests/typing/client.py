"""What a caller of the client sees. Not run: mypy and pyright read it."""

from typing import Any, assert_type

from engram import Client, Position, Rejected

from sample_apps.social.app import app
from sample_apps.social.commands import Follow, Publish
from sample_apps.social.queries import Following, Posts, PostView, Profile, ProfileCard


async def replies(client: Client) -> None:
    """The reply of a command has the type that its class declares."""
    assert_type(await client.send("ada", Publish(text="x")), str)
    assert_type(await client.send("ada", Publish(text="x"), idempotency_key="once"), str)
    assert_type(await client.submit("ada", Publish(text="x")), Position)
    await client.send("ada", Follow(whom="bob"))


async def answers(client: Client, position: Position) -> None:
    """The answer of a query has the type that its class declares."""
    assert_type(await client.ask("ada", Profile()), ProfileCard)
    assert_type(await client.ask("ada", Posts(limit=3), at_least=position), list[PostView])
    assert_type(await client.ask("ada", Following()), list[str])
    assert_type((await client.ask("ada", Profile())).followers, int)


async def opening() -> None:
    """A client is an asynchronous context manager, of its own type."""
    async with Client("http://127.0.0.1:8080", app, timeout=1.0, patience=5.0) as client:
        assert_type(client, Client)
        assert_type(await client.status(digests=True), dict[str, Any])


async def refusals(client: Client) -> None:
    """A rejection has a code for programs and a text for people."""
    try:
        await client.send("ada", Follow(whom="ada"))
    except Rejected as problem:
        assert_type(problem.code, str)
        assert_type(problem.text, str)


def positions(position: Position) -> None:
    """A position has three numbers, and is read from text."""
    assert_type(position.partition, int)
    assert_type(position.offset, int)
    assert_type(Position.parse("3:1042.7"), Position)
