"""Which tokens are good, and who has them."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from engram import Misuse, Principal, Unauthenticated, Unavailable
from engram.serving.access import Access, read_access
from engram.serving.authentication import Authenticator
from hypothesis import given
from hypothesis import strategies as st

from tests.serving.tokens import (
    AUDIENCE,
    ISSUER,
    SECRET,
    SECRET_ENV,
    access,
    claims,
    hmac_signed,
    jwks,
    made_up,
    new_key,
    pem,
    signed,
    static,
)

OURS, THEIRS = new_key(), new_key()


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET_ENV, SECRET)


def settings(**more: Any) -> dict[str, Any]:
    return {"algorithm": "HS256", "issuer": ISSUER, "audience": AUDIENCE, "secret_env": SECRET_ENV, **more}


@pytest.fixture
def shared_secret() -> Authenticator:
    return Authenticator(Access.model_validate({"jwt": settings()}))


@pytest.fixture
def public_key(tmp_path: Path) -> Authenticator:
    (tmp_path / "keys.json").write_text(jwks(ours=OURS))
    about = {"algorithm": "RS256", "issuer": ISSUER, "audience": AUDIENCE, "jwks": str(tmp_path / "keys.json")}
    return Authenticator(Access.model_validate({"jwt": about}))


def who(authenticator: Authenticator, token: str) -> Principal:
    return asyncio.run(authenticator.authenticate(token))


def test_a_token_with_the_shared_secret_says_who_it_is_and_their_roles(shared_secret: Authenticator):
    """`sub` is the name, `roles` a list or words; the claims are all that is in it."""
    content = claims("ada", roles=["operator", "editor"], plan="free")

    principal = who(shared_secret, signed(content))

    assert principal == Principal("ada", frozenset({"operator", "editor"}), content)
    assert who(shared_secret, signed(claims("ada", roles="editor operator"))).roles == principal.roles
    assert who(shared_secret, signed(claims("bob"))).roles == frozenset()


def test_a_token_signed_by_the_provider_is_good(public_key: Authenticator):
    """With the key that it names, or with the only one there is."""
    assert who(public_key, signed(claims("ada"), OURS, "RS256", kid="ours")).name == "ada"
    assert who(public_key, signed(claims("ada"), OURS, "RS256")).name == "ada"


def test_a_little_late_is_not_too_late(shared_secret: Authenticator):
    """Clocks differ: within the leeway of 30 s a token is still good, and after it no more."""
    now = int(time.time())

    assert who(shared_secret, signed(claims(exp=now - 5))).name == "ada"
    with pytest.raises(Unauthenticated, match="expired"):
        who(shared_secret, signed(claims(exp=now - 60)))


BAD_CONTENTS = {
    "expired": claims(exp=1_000_000_000),
    "without an end": {k: v for k, v in claims().items() if k != "exp"},
    "not yet": claims(nbf=int(time.time()) + 86_400),  # all tests together take many minutes
    "for another audience": claims(aud="somebody else"),
    "for no audience": {k: v for k, v in claims().items() if k != "aud"},
    "of another issuer": claims(iss="https://evil.example"),
    "of no issuer": {k: v for k, v in claims().items() if k != "iss"},
    "of nobody": {k: v for k, v in claims().items() if k != "sub"},
    "of an empty name": claims(""),
    "of what is shared": claims("*"),
    "of a number": {**claims(), "sub": 7},
    "of a name without end": claims("a" * 2000),
    "with roles that are none": claims(roles={"operator": True}),
    "with roles that are numbers": claims(roles=[1]),
}


@pytest.mark.parametrize("content", BAD_CONTENTS.values(), ids=BAD_CONTENTS.keys())
def test_a_token_that_says_the_wrong_thing_is_refused(shared_secret: Authenticator, content: dict[str, Any]):
    """Signed as it should be, and not good."""
    with pytest.raises(Unauthenticated):
        who(shared_secret, signed(content))


def test_a_token_cannot_choose_how_it_is_checked(shared_secret: Authenticator, public_key: Authenticator):
    """`none`, another algorithm, the public key taken for a secret, another's key: none of them opens the door."""
    public = [jwks(ours=OURS).encode(), pem(OURS)]
    tries = [
        (shared_secret, made_up({"alg": "none", "typ": "JWT"}, claims())),
        (shared_secret, made_up({"alg": "None"}, claims())),
        (shared_secret, made_up({"alg": "HS256"}, claims())),
        (shared_secret, signed(claims(), SECRET, "HS384")),
        (shared_secret, signed(claims(), "another secret that is long enough too!")),
        (shared_secret, signed(claims(), THEIRS, "RS256")),
        (public_key, made_up({"alg": "none", "kid": "ours"}, claims())),
        *((public_key, hmac_signed({"alg": "HS256", "kid": "ours"}, claims(), secret)) for secret in public),
        (public_key, signed(claims(), THEIRS, "RS256", kid="ours")),
        (public_key, signed(claims(), THEIRS, "RS256", kid="theirs")),
        (public_key, signed(claims(), OURS, "RS512", kid="ours")),
        (public_key, made_up({"alg": "RS256", "kid": ["ours"]}, claims())),
    ]

    for authenticator, token in tries:
        with pytest.raises(Unauthenticated):
            who(authenticator, token)


