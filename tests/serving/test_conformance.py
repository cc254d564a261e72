"""Whatever is sent to any path of the OpenAPI document, what comes back is what the document says, and no failure."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
import requests
import schemathesis
from engram.serving.openapi import describe
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.schemas import APIOperation
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from sample_apps.social import app
from sample_apps.social.commands import Follow, Publish, PublishLater, Register
from tests.serving.running import SECONDS, RunningApp
from tests.serving.tokens import access, bearer, static

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
WHO = {"nobody": {}, "somebody": bearer("of-nobody"), "ada": bearer(static("ada")), "olga": bearer(static("olga"))}
BOUNDS = ["0:0.0", "1:0.0,0:0.0", "0:999999.0", "9:0.0", "of~another"]
FEW = settings(
    max_examples=12,
    derandomize=True,  # the same requests every time: CI must not find something new on a Friday
    database=None,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)

_numbers = count()


def _operations(*, closed: bool) -> dict[str, APIOperation[Any, Any, Any, Any]]:
    """Every operation of the document, but the one that ends the app."""
    schema = schemathesis.openapi.from_dict(describe(app, closed=closed))
    found = [result.ok() for result in schema.get_all_operations()]
    return {operation.label: operation for operation in found if operation.path != "/api/social/stop"}


OPEN, CLOSED = _operations(closed=False), _operations(closed=True)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApp]:
    with RunningApp(app, tmp_path_factory.mktemp("opened"), shards=1, partitions=2) as running:
        _begin(running)
        yield running


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApp]:
    """The same with authentication."""
    with RunningApp(app, tmp_path_factory.mktemp("closed"), shards=1, partitions=2, access=access()) as running:
        _begin(running)
        yield running


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    with requests.Session() as session:
        session.trust_env = False
        yield session


def _begin(running: RunningApp) -> None:
    """So that there is something to find."""

    async def talk() -> None:
        async with running.client(token=static("ada")) as ada, running.client(token=static("bob")) as bob:
            await ada.send("ada", Register(name="Ada"))
            await bob.send("bob", Register(name="Bob"))
            await bob.send("bob", Follow(whom="ada"))
            await ada.send("ada", Publish(text="hello #world"))
            await ada.send("ada", PublishLater(text="later", at="2999-01-01T00:00:00Z"))

    asyncio.run(talk())


def _cases(operation: APIOperation[Any, Any, Any, Any]) -> st.SearchStrategy[Case]:
    """Requests that fit the document, some of which find something, and requests that do not fit."""
    fits, ill = (operation.as_strategy(mode) for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE))
    return st.one_of(fits, st.builds(_finding, fits, st.sampled_from(BOUNDS)), ill).map(_fair)


def _finding(case: Case, bound: str) -> Case:
    """The same for Ada, and with what the document cannot say: what bounds are like, and which headers go together."""
    if "key" in case.query:
        case.query["key"] = "ada"
    if "at_least" in case.query:
        case.query["at_least"] = bound
    if len({"Engram-Session", "Engram-Sequence"} & case.headers.keys()) == 1:
        for name in ("Engram-Session", "Engram-Sequence"):
            case.headers.pop(name, None)
    return case


def _fair(case: Case) -> Case:
    """With time for an answer: that there is none within 0 s would be right, and so would be to wait for a minute. In a
    session of its own, as every client has: the number of another command gets the reply to that."""
    for name, text in (("timeout", "20"), ("wait", "0")):
        if isinstance(case.query.get(name), int | float):
            case.query[name] = text
    if "Engram-Session" in case.headers:
        case.headers["Engram-Session"] = f"{case.headers['Engram-Session']}"[:40] + f".{next(_numbers)}"
    return case


def _check(case: Case, running: RunningApp, session: requests.Session, headers: dict[str, str]) -> None:
    response = case.call(running.url, session, headers, timeout=2 * SECONDS)
    case.validate_response(response, checks=CHECKS)


@pytest.mark.parametrize("label", OPEN)
def test_what_comes_back_is_what_the_document_says(opened: RunningApp, session: requests.Session, label: str):
    """Without authentication."""

    @FEW
    @given(_cases(OPEN[label]))
    def check(case: Case) -> None:
        _check(case, opened, session, {})

    check()


@pytest.mark.parametrize("label", CLOSED)
def test_the_same_with_authentication(closed: RunningApp, session: requests.Session, label: str):
    """Whoever asks: nobody, somebody whom nobody knows, the owner or an operator."""

    @FEW
    @given(_cases(CLOSED[label]), st.sampled_from(sorted(WHO)))
    def check(case: Case, who: str) -> None:
        _check(case, closed, session, WHO[who])

    check()
