"""Who may what: every command, query and route of the social network, for everybody who could come."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import httpx
import pytest
from engram import Client, Denied, Rejected, Unauthenticated
from engram.model.app import entity_of
from engram.model.read_model import place_of
from engram.testing import commands
from hypothesis import HealthCheck, Phase, find, settings

from sample_apps.social import app as social
from sample_apps.social.commands import Admit, Follow, Protect, Publish, PublishLater, Register
from sample_apps.social.queries import Asking, Followers, Posts, Profile
from tests.serving.counter import app as counters
from tests.serving.running import SECONDS, RunningApp
from tests.serving.streams import STREAM, streaming
from tests.serving.tokens import access, bearer, static

NOBODY: set[str] = set()
OWNER = {"owner"}
OPERATOR = {"operator"}
EVERYBODY = {"anonymous", "other", "owner", "operator"}
WHO = {
    "anonymous": {},
    "other": bearer(static("bob")),
    "owner": bearer(static("ada")),
    "operator": bearer(static("olga")),
}

# The whole matrix of the app: who is let in, of the four. What is not here fails the first test.
MATRIX: dict[str, set[str]] = {
    **dict.fromkeys(["register", "protect", "admit", "follow", "unfollow"], OWNER),
    **dict.fromkeys(["publish", "publish_later", "discard", "like"], OWNER),
    **dict.fromkeys(["gain_follower", "lose_follower", "gain_like"], NOBODY),
    **dict.fromkeys(["deliver", "know_celebrity", "publish_draft"], NOBODY),
    **dict.fromkeys(["ban_word", "allow_word", "set_celebrity_from"], OPERATOR),
    **dict.fromkeys(["profile", "posts", "following", "followers", "banned_words"], EVERYBODY),
    **dict.fromkeys(["drafts", "timeline", "notifications", "celebrities", "asking"], OWNER),
    **dict.fromkeys(["use_tag", "forget_hours"], NOBODY),
    "followers_of": OWNER | OPERATOR,
    **dict.fromkeys(["most_followed", "trending_tags", "figures", "post_search", "people_search"], EVERYBODY),
}
# And of the routes that every app has.
ROUTES: dict[tuple[str, str], set[str]] = {
    ("get", "/api/social"): OPERATOR,
    ("get", "/api/social/events"): OPERATOR,
    ("get", "/api/social/quarantine"): OPERATOR,
    ("get", "/api/social/quarantine/{position}"): OPERATOR,
    ("delete", "/api/social/quarantine/{position}"): OPERATOR,
    ("post", "/api/social/quarantine/{position}/retry"): OPERATOR,
    ("post", "/api/social/snapshots"): OPERATOR,
    ("post", "/api/social/stop"): OPERATOR,
    ("post", "/api/social/commands"): EVERYBODY,  # and each command by its own rule
    ("get", "/metrics"): OPERATOR,
    ("get", "/health"): EVERYBODY,
}
SECRET = "what only ada knows"


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApp]:
    """The network with authentication, with Ada in it, who has published, and has a draft with a secret."""
    folder = tmp_path_factory.mktemp("closed")
    with RunningApp(social, folder, shards=1, partitions=1, access=access()) as running:

        async def talk() -> None:
            async with as_(running, "ada") as ada:
                await ada.send("ada", Register(name="Ada"))
                await ada.send("ada", Publish(text="hello"))
                await ada.send("ada", PublishLater(text=SECRET, at="2999-01-01T00:00:00Z"))

        asyncio.run(talk())
        yield running


def as_(running: RunningApp, name: str) -> Client:
    return running.client(token=static(name))


def request(running: RunningApp, name: str, who: str) -> httpx.Response:
    """A well-formed request for Ada's entity, or for what is shared."""
    if name in social.read_models:
        looked = {place_of(social.read_models[name]): "ada"}
        return running.http.get(f"/api/social/read_models/{name}", params=looked, headers=WHO[who])
    cls: Any = social.commands.get(name) or social.queries[name]
    kind = "commands" if name in social.commands else "queries"
    entity = entity_of(cls).__engram__.name
    key = {} if entity == "rules" else {"key": "ada"}
    body = _body(name) if kind == "commands" else "{}"
    path = f"/api/social/{entity}/{kind}/{name}"
    return running.http.post(path, params=key, content=body, headers=WHO[who])


