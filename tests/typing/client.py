"""What a caller of the client sees. Not run: mypy and pyright read it."""

from typing import Any, assert_type

from engram import Client, EngramError, Position, Ranked, Rejected, Token, Totals
from engram.image.outcome import Verdict
from engram.serving.failed import Dropped, FailedCommands
from engram.serving.rows import Rows
from engram.serving.rpc import Answered, Rpc

from sample_apps.social.app import app
from sample_apps.social.commands import Follow, Publish
from sample_apps.social.queries import Following, Posts, PostView, Profile, ProfileCard
from sample_apps.social.read_models import Figures, FollowersOf, MostFollowed, PostFound, PostSearch
from sample_apps.social.rules import BanWord


async def replies(client: Client) -> None:
    """The reply of a command has the type that its class declares."""
    assert_type(await client.send("ada", Publish(text="x")), str)
    assert_type(await client.send("ada", Publish(text="x"), idempotency_key="once"), str)
    assert_type(await client.send("ada", Publish(text="x"), wait="effects"), str)
    await client.send("ada", Publish(text="x"), wait="everything")  # type: ignore[arg-type]  # there is no such thing
    assert_type(await client.submit("ada", Publish(text="x")), Position)
    assert_type(
        await client.send_many([("ada", Publish(text="x")), ("bob", Publish(text="y"))]), list[str | EngramError]
    )
    await client.send_many([("ada", Publish(text="x")), ("ada", Follow(whom="bob"))])  # of different replies
    await client.send_many([Publish(text="x")])  # type: ignore[arg-type]  # for whom
    assert_type(client.token, Token | None)
    await client.send("ada", Follow(whom="bob"))
    await client.broadcast(BanWord(word="x"))
    await client.broadcast(Publish(text="x"))  # type: ignore[arg-type]  # of one user, not of all


async def answers(client: Client, position: Position) -> None:
    """The answer of a query has the type that its class declares."""
    assert_type(await client.ask("ada", Profile()), ProfileCard)
    assert_type(await client.ask("ada", Posts(limit=3), at_least=position), list[PostView])
    assert_type(await client.ask("ada", Posts(), at_least=client.token), list[PostView])
    assert_type(await client.ask("ada", Following()), list[str])
    assert_type((await client.ask("ada", Profile())).followers, int)
    async for followers in client.watch(FollowersOf, "ada", limit=3):
        assert_type(followers, Rows[str])
    async for ranked in client.watch(MostFollowed, "everybody"):
        assert_type(ranked, Rows[Ranked[str]])
    async for found in client.watch(PostSearch, "hello"):
        assert_type(found, Rows[PostFound])
    async for totals in client.watch(Figures, "posts"):
        assert_type(totals, Totals)
    client.watch(Figures, "posts", limit=3)  # type: ignore[arg-type]  # totals are one
    client.watch("ada", "posts")  # type: ignore[call-overload]  # of an entity, a query is watched
    async for card in client.watch("ada", Profile()):
        assert_type(card, ProfileCard)


async def rows(client: Client, position: Position) -> None:
    """The rows of a read model have the type that its class declares, and each kind has its own way to be read."""
    assert_type(await client.look_up(FollowersOf, "ada"), Rows[str])
    assert_type((await client.look_up(FollowersOf, "ada", limit=3, at_least=position))[0], str)
    assert_type((await client.look_up(FollowersOf, "ada")).cursor, str | None)
    assert_type(await client.top(MostFollowed, "everybody", 3), Rows[Ranked[str]])
    assert_type(await client.search(PostSearch, "hello", after="cursor"), Rows[PostFound])
    assert_type(await client.tally(Figures, "posts"), Totals)
    await client.look_up(MostFollowed, "everybody")  # type: ignore[arg-type]  # a ranking is no lookup
    await client.tally(FollowersOf, "ada")  # type: ignore[arg-type]  # and a lookup no tally


async def opening() -> None:
    """A client is an asynchronous context manager, of its own type."""
    async with Client("http://127.0.0.1:8080", app, timeout=1.0, patience=5.0, token="x") as client:
        assert_type(client, Client)
        assert_type(await client.status(digests=True), dict[str, Any])


async def failures(client: Client, position: Position) -> None:
    """What failed comes with types, and so does what became of it."""
    assert_type(await client.quarantined(), FailedCommands)
    assert_type((await client.quarantine_row(position)).position, Position)
    assert_type((await client.retry(position)).outcome, Verdict)
    assert_type(await client.drop(position), Dropped)


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


def answers_by_rpc(rpc: Rpc, position: Position) -> None:
    """The same without a gateway."""
    assert_type(rpc.ask("ada", Profile()), ProfileCard)
    assert_type(rpc.ask("ada", Posts(limit=3), at_least=position, timeout=1.0), list[PostView])
    assert_type(rpc.ask_at("ada", Following(), at_least=rpc.token), Answered[list[str]])
    assert_type(rpc.ask_at("ada", Following()).answer, list[str])
    rpc.ask("ada", Follow(whom="bob"))  # type: ignore[arg-type]  # a command goes through the log
