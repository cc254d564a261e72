"""Tokens of all kinds, good and bad, and an access file that knows the good ones."""

from __future__ import annotations

import base64
import hmac
import json
import time
from typing import Any

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from engram.serving.access import Access

ISSUER = "https://id.example"
AUDIENCE = "social"
SECRET = "a secret that is long enough for HS256, and known to two"
PEOPLE = ("ada", "bob", "cleo", "dora", "emil")
SECRET_ENV = "ENGRAM_TEST_SECRET"


def claims(name: str = "ada", **more: Any) -> dict[str, Any]:
    """What a good token says."""
    return {"sub": name, "iss": ISSUER, "aud": AUDIENCE, "exp": int(time.time()) + 86_400, **more}


def signed(content: dict[str, Any], key: Any = SECRET, algorithm: str = "HS256", **headers: Any) -> str:
    return jwt.encode(content, key, algorithm=algorithm, headers=headers or None)


def made_up(header: Any, content: Any, signature: bytes = b"") -> str:
    """A token put together by hand."""
    parts = (json.dumps(header).encode(), json.dumps(content).encode(), signature)
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


def hmac_signed(header: Any, content: Any, secret: bytes) -> str:
    """The same, with a signature that the library would not make."""
    unsigned = made_up(header, content).rpartition(".")[0]
    return made_up(header, content, hmac.digest(secret, unsigned.encode(), "sha256"))


def pem(key: rsa.RSAPrivateKey) -> bytes:
    """The public half, as a file."""
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_key().public_bytes(serialization.Encoding.PEM, form)


def new_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def jwks(**keys: rsa.RSAPrivateKey) -> str:
    """The public halves, by their ids, as an identity provider publishes them."""
    listed = []
    for kid, key in keys.items():
        public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key()))
        listed.append({**public, "kid": kid, "use": "sig", "alg": "RS256"})
    return json.dumps({"keys": listed})


def static(name: str) -> str:
    """The static token of somebody."""
    return f"the-static-token-of-{name}"


def access(**more: Any) -> Access:
    """Some people and an operator, by static tokens."""
    people = [{"token": static(name), "name": name} for name in PEOPLE]
    operator = {"token": static("olga"), "name": "olga", "roles": ["operator"]}
    return Access.model_validate({"token": [*people, operator], "limits": {"burst": 100_000}, **more})


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}
