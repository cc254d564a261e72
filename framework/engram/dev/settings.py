"""A node's settings: what Kafka is told in its properties file."""

from __future__ import annotations

import base64
import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from engram.errors import Misuse

_SCRAM_ITERATIONS = 4096  # the least that Kafka takes


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """How clients must speak. The brokers among themselves use plain listeners of their own, on loopback too."""

    protocol: Literal["SSL", "SASL_PLAINTEXT", "SASL_SSL"]
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = None
    users: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Names and passwords, for the SASL protocols."""
    keystore_pem: Path | None = None
    """For the TLS protocols: a file with the brokers' private key (PKCS 8, not encrypted) and certificate chain."""
    truststore_pem: Path | None = None
    """With it, clients too must show a certificate, signed by one of these."""

    def __post_init__(self) -> None:
        if self.protocol != "SSL" and not (self.mechanism and self.users):
            raise Misuse(f"{self.protocol} needs a mechanism and users.")
        if self.protocol != "SASL_PLAINTEXT" and self.keystore_pem is None:
            raise Misuse(f"{self.protocol} needs keystore_pem, a file with the brokers' key and certificates.")

    def scram(self) -> list[str]:
        """Arguments of `StorageTool format` that make the SCRAM users, their passwords salted: the tool's syntax does
        not take every password, and a command line can be seen."""
        if self.mechanism is None or not self.mechanism.startswith("SCRAM"):
            return []
        digest = self.mechanism.removeprefix("SCRAM-").replace("-", "")
        arguments = []
        for name, password in self.users.items():
            salt = secrets.token_bytes(16)
            salted = hashlib.pbkdf2_hmac(digest, password.encode(), salt, _SCRAM_ITERATIONS)
            parts = (
                f'name={name},iterations={_SCRAM_ITERATIONS},salt="{_base64(salt)}",saltedpassword="{_base64(salted)}"'
            )
            arguments += ["--add-scram", f"{self.mechanism}=[{parts}]"]
        return arguments

    def settings(self) -> dict[str, str]:
        """The client listener's part of a node's settings."""
        settings: dict[str, str] = {}
        if self.mechanism is not None:
            prefix = f"listener.name.client.{self.mechanism.lower()}"
            settings["sasl.enabled.mechanisms"] = self.mechanism
            settings[f"{prefix}.sasl.jaas.config"] = self._login_module()
        if self.keystore_pem is not None:
            settings["ssl.keystore.type"] = "PEM"
            settings["ssl.keystore.location"] = str(self.keystore_pem.absolute())
        if self.truststore_pem is not None:
            settings["ssl.truststore.type"] = "PEM"
            settings["ssl.truststore.location"] = str(self.truststore_pem.absolute())
            settings["listener.name.client.ssl.client.auth"] = "required"
        return settings

    def _login_module(self) -> str:
        package = "org.apache.kafka.common.security"
        if self.mechanism != "PLAIN":
            return f"{package}.scram.ScramLoginModule required;"
        users = " ".join(f'user_{name}="{_quoted(password)}"' for name, password in self.users.items())
        return f"{package}.plain.PlainLoginModule required {users};"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Where one node listens on 127.0.0.1: for clients, for the other brokers (and for us), as a controller."""

    client: int
    internal: int
    controller: int


def node_settings(
    node: int, ports: Sequence[Ports], data: Path, security: Security | None, *, host: str = "127.0.0.1"
) -> dict[str, str]:
    """All settings of one node of a cluster in which each is broker and controller; `host` is where clients come."""
    mine = ports[node]
    count = len(ports)
    copies = str(min(3, count))
    in_sync = "2" if count >= 3 else "1"
    return {
        "process.roles": "broker,controller",
        "node.id": str(node),
        "controller.quorum.voters": ",".join(f"{i}@127.0.0.1:{p.controller}" for i, p in enumerate(ports)),
        "listeners": ",".join(
            [
                f"CLIENT://{host}:{mine.client}",
                f"INTERNAL://127.0.0.1:{mine.internal}",
                f"CONTROLLER://127.0.0.1:{mine.controller}",
            ]
        ),
        "advertised.listeners": f"CLIENT://{host}:{mine.client},INTERNAL://127.0.0.1:{mine.internal}",
        "listener.security.protocol.map": (
            f"CLIENT:{security.protocol if security else 'PLAINTEXT'},INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT"
        ),
        "inter.broker.listener.name": "INTERNAL",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(data),
        "auto.create.topics.enable": "false",
        "default.replication.factor": copies,
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": copies,
        "offsets.topic.num.partitions": "3",
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": in_sync,
        "transaction.state.log.num.partitions": "3",
        "share.coordinator.state.topic.replication.factor": copies,
        "share.coordinator.state.topic.min.isr": in_sync,
        "share.coordinator.state.topic.num.partitions": "3",
        # A group's first consumer would wait 3 s for others.
        "group.initial.rebalance.delay.ms": "0",
        # 128 MB by default, which is a third of the heap.
        "log.cleaner.dedupe.buffer.size": "4194304",
        **(security.settings() if security else {}),
    }


def properties(settings: Mapping[str, str]) -> str:
    """A Java properties file: ASCII, with backslashes doubled and everything else escaped."""
    return "".join(f"{name}={_escaped(value)}\n" for name, value in settings.items())


def _escaped(value: str) -> str:
    units = value.encode("utf-16-be")
    codes = (int.from_bytes(units[i : i + 2]) for i in range(0, len(units), 2))
    return "".join(chr(c) if 0x20 < c < 0x7F and c != 0x5C else f"\\u{c:04x}" for c in codes)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