def watched(running: RunningApp, name: str, who: str) -> AbstractContextManager[httpx.Response]:
    """The same as a stream."""
    headers = {**WHO[who], **STREAM}
    if name in social.read_models:
        looked = {place_of(social.read_models[name]): "ada"}
        return running.http.stream("GET", f"/api/social/read_models/{name}", params=looked, headers=headers)
    entity = entity_of(social.queries[name]).__engram__.name
    key = {} if entity == "rules" else {"key": "ada"}
    return running.http.stream("GET", f"/api/social/{entity}/queries/{name}", params=key, headers=headers)


def acknowledged(running: RunningApp, command: str) -> float:
    """How many of these commands were logged."""
    labels = {"app": "social", "command": command}
    return running.service.metrics._collected.get_sample_value("engram_commands_acknowledged_total", labels) or 0


@cache
def _body(name: str) -> str:
    """A body that Hypothesis finds for a command."""
    quiet = settings(database=None, derandomize=True, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    _, command = find(commands(social, social.commands[name]), lambda _: True, settings=quiet)
    return command.model_dump_json()


def test_every_command_query_and_read_model_says_who_may():
    """No cell of the matrix is undeclared, in the app or here."""
    asked: dict[str, Any] = {**social.commands, **social.queries, **social.read_models}

    assert set(MATRIX) == set(asked)
    assert [name for name, cls in asked.items() if not cls.says_who()] == []


@pytest.mark.parametrize("name", MATRIX)
def test_the_matrix_of_the_app(closed: RunningApp, name: str):
    """Who may is let in; who may not gets 401 or 403, no data, and nothing of theirs is logged."""
    closed.on_loop(closed.service.send("ada", Protect(protected=False), seconds=SECONDS))  # a test before may have
    for who in WHO:
        before = acknowledged(closed, name)
        response = request(closed, name, who)
        after = acknowledged(closed, name)
        if who in MATRIX[name]:
            assert response.status_code in (200, 409), (who, response.text)
        else:
            assert response.status_code == (401 if who == "anonymous" else 403), (who, response.text)
            assert response.headers["content-type"] == "application/problem+json"
            assert set(response.json()) == {"type", "title", "status", "detail"}
            assert SECRET not in response.text
            assert after == before


@pytest.mark.parametrize("name", [*social.queries, *social.read_models])
def test_the_matrix_of_what_can_be_watched(closed: RunningApp, name: str):
    """Who may read may watch, and nobody else gets a stream."""
    closed.on_loop(closed.service.send("ada", Protect(protected=False), seconds=SECONDS))
    for who in WHO:
        with watched(closed, name, who) as response:
            if who in MATRIX[name]:
                assert response.status_code == 200, (who, response.read())
                assert response.headers["content-type"].startswith("text/event-stream")
            else:
                assert response.status_code == (401 if who == "anonymous" else 403), (who, response.read())
                assert SECRET not in response.read().decode()


def test_the_routes_of_every_app_are_all_here(closed: RunningApp):
    """Whatever the OpenAPI document has is in one of the two matrices."""
    document = closed.http.get("/openapi.json").json()
    found = {(method, path) for path, methods in document["paths"].items() for method in methods}
    own = {(method, path) for method, path in found if path.rsplit("/", 1)[1] not in MATRIX}

    assert own == set(ROUTES)


@pytest.mark.parametrize(("method", "path"), ROUTES, ids=[" ".join(route) for route in ROUTES])
def test_the_matrix_of_the_routes_that_every_app_has(closed: RunningApp, method: str, path: str):
    """Operators see how the app is, and everybody whether it is well."""
    for who, headers in WHO.items():
        response = closed.http.request(method, path.replace("{position}", "0:0.0"), headers=headers)
        if who in ROUTES[method, path]:
            # One wants a name, so that the app goes on; the other commands, which have rules of their own.
            wanted = {"/api/social/stop": 422, "/api/social/commands": 400}.get(path)
            assert response.status_code in ({200, 404} if wanted is None else {wanted}), (who, response.text)
        else:
            assert response.status_code == (401 if who == "anonymous" else 403), (who, response.text)


def test_what_the_app_is_is_open_and_says_how_to_come_in(closed: RunningApp):
    """The API page and the names of commands need no token; the document says which do."""
    assert closed.http.get("/docs").status_code == 200
    assert closed.http.get("/api").json()[0]["app"] == "social"
    document = closed.http.get("/openapi.json").json()

    assert document["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"
    publish = document["paths"]["/api/social/user/commands/publish"]["post"]
    assert publish["security"] == [{}, {"bearer": []}]
    assert {"401", "403", "429"} <= set(publish["responses"])
    assert document["paths"]["/metrics"]["get"]["security"] == [{"bearer": []}]
    assert "security" not in document["paths"]["/health"]["get"]


def test_without_authentication_nothing_is_asked(social: RunningApp):
    """No tokens, no securitySchemes, and a bad token does no harm."""
    assert "securitySchemes" not in social.http.get("/openapi.json").json()["components"]
    answer = social.http.get("/api/social/user/queries/drafts", params={"key": "anybody"}, headers=bearer("x"))

    assert answer.json()["answer"] == []


def test_refusals_say_what_to_do(closed: RunningApp):
    """401 names the scheme and whether the token was bad; 403 who may not what. A bad token is refused even where none
    is needed, but not on open routes."""
    path, key = "/api/social/user/queries/drafts", {"key": "ada"}
    none = closed.http.get(path, params=key)
    other = closed.http.get(path, params=key, headers=bearer(static("bob")))

    assert none.headers["www-authenticate"] == 'Bearer realm="social"'
    assert none.json()["type"] == "urn:engram:unauthenticated"
    assert "drafts for 'ada' is not for everybody. Send a token" in none.json()["detail"]
    assert other.json()["type"] == "urn:engram:denied"
    assert other.json()["detail"] == "drafts for 'ada' is not for bob."
    for header in ("Bearer nonsense", "Bearer", f"Basic {static('ada')}", static("ada")):
        bad = closed.http.get("/api/social/user/queries/posts", params=key, headers={"Authorization": header})
        assert bad.status_code == 401, header
        assert bad.headers["www-authenticate"] == 'Bearer realm="social", error="invalid_token"'
        assert closed.http.get("/health", headers={"Authorization": header}).status_code == 200


def test_the_client_says_who_it_is(closed: RunningApp):
    """`Client(token=...)` acts for whom the token is of; for others it raises `Denied`."""

    async def talk() -> None:
        async with as_(closed, "ada") as ada, closed.client() as somebody, as_(closed, "olga") as olga:
            assert (await ada.ask("ada", Profile())).name == "Ada"
            with pytest.raises(Denied, match="publish for 'bob' is not for ada"):
                await ada.send("bob", Publish(text="as bob"))
            with pytest.raises(Unauthenticated):
                await somebody.send("ada", Publish(text="as ada"))
            assert (await somebody.ask("ada", Profile())).name == "Ada"
            assert (await olga.status())["app"] == "social"
            assert (await olga.quarantined()).rows == []
            with pytest.raises(Denied):
                await ada.status()

    asyncio.run(talk())


def test_a_protected_account_is_read_by_those_whom_it_has_admitted(closed: RunningApp):
    """The query declares it, by the state of the entity: neither those without a token nor those who only ask to
    follow read it."""

    async def reads(client: Client) -> bool:
        try:
            await client.ask("cleo", Posts())
            await client.ask("cleo", Followers())
        except Denied:
            return False
        return True

    async def talk() -> None:
        async with as_(closed, "cleo") as cleo, as_(closed, "dora") as dora, closed.client() as somebody:
            for client, name in ((cleo, "cleo"), (dora, "dora")):
                await client.send(name, Register(name=name))
            await cleo.send("cleo", Publish(text="for friends"))
            assert [await reads(c) for c in (cleo, dora, somebody)] == [True, True, True]
            await cleo.send("cleo", Protect())
            assert [await reads(c) for c in (cleo, dora, somebody)] == [True, False, False]
            with pytest.raises(Unauthenticated):
                await somebody.ask("cleo", Posts())
            await dora.send("dora", Follow(whom="cleo"))
            async with asyncio.timeout(SECONDS):
                while await cleo.ask("cleo", Asking()) != ["dora"]:
                    pass  # it is on its way
            assert [await reads(c) for c in (cleo, dora, somebody)] == [True, False, False]
            await cleo.send("cleo", Admit(whom="dora"))
            assert [await reads(c) for c in (cleo, dora, somebody)] == [True, True, False]
            with pytest.raises(Rejected, match="not_asking"):
                await cleo.send("cleo", Admit(whom="dora"))

    asyncio.run(talk())


def test_who_watches_a_protected_account_is_asked_again_with_every_change(closed: RunningApp):
    """Its author closes it while somebody reads: they get no more of it."""
    name, posts = "emil", "/api/social/user/queries/posts"
    service = closed.service
    for command in (Register(name=name), Publish(text="for all")):
        closed.on_loop(service.send(name, command, seconds=SECONDS))
    with streaming(closed, posts, {"key": name}, headers=WHO["other"]) as reader:
        before = reader.next()
        for command in (Protect(), Publish(text="for friends")):
            closed.on_loop(service.send(name, command, seconds=SECONDS))
        after = reader.next()
    later = closed.http.get(posts, params={"key": name}, headers={**WHO["other"], **STREAM})

    assert [post["text"] for post in before.data["answer"]] == ["for all"]
    assert (after.event, after.data["refused"]["kind"]) == ("refused", "denied")
    assert "for friends" not in str(after.data)
    assert later.status_code == 403


@pytest.mark.parametrize(
    "headers",
    [{"Engram-Session": "a-guess", "Engram-Sequence": "0"}, {"Idempotency-Key": "a-guess"}],
    ids=["session", "idempotency key"],
)
def test_nobody_gets_at_the_replies_of_another(closed: RunningApp, headers: dict[str, str]):
    """The same session or idempotency key of two people are two: each gets a reply of their own."""
    path = "/api/social/user/commands/publish"

    def publish(name: str) -> Any:
        how = {**headers, **bearer(static(name))}
        return closed.http.post(path, params={"key": name}, json={"text": f"of {name}"}, headers=how)

    closed.http.post(
        "/api/social/user/commands/register", params={"key": "emil"}, json={"name": "E"}, headers=bearer(static("emil"))
    )
    first, other, again = publish("ada"), publish("emil"), publish("ada")

    assert [r.status_code for r in (first, other, again)] == [200, 200, 200]
    assert other.json()["reply"] != first.json()["reply"] == again.json()["reply"]


def test_what_does_not_say_who_may_is_for_nobody(tmp_path):
    """Deny by default: an app that declares nothing is closed, to operators too, and says what to do."""
    with RunningApp(counters, tmp_path, shards=1, partitions=1, access=access()) as running:
        sent = running.http.post(
            "/api/counters/counter/commands/add", params={"key": "ada"}, headers=bearer(static("ada"))
        )
        asked = running.http.get(
            "/api/counters/counter/queries/value", params={"key": "ada"}, headers=bearer(static("olga"))
        )

    assert (sent.status_code, asked.status_code) == (403, 403)
    assert sent.json()["detail"] == "add does not say who may: give its class an authorize=, such as allow.owner."
