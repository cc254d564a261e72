"""The command line and apps that want to know who asks: tokens, and what `engram run` refuses."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from engram.cli.run import _listen
from engram.serving.curve import kept_keys

from sample_apps.social import app as social
from tests.cli.saying import Engram, Java, sentence
from tests.serving.running import RunningApp
from tests.serving.tokens import access, static

SOCIAL = "sample_apps.social:app"


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApp]:
    folder = tmp_path_factory.mktemp("closed")
    with RunningApp(social, folder, shards=1, partitions=1, access=access()) as running:
        yield running


def test_a_token_is_an_option_or_in_the_environment(
    engram: Engram, closed: RunningApp, monkeypatch: pytest.MonkeyPatch
):
    """`--token` for send and ask; ENGRAM_TOKEN for everything, and the option wins."""
    url = ("--url", closed.url)
    sent = engram("send", "register", "ada", '{"name": "Ada"}', *url, "--token", static("ada"))
    monkeypatch.setenv("ENGRAM_TOKEN", static("olga"))
    failed = engram("quarantine", "list", *url, "--json")
    asked = engram("ask", "drafts", "ada", *url, "--token", static("ada"), "--json")

    assert sent.exit_code == 0
    assert json.loads(failed.stdout)["rows"] == []
    assert json.loads(asked.stdout)["answer"] == []


def test_who_may_not_is_told_in_a_sentence(engram: Engram, closed: RunningApp, monkeypatch: pytest.MonkeyPatch):
    """Exit code 2, with a token that is missing, bad, or somebody else's."""
    monkeypatch.delenv("ENGRAM_TOKEN", raising=False)
    ask = ("ask", "drafts", "ada", "--url", closed.url)

    assert "Send a token" in sentence(engram(*ask), 2)
    assert "The token is not known here." in sentence(engram(*ask, "--token", "not-a-token-at-all"), 2)
    assert sentence(engram(*ask, "--token", static("bob")), 2) == "drafts for 'ada' is not for bob."
    assert "quarantine is not for everybody" in sentence(engram("quarantine", "list", "--url", closed.url), 2)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7"])
def test_a_door_to_the_outside_without_authentication_is_refused(engram: Engram, java: Java, tmp_path: Path, host: str):
    """Before anything is made or started, with the way out."""
    java("17.0.1")

    said = sentence(engram("run", SOCIAL, "--log", "sqlite:social.db", "--host", host), 2)

    assert said.startswith(
        f"--host {host} is open to others, and everybody could send commands: say who may with --auth"
    )
    assert not (tmp_path / "social.db").exists()


def test_with_authentication_it_is_not_refused():
    """The socket is bound where it was asked for. (Nobody listens on it here.)"""
    with _listen("0.0.0.0", 0, closed=True) as bound:
        assert bound.getsockname()[0] == "0.0.0.0"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.0.0.9"])
def test_loopback_needs_no_authentication(host: str):
    """By its number, or by a name that means it."""
    with _listen(host, 0, closed=False) as bound:
        assert bound.family in (socket.AF_INET, socket.AF_INET6)


def test_a_host_that_is_none_is_refused(engram: Engram, java: Java):
    """With its name."""
    java("17.0.1")

    said = sentence(engram("run", SOCIAL, "--log", "sqlite:social.db", "--host", "no such host"), 2)

    assert said.startswith("--host no such host is no address of this machine")


@pytest.mark.parametrize("host", ["192.0.2.7", "0.0.0.0", "nonsense", "::1"])
def test_a_registry_host_that_is_none_of_ours_is_refused(engram: Engram, java: Java, host: str):
    """Shards are told this address: it must be one of this machine, and not all of them."""
    java("17.0.1")

    said = sentence(engram("run", SOCIAL, "--log", "sqlite:social.db", "--registry-host", host), 2)

    assert said.startswith(f"--registry-host {host} is no IPv4 address of this machine")


def test_a_registry_port_that_is_taken_is_refused(engram: Engram, java: Java, tmp_path: Path):
    """Before anything is started."""
    java("17.0.1")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = sentence(engram("run", SOCIAL, "--log", "sqlite:social.db", "--registry-port", port), 2)

    assert said.startswith(f"Port {port} on 127.0.0.1 cannot be used (Address already in use): choose another with")
    assert not (tmp_path / "social.db").exists()


def test_a_file_that_has_no_keys_of_lines_is_refused(engram: Engram, java: Java, tmp_path: Path):
    """Before anything is started; whatever is wrong with it."""
    java("17.0.1")
    run = ("run", SOCIAL, "--log", "sqlite:social.db", "--line-keys", "keys.json")
    whole = kept_keys(tmp_path / "whole.json")._asdict()
    texts = {name: key.decode() for name, key in whole.items()}
    for content, problem in (
        ("nonsense", "keys.json has no keys of lines"),
        ("[1]", "keys.json has no keys of lines"),
        (json.dumps({**texts, "connecting_secret": "short"}), "keys.json has no good connecting_secret"),
        (json.dumps({**texts, "listening_secret": ""}), "keys.json is for those who connect"),
    ):
        (tmp_path / "keys.json").write_text(content)
        assert sentence(engram(*run), 2).startswith(problem)
    assert "cannot be kept in no/keys.json" in sentence(engram(*run[:-1], "no/keys.json"), 2)
    assert not (tmp_path / "social.db").exists()


def test_an_access_file_is_read_before_anything_is_started(
    engram: Engram, java: Java, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """One that is not there, one that does not fit, one whose secret is not set."""
    java("17.0.1")
    monkeypatch.delenv("ENGRAM_TEST_SECRET", raising=False)
    run = ("run", SOCIAL, "--log", "sqlite:social.db", "--auth", "access.toml")
    missing = sentence(engram(*run), 2)
    (tmp_path / "access.toml").write_text("[jwt]\nalgorithm = 'HS256'\n")
    incomplete = sentence(engram(*run), 2)
    (tmp_path / "access.toml").write_text(
        "[jwt]\nalgorithm = 'HS256'\nissuer = 'i'\naudience = 'a'\nsecret_env = 'ENGRAM_TEST_SECRET'\n"
    )
    unset = sentence(engram(*run), 2)

    assert missing == "The access file access.toml cannot be read: No such file or directory."
    assert "jwt.issuer: Field required" in incomplete
    assert unset.endswith("must hold the secret of the tokens, at least 32 bytes; it has 0.")
    assert not (tmp_path / "social.db").exists()
