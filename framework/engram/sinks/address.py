"""Which addresses a webhook may go to: none inside, unless allowed, and only one that was looked at."""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv6Address, ip_address

from engram.errors import Misuse, Unavailable


def checked_addresses(host: str, port: int, *, allow_private: bool) -> list[str]:
    """The addresses of a host, to connect to by themselves: what its name means a moment later is not asked.

    Raises `Misuse` when any of them is inside (loopback, private, link-local, multicast, reserved ...), whatever the
    name looked like, and `Unavailable` when the name means nothing now.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as problem:
        raise Unavailable(f"The address of {host} cannot be found: {problem}.") from problem
    addresses = list(dict.fromkeys(str(where[0]) for *_, where in found))
    for address in addresses:
        if not allow_private and not is_outside(address):
            meant = "" if address == host else f" ({address})"
            raise Misuse(
                f"{host}{meant} is not an address outside: events go to loopback, private and other inner "
                "addresses only with --sink-allow-private."
            )
    return addresses


def is_outside(text: str) -> bool:
    """Whether an address is one of the public internet. An IPv4 address within an IPv6 one counts as itself."""
    address = ip_address(text.partition("%")[0])
    if isinstance(address, IPv6Address):
        within: IPv4Address | None = address.ipv4_mapped or address.sixtofour
        if within is not None:
            return is_outside(str(within))
        if address.is_site_local:
            return False
    return address.is_global and not (address.is_multicast or address.is_reserved or address.is_unspecified)
