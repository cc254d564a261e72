"""Certificates for brokers in tests, by an authority that lives as long as the test."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import trustme
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key


class Certificates(NamedTuple):
    """PEM files: what clients trust, and a broker's key with its certificate."""

    authority: Path
    keystore: Path


def make_certificates(folder: Path, host: str = "127.0.0.1") -> Certificates:
    """An authority and a certificate for `host`, signed by it."""
    authority = trustme.CA()
    issued = authority.issue_cert(host)
    made = Certificates(folder / "authority.pem", folder / "keystore.pem")
    authority.cert_pem.write_to_path(made.authority)
    # Kafka reads keys in PKCS 8 only.
    key = load_pem_private_key(issued.private_key_pem.bytes(), None)
    chain = b"".join(pem.bytes() for pem in issued.cert_chain_pems)
    made.keystore.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) + chain)
    return made
