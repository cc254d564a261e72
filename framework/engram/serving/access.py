"""The access file of `engram run --auth`: whose tokens are good, and how much each of them may ask for."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from engram.errors import Misuse
from engram.model.entity import EVERYWHERE

# A shared secret that is shorter can be found by trying (RFC 7518, 3.2).
SECRET_BYTES = 32


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class StaticToken(_Section):
    """A token that is good as it is, for development and for machines: whoever has it is `name`."""

    token: Annotated[str, Field(min_length=16)]
    name: Annotated[str, Field(min_length=1)]
    roles: list[str] = []

    @model_validator(mode="after")
    def _named(self) -> StaticToken:
        if self.name == EVERYWHERE:
            raise ValueError(f"the name {EVERYWHERE!r} is that of what is shared")
        return self


class JwtSettings(_Section):
    """Which JSON web tokens are good. The algorithm is said here, never by the token.

    With HS256 the secret is in the variable `secret_env`; with RS256 the public keys are at `jwks`, an https address or
    a file. `name_claim` says who it is, `roles_claim` holds a list of roles, or roles with spaces between them.
    """

    algorithm: Literal["HS256", "RS256"]
    issuer: str
    audience: str
    secret_env: str = ""
    jwks: str = ""
    leeway: Annotated[float, Field(ge=0, le=300)] = 30.0
    name_claim: str = "sub"
    roles_claim: str = "roles"

    @model_validator(mode="after")
    def _has_its_key(self) -> JwtSettings:
        needed = "secret_env" if self.algorithm == "HS256" else "jwks"
        if bool(self.secret_env) == bool(self.jwks) or not getattr(self, needed):
            raise ValueError(f"{self.algorithm} needs {needed}, and nothing else")
        if self.jwks.startswith("http://") and not self.jwks.startswith(("http://127.0.0.1", "http://[::1]")):
            raise ValueError("jwks over http could be anybody's keys: use https")
        return self


class LimitSettings(_Section):
    """What one principal may ask for: so many requests a second on average, `burst` at once, so many bytes in a body.
    Those without a token are counted by their address. `in_flight` is for all together."""

    requests_per_second: Annotated[float, Field(gt=0)] = 100.0
    burst: Annotated[int, Field(ge=1)] = 200
    body_bytes: Annotated[int, Field(ge=1, le=1024 * 1024)] = 1024 * 1024
    in_flight: Annotated[int, Field(ge=1)] = 10_000


class Access(_Section):
    """The whole file."""

    jwt: JwtSettings | None = None
    token: list[StaticToken] = []
    limits: LimitSettings = LimitSettings()

    @model_validator(mode="after")
    def _lets_somebody_in(self) -> Access:
        if self.jwt is None and not self.token:
            raise ValueError("nobody could come in: write a [jwt] section, or a [[token]]")
        if len({known.token for known in self.token}) < len(self.token):
            raise ValueError("a token is there twice: each is for one name")
        return self


def read_access(path: Path) -> Access:
    """Raises `Misuse` with every problem of the file in one message."""
    try:
        content = tomllib.loads(path.read_text())
    except OSError as problem:
        raise Misuse(f"The access file {path} cannot be read: {problem.strerror}.") from problem
    except ValueError as problem:
        raise Misuse(f"The access file {path} is not TOML: {problem}.") from problem
    try:
        return Access.model_validate(content)
    except ValidationError as problem:
        # Without the input: it may be a token.
        found = [(".".join(map(str, e["loc"])), e["msg"].removeprefix("Value error, ")) for e in problem.errors()]
        listing = "; ".join(f"{where or 'the file'}: {what}" for where, what in found)
        raise Misuse(f"The access file {path} does not fit: {listing}.") from None


def secret_of(settings: JwtSettings) -> bytes:
    """The shared secret, from the environment."""
    secret = os.environ.get(settings.secret_env, "").encode()
    if len(secret) < SECRET_BYTES:
        raise Misuse(
            f"The variable {settings.secret_env} must hold the secret of the tokens, at least {SECRET_BYTES} bytes; it "
            f"has {len(secret)}."
        )
    return secret
