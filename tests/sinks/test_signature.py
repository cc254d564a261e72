"""Signatures as Standard Webhooks has them, and what a receiver refuses."""

from __future__ import annotations

import pytest
from engram.errors import Misuse
from engram.sinks.signature import parse_secrets, signed, verify

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
NOW = 1_614_265_330


def test_a_signature_is_that_of_the_standards_own_example():
    """The example that the standard's libraries are tested with: other people's receivers will verify ours."""
    headers = signed(parse_secrets(SECRET), "msg_p5jXN8AQM9LWM0D4loKWxJek", NOW, b'{"test": 2432232314}')

    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


@pytest.mark.parametrize("secret", [SECRET, OTHER, f"{OTHER} {SECRET}"])
def test_a_receiver_verifies_with_any_of_the_secrets(secret: str):
    """While a secret is replaced, both sign, and either verifies; headers may be written in any case."""
    headers = signed(parse_secrets(f"{SECRET} {OTHER}"), "social/0:1.0.0", NOW, b"{}")
    shouted = {name.title(): value for name, value in headers.items()}

    assert verify(secret, shouted, b"{}", now=NOW + 299) == "social/0:1.0.0"


@pytest.mark.parametrize(
    "change",
    [
        {"webhook-id": "social/0:1.0.1"},
        {"webhook-id": ""},
        {"webhook-timestamp": str(NOW + 1)},
        {"webhook-timestamp": str(NOW - 301)},
        {"webhook-timestamp": str(NOW + 301)},
        {"webhook-timestamp": "now"},
        {"webhook-signature": ""},
        {"webhook-signature": "v1,"},
        {"webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="},
        {"webhook-signature": "v1,ünïcödé"},
    ],
)
def test_a_receiver_refuses_what_was_changed(change: dict[str, str]):
    """Another id, time or signature, or a time that is long ago: not verified."""
    headers = signed(parse_secrets(SECRET), "social/0:1.0.0", NOW, b"{}") | change

    with pytest.raises(Misuse):
        verify(SECRET, headers, b"{}", now=NOW)


def test_a_receiver_refuses_another_body_and_another_secret():
    """A signature is for one body, by one who knows the secret."""
    headers = signed(parse_secrets(SECRET), "social/0:1.0.0", NOW, b"{}")

    for secret, body in ((SECRET, b"{ }"), (OTHER, b"{}")):
        with pytest.raises(Misuse, match="signature is not right"):
            verify(secret, headers, body, now=NOW)


@pytest.mark.parametrize("text", ["", " ", "hunter2", "whsec_", "whsec_c2hvcnQ=", "whsec_!!!", "whsec_" + "A" * 100])
def test_a_secret_that_is_none_is_refused_without_being_shown(text: str):
    """Too short, too long, or of another form."""
    with pytest.raises(Misuse) as refusal:
        parse_secrets(text)

    shown = text.removeprefix("whsec_").strip()
    assert not shown or shown not in str(refusal.value)
