"""Who asks: a bearer token becomes a principal, or is refused."""

from __future__ import annotations

import hashlib
import time
from typing import Any, Protocol

import jwt

from engram.errors import Misuse, Unauthenticated
from engram.model.entity import EVERYWHERE
from engram.model.principal import Principal
from engram.serving.access import Access, JwtSettings, secret_of
from engram.serving.jwks import JwksFile, JwksUrl

_TOKEN_BYTES = 16 * 1024
_NAME_BYTES = 1024


class Keys(Protocol):
    """Where the key of a token comes from. `kid` is what the token says of it, which anybody could have written."""

    async def key(self, kid: str | None) -> Any: ...


class Authenticator:
    """Knows the tokens of an access file. Lives on one event loop."""

    def __init__(self, access: Access) -> None:
        # By their digests: how long a comparison takes says nothing of a token.
        self._static = {
            _digest(known.token): Principal(known.name, frozenset(known.roles), {"sub": known.name})
            for known in access.token
        }
        self._jwt = access.jwt
        self._keys = None if access.jwt is None else _keys_of(access.jwt)

    async def authenticate(self, token: str) -> Principal:
        """Raises `Unauthenticated` for a token that is not good, and `Unavailable` while nobody can tell."""
        if not token or len(token) > _TOKEN_BYTES:
            raise Unauthenticated("This is not a token.")
        known = self._static.get(_digest(token))
        if known is not None:
            return known
        if self._jwt is None or self._keys is None:
            raise Unauthenticated("The token is not known here.")
        try:
            key = await self._keys.key(jwt.get_unverified_header(token).get("kid"))
            claims = jwt.decode(
                token,
                key,
                algorithms=[self._jwt.algorithm],  # never what the token says of itself
                audience=self._jwt.audience,
                issuer=self._jwt.issuer,
                leeway=self._jwt.leeway,
                options={"require": ["exp", "iss", "aud", self._jwt.name_claim]},
            )
        except (jwt.PyJWTError, ValueError, RecursionError) as problem:  # whatever somebody made up
            raise Unauthenticated(f"The token is not good: {problem}.") from None
        return _principal(claims, self._jwt)

    def lasts(self, principal: Principal) -> float | None:
        """For how many seconds the principal's token is still good; None if it does not expire."""
        expires = principal.claims.get("exp")
        if self._jwt is None or expires is None:
            return None
        return float(expires) + self._jwt.leeway - time.time()


class _Secret:
    """One secret for all tokens."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    async def key(self, _kid: str | None) -> bytes:
        return self._secret


def _keys_of(settings: JwtSettings) -> Keys:
    if settings.algorithm == "HS256":
        return _Secret(secret_of(settings))
    if settings.jwks.startswith(("http://", "https://")):
        return JwksUrl(settings.jwks, settings.algorithm)
    if "://" in settings.jwks:
        raise Misuse(f"jwks is {settings.jwks}: write an https address, or the path of a file.")
    return JwksFile(settings.jwks, settings.algorithm)


def _principal(claims: dict[str, Any], settings: JwtSettings) -> Principal:
    name, roles = claims[settings.name_claim], claims.get(settings.roles_claim, [])
    if not isinstance(name, str) or name in ("", EVERYWHERE) or len(name.encode(errors="replace")) > _NAME_BYTES:
        raise Unauthenticated(f"The token's {settings.name_claim} is not a name.")
    listed = roles.split() if isinstance(roles, str) else roles
    if not isinstance(listed, list) or not all(isinstance(role, str) for role in listed):
        raise Unauthenticated(f"The token's {settings.roles_claim} are not roles.")
    return Principal(name, frozenset(listed), claims)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()
