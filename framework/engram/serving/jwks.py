"""The public keys of an identity provider (JWKS), from a file or from its address."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import aiohttp
import jwt
import structlog

from engram.errors import Misuse, Unauthenticated, Unavailable

# Keys are changed rarely; a new one is seen at once, because a token names it.
_FRESH_S = 3600.0
# A token can name a key that does not exist: whoever sends such tokens must not have the provider asked for each.
_ASK_AGAIN_S = 30.0
_TIMEOUT_S = 5.0
_MOST_BYTES = 1024 * 1024

_logger = structlog.get_logger()


class JwksFile:
    """Keys from a file, read at the start."""

    def __init__(self, path: str, algorithm: str) -> None:
        try:
            self._keys = _parsed(Path(path).read_bytes(), algorithm)
        except OSError as problem:
            raise Misuse(f"The keys at {path} cannot be read: {problem.strerror}.") from problem
        except ValueError as problem:
            raise Misuse(f"{path} holds no keys for {algorithm}: {problem}.") from None

    async def key(self, kid: str | None) -> Any:
        return _chosen(self._keys, kid)


class JwksUrl:
    """Keys from an address, asked for when the first token comes, when a token names a new one, and every hour.

    While the provider does not answer, the keys that are known stay good.
    """

    def __init__(self, url: str, algorithm: str) -> None:
        self._url = url
        self._algorithm = algorithm
        self._keys: dict[str | None, Any] = {}
        self._asked = 0.0
        self._lock = asyncio.Lock()

    async def key(self, kid: str | None) -> Any:
        """Raises `Unauthenticated` for a key that does not exist, `Unavailable` while none are known."""
        known = self._keys and (kid in self._keys or (kid is None and len(self._keys) == 1))
        if not known or time.monotonic() - self._asked > _FRESH_S:
            async with self._lock:
                if not self._asked or time.monotonic() - self._asked > _ASK_AGAIN_S:
                    await self._ask()
        if not self._keys:
            raise Unavailable(f"Nobody can be let in: the keys at {self._url} cannot be had now.")
        return _chosen(self._keys, kid)

    async def _ask(self) -> None:
        self._asked = time.monotonic()
        try:
            timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.get(self._url, allow_redirects=False) as response,
            ):
                response.raise_for_status()
                data = b""
                async for chunk in response.content.iter_any():
                    data += chunk
                    if len(data) > _MOST_BYTES:
                        raise ValueError(f"there are more than {_MOST_BYTES:,} bytes of keys")
                self._keys = _parsed(data, self._algorithm)
        except (aiohttp.ClientError, TimeoutError, ValueError) as problem:
            _logger.error("keys_unavailable", url=self._url, problem=repr(problem))


def _chosen(keys: dict[str | None, Any], kid: str | None) -> Any:
    if kid is None and len(keys) == 1:
        return next(iter(keys.values()))
    if kid not in keys:
        raise Unauthenticated("The token is signed with a key that is not known.")
    return keys[kid]


def _parsed(data: bytes, algorithm: str) -> dict[str | None, Any]:
    """The keys that are for signatures of that algorithm, by their ids. Raises `ValueError` if there is none."""
    content = json.loads(data)
    listed = content.get("keys") if isinstance(content, dict) else None
    found: dict[str | None, Any] = {}
    for about in listed if isinstance(listed, list) else []:
        usable = isinstance(about, dict) and about.get("kty") == "RSA" and about.get("use", "sig") == "sig"
        if usable and about.get("alg", algorithm) == algorithm:
            try:
                found[about.get("kid")] = jwt.PyJWK(about, algorithm=algorithm).key
            except jwt.PyJWTError as problem:
                _logger.warning("key_unusable", kid=str(about.get("kid")), problem=str(problem))
    if not found:
        raise ValueError("there is no RSA key for signatures in it")
    return found
