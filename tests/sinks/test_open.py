"""Sinks by URL: what is refused, in which words, and what is shown of an address."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from engram.errors import Misuse
from engram.sinks.address import checked_addresses, is_outside
from engram.sinks.open import open_sink

SECRET = {"ENGRAM_WEBHOOK_SECRET": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("", "is not a sink: write sqlite:PATH?table=NAME or https://HOST/PATH."),
        ("sqlite:", "is not a sink"),
        ("sqlite:?table=x", "is not a sink"),
        ("events.db", "is not a sink"),
        ("ftp://1.1.1.1/x", "is not a sink"),
        ("https://", "is not a sink"),
        ("https:///hook", "is not a sink"),
        ("https://1.1.1.1:99999/", "is not an address"),
        ("https://1.1.1.1:x/", "is not an address"),
        ("https://[::1/", "is not an address"),
        ("https://1.1.1.1/a b", "has characters that no address has"),
        ("https://1.1.1.1/ä", "has characters that no address has"),
        ("https://1.1.1.1/\n", "has characters that no address has"),
        ("https://me:pass@1.1.1.1/hook", "has a user or password in it"),
        ("https://1.1.1.1/hook#batch=0", "batch=0 is not a number from 1 to 1000"),
        ("https://1.1.1.1/hook#batch=x", "batch=x is not a number"),
        ("https://1.1.1.1/hook#batches=2", "unknown option batches; there are batch, secret"),
        ("https://1.1.1.1/hook#secret=MINE", "needs a secret to sign with: set MINE"),
        ("sqlite:events.db?tabel=x", "unknown option tabel; there are table"),
        ("sqlite:events.db?table=a-b", "'a-b' is no name for a table"),
        ("sqlite:events.db?table=engram_sink", "is no name for a table"),
        ("sqlite:events.db?table=sqlite_master", "is no name for a table"),
    ],
)
def test_a_bad_url_is_refused(url: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """In a sentence that says what to write instead; and nothing is made."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Misuse) as refusal:
        open_sink(url, "social", environment=SECRET)

    assert said in str(refusal.value)
    assert "pass" not in str(refusal.value).replace("password", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("environment", [{}, {"ENGRAM_WEBHOOK_SECRET": ""}])
def test_a_webhook_without_a_secret_is_refused(environment: dict[str, str]):
    """The sentence names the variable, and how to make one."""
    with pytest.raises(Misuse, match="set ENGRAM_WEBHOOK_SECRET, such as ENGRAM_WEBHOOK_SECRET=whsec_"):
        open_sink("https://1.1.1.1/hook", "social", environment=environment)


def test_the_name_of_a_webhook_hides_what_may_be_secret():
    """The query is not shown, but two addresses that differ in it are two sinks; the secret's variable is no part."""
    names = [
        open_sink(f"https://1.1.1.1/hook{more}", "social", environment=SECRET).name
        for more in ("?token=abc", "?token=def", "?token=abc#batch=7", "")
    ]

    assert names[3] == "https://1.1.1.1/hook"
    assert all(name.startswith("https://1.1.1.1/hook?") and "abc" not in name for name in names[:3])
    assert names[0] == names[2] != names[1]


INSIDE = [
    "127.0.0.1", "127.8.8.8", "0.0.0.0", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "169.254.169.254",
    "100.64.0.1", "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255", "192.0.2.1", "198.18.0.1",
    "::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1", "fd12:3456::1", "fec0::1", "ff02::1", "2001:db8::1",
    "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1", "64:ff9b::7f00:1",
    "2002:7f00:1::", "2002:a00:1::1", "2001::1",
]  # fmt: skip
OUTSIDE = ["1.1.1.1", "8.8.8.8", "172.32.0.1", "2606:4700::1111", "::ffff:8.8.8.8", "2002:808:808::1"]


@pytest.mark.parametrize("address", INSIDE)
def test_an_address_inside_is_not_outside(address: str):
    """Loopback, private, shared, link-local, multicast, reserved, for documents; v4, v6 and v4 within v6."""
    assert not is_outside(address)


@pytest.mark.parametrize("address", OUTSIDE)
def test_a_public_address_is_outside(address: str):
    """Also where it is written within an IPv6 one."""
    assert is_outside(address)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "[::1]", "127.1", "2130706433", "0x7f.1", "0", "[::ffff:127.0.0.1]", "10.1.2.3"]
)
def test_a_webhook_inside_is_refused_however_it_is_written(host: str):
    """Unless that is allowed: the address counts, not the name."""
    url = f"http://{host}:8080/hook"
    with pytest.raises(Misuse, match=r"is not an address outside.*--sink-allow-private"):
        open_sink(url, "social", environment=SECRET)

    assert open_sink(url, "social", environment=SECRET, allow_private=True).name.endswith(":8080/hook")


def test_a_name_with_one_address_inside_is_refused(monkeypatch: pytest.MonkeyPatch):
    """A name that means an address outside and one inside means harm."""

    def both(*_asked: Any, **_how: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, 443)) for ip in ("1.1.1.1", "10.0.0.1")]

    monkeypatch.setattr(socket, "getaddrinfo", both)

    with pytest.raises(Misuse, match=r"hooks.example \(10.0.0.1\) is not an address outside"):
        checked_addresses("hooks.example", 443, allow_private=False)
    assert checked_addresses("hooks.example", 443, allow_private=True) == ["1.1.1.1", "10.0.0.1"]


def test_a_name_that_means_nothing_now_is_not_refused(monkeypatch: pytest.MonkeyPatch):
    """An app starts although the receiver's name cannot be found; its sink waits."""

    def unknown(*_asked: Any, **_how: Any) -> list[Any]:
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)

    assert open_sink("https://hooks.example/x", "social", environment=SECRET).name == "https://hooks.example/x"