@given(st.text() | st.builds(made_up, st.none() | st.integers() | st.dictionaries(st.text(), st.text()), st.integers()))
def test_whatever_somebody_makes_up_is_refused(token: str):
    """Not a token: `Unauthenticated`, and never anything else."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SECRET_ENV, SECRET)
        authenticator = Authenticator(Access.model_validate({"jwt": settings()}))
    with pytest.raises(Unauthenticated):
        who(authenticator, token)


def test_a_deeply_nested_token_is_refused_like_any_other(shared_secret: Authenticator):
    """Brackets without end do not bring the gateway down."""
    nested = "eyJhbGciOiJIUzI1NiIsIngiOltb" + "W1tb" * 3000

    for token in (nested, f"{nested}.e30.x", "x" * 100_000):
        with pytest.raises(Unauthenticated):
            who(shared_secret, token)


def test_static_tokens_are_known_as_they_are():
    """Each is somebody, with their roles; a part of one, or one with something behind it, is nobody."""
    authenticator = Authenticator(access())

    assert who(authenticator, static("ada")) == Principal("ada", frozenset(), {"sub": "ada"})
    assert who(authenticator, static("olga")).roles == {"operator"}
    for wrong in ("", static("ada")[:-1], static("ada") + "x", "ada", signed(claims())):
        with pytest.raises(Unauthenticated):
            who(authenticator, wrong)


class Provider:
    """An identity provider whose keys and moods a test sets."""

    def __init__(self) -> None:
        self.body = ""
        self.asked = 0
        self.url = ""

    def run(self, use: Any) -> Any:
        """What `use` comes to, while the provider is there."""
        from aiohttp import web

        async def keys(_request: web.Request) -> web.Response:
            self.asked += 1
            return web.Response(text=self.body) if self.body else web.Response(status=500)

        async def served() -> Any:
            application = web.Application()
            application.router.add_get("/keys", keys)
            runner = web.AppRunner(application)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/keys"
            try:
                return await use()
            finally:
                await runner.cleanup()

        return asyncio.run(served())


@pytest.fixture
def provider() -> Provider:
    return Provider()


def by_url(url: str) -> Authenticator:
    about = {"algorithm": "RS256", "issuer": ISSUER, "audience": AUDIENCE, "jwks": url}
    return Authenticator(Access.model_validate({"jwt": about}))


def test_keys_are_had_from_the_provider_once(provider: Provider, monkeypatch: pytest.MonkeyPatch):
    """Tokens that name keys which do not exist do not have the provider asked for each; a new key is found a while
    later, and one that is known stays good while the provider is away."""
    provider.body = jwks(ours=OURS)
    good = signed(claims("ada"), OURS, "RS256", kid="ours")
    new = signed(claims("ada"), THEIRS, "RS256", kid="new")

    async def use() -> tuple[list[str], int, str]:
        authenticator = by_url(provider.url)
        names = [(await authenticator.authenticate(good)).name for _ in range(3)]
        for number in range(5):
            with pytest.raises(Unauthenticated):
                await authenticator.authenticate(signed(claims(), THEIRS, "RS256", kid=f"made-up-{number}"))
        asked = provider.asked
        provider.body = jwks(ours=OURS, new=THEIRS)
        monkeypatch.setattr("engram.serving.jwks._ASK_AGAIN_S", 0.0)
        renamed = (await authenticator.authenticate(new)).name
        provider.body = ""
        monkeypatch.setattr("engram.serving.jwks._FRESH_S", 0.0)
        assert (await authenticator.authenticate(good)).name == "ada"
        return names, asked, renamed

    assert provider.run(use) == (["ada"] * 3, 1, "ada")


def test_while_no_keys_can_be_had_nobody_is_let_in(provider: Provider):
    """Not refused for ever, but not let in: `Unavailable`, to be tried again."""
    good = signed(claims("ada"), OURS, "RS256", kid="ours")

    async def use() -> None:
        with pytest.raises(Unavailable, match="cannot be had"):
            await by_url(provider.url).authenticate(good)

    provider.run(use)


BAD_FILES = {
    "": "nobody could come in",
    "[jwt]\nalgorithm = 'none'": "jwt.algorithm",
    "[jwt]\nalgorithm = 'HS256'\nissuer = 'i'\naudience = 'a'": "HS256 needs secret_env",
    "[jwt]\nalgorithm = 'RS256'\nissuer = 'i'\naudience = 'a'\nsecret_env = 'X'": "RS256 needs jwks",
    "[jwt]\nalgorithm = 'RS256'\naudience = 'a'\njwks = 'keys.json'": "jwt.issuer",
    "[jwt]\nalgorithm = 'RS256'\nissuer = 'i'\naudience = 'a'\njwks = 'http://id.example/keys'": "use https",
    "[[token]]\ntoken = 'short'\nname = 'ada'": "at least 16 characters",
    "[[token]]\ntoken = 'long-enough-as-it-is'\nname = '*'": "what is shared",
    "[[token]]\ntoken = 'long-enough-as-it-is'\nname = 'a'\nrole = 'operator'": "token.0.role",
    "[[token]]\ntoken = 'long-enough-as-it-is'\nname = 'a'\n[limits]\nburst = 0": "limits.burst",
    "not toml": "is not TOML",
}


@pytest.mark.parametrize(("text", "said"), BAD_FILES.items(), ids=BAD_FILES.values())
def test_an_access_file_that_does_not_fit_is_refused(tmp_path: Path, text: str, said: str):
    """With what is wrong where, and without any token in the message."""
    (tmp_path / "access.toml").write_text(text)

    with pytest.raises(Misuse, match=r"access\.toml") as refused:
        read_access(tmp_path / "access.toml")

    assert said in str(refused.value)
    assert "long-enough-as-it-is" not in str(refused.value)


def test_a_secret_that_is_missing_or_short_is_refused(monkeypatch: pytest.MonkeyPatch):
    """With the name of the variable, and how long it is."""
    monkeypatch.setenv(SECRET_ENV, "short")

    with pytest.raises(Misuse, match=r"ENGRAM_TEST_SECRET .* at least 32 bytes; it has 5"):
        Authenticator(Access.model_validate({"jwt": settings()}))


def test_keys_that_cannot_be_read_are_refused_at_the_start(tmp_path: Path):
    """A file that is not there, or holds no key for signatures."""
    (tmp_path / "keys.json").write_text('{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}')

    with pytest.raises(Misuse, match="cannot be read"):
        by_url(str(tmp_path / "none.json"))
    with pytest.raises(Misuse, match="no RSA key"):
        by_url(str(tmp_path / "keys.json"))
