"""Signatures of webhooks, as Standard Webhooks has them: HMAC-SHA256 over id, time and body.

The headers are `webhook-id`, `webhook-timestamp` (seconds since 1970) and `webhook-signature` (`v1,` and base64; with
several secrets one for each, with spaces). Libraries for most languages verify them: https://www.standardwebhooks.com
"""

from __future__ import annotations

import binascii
import hmac
from base64 import b64decode, b64encode
from collections.abc import Mapping

from engram.errors import Misuse

_PREFIX = "whsec_"
_TOLERANCE_S = 300.0


def parse_secrets(text: str) -> list[bytes]:
    """The keys in a text such as `whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw`; several, with spaces, while one is replaced.

    Raises `Misuse` for anything else, without showing it.
    """
    keys = []
    for word in text.split():
        try:
            key = b64decode(word.removeprefix(_PREFIX), validate=True)
        except binascii.Error:
            key = b""
        if not word.startswith(_PREFIX) or not 24 <= len(key) <= 64:
            raise Misuse(f"A secret for webhooks is {_PREFIX} and 24 to 64 random bytes in base64; this one is not.")
        keys.append(key)
    if not keys:
        raise Misuse("The secret for webhooks is empty.")
    return keys


def signed(secrets: list[bytes], message_id: str, seconds: int, body: bytes) -> dict[str, str]:
    """The three headers of a request that is sent now."""
    signatures = (_signature(secret, message_id, str(seconds), body) for secret in secrets)
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(seconds),
        "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
    }


def verify(secret: str, headers: Mapping[str, str], body: bytes, *, now: float) -> str:
    """The id of a webhook that was signed with the secret within the last five minutes: for receivers.

    Drop it if you have seen its id before. Raises `Misuse` for any other: answer 401 and do nothing.
    """
    said = {name.lower(): value for name, value in headers.items()}
    message_id, seconds = said.get("webhook-id", ""), said.get("webhook-timestamp", "")
    if not message_id or not seconds.isdecimal() or abs(now - int(seconds)) > _TOLERANCE_S:
        raise Misuse("The webhook has no id, or no time, or one that is more than five minutes away.")
    right = [_signature(key, message_id, seconds, body) for key in parse_secrets(secret)]
    for given in said.get("webhook-signature", "").split():
        version, _, signature = given.partition(",")
        if version == "v1" and any(hmac.compare_digest(signature.encode(), each.encode()) for each in right):
            return message_id
    raise Misuse("The webhook's signature is not right.")


def _signature(secret: bytes, message_id: str, seconds: str, body: bytes) -> str:
    return b64encode(hmac.digest(secret, f"{message_id}.{seconds}.".encode() + body, "sha256")).decode()
