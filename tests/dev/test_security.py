"""Brokers that want to know who is there: TLS, SASL/PLAIN and SASL/SCRAM for clients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engram.dev.kafka import Brokers, Security
from engram.errors import Misuse
from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError

from tests.dev.certificates import Certificates, make_certificates

# Whatever a file, a command line or a quoted string could take for its own.
PASSWORD = "a b,c=\"d\\e'[f]é"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def topics(brokers: Brokers, *, seconds: int = 30, **options: Any) -> list[str]:
    """What an administrator with these options is told. One that is turned away tries again until the time is over."""
    admin = KafkaAdminClient(bootstrap_servers=brokers.bootstrap, bootstrap_timeout_ms=seconds * 1000, **options)
    try:
        return list(admin.list_topics())
    finally:
        admin.close()


def sasl(protocol: str, mechanism: str, password: str) -> dict[str, str]:
    return {
        "security_protocol": protocol,
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "ada",
        "sasl_plain_password": password,
    }


@pytest.mark.usefixtures("kafka_at_hand")
def test_scram_over_tls_lets_in_who_knows_the_password(certificates: Certificates):
    """SASL_SSL with SCRAM-SHA-256: the right password is let in, a wrong one is not."""
    security = Security(
        protocol="SASL_SSL",
        mechanism="SCRAM-SHA-256",
        users={"ada": PASSWORD, "bob": "other"},
        keystore_pem=certificates.keystore,
    )
    trusted = {"ssl_cafile": str(certificates.authority)}
    with Brokers(security=security) as brokers:
        told = topics(brokers, **sasl("SASL_SSL", "SCRAM-SHA-256", PASSWORD), **trusted)
        with pytest.raises(KafkaError):
            topics(brokers, seconds=1, **sasl("SASL_SSL", "SCRAM-SHA-256", "wrong"), **trusted)

    assert told == []


@pytest.mark.usefixtures("kafka_at_hand")
def test_plain_lets_in_who_knows_the_password():
    """SASL_PLAINTEXT with PLAIN: the right password is let in, a wrong one is not."""
    security = Security(protocol="SASL_PLAINTEXT", mechanism="PLAIN", users={"ada": PASSWORD})
    with Brokers(security=security) as brokers:
        told = topics(brokers, **sasl("SASL_PLAINTEXT", "PLAIN", PASSWORD))
        with pytest.raises(KafkaError):
            topics(brokers, seconds=1, **sasl("SASL_PLAINTEXT", "PLAIN", "wrong"))

    assert told == []


@pytest.mark.usefixtures("kafka_at_hand")
def test_tls_shows_a_certificate_of_the_authority(certificates: Certificates, tmp_path: Path):
    """SSL: a client that trusts the authority is served, one that trusts another is not."""
    stranger = make_certificates(tmp_path).authority
    with Brokers(security=Security(protocol="SSL", keystore_pem=certificates.keystore)) as brokers:
        told = topics(brokers, security_protocol="SSL", ssl_cafile=str(certificates.authority))
        with pytest.raises(KafkaError):
            topics(brokers, seconds=1, security_protocol="SSL", ssl_cafile=str(stranger))

    assert told == []


@pytest.mark.usefixtures("kafka_at_hand")
def test_tls_with_a_truststore_asks_clients_for_a_certificate(certificates: Certificates):
    """SSL with `truststore_pem`: a client without a certificate of the authority is turned away."""
    security = Security(protocol="SSL", keystore_pem=certificates.keystore, truststore_pem=certificates.authority)
    trusting = {"security_protocol": "SSL", "ssl_cafile": str(certificates.authority)}
    own = {"ssl_certfile": str(certificates.keystore), "ssl_keyfile": str(certificates.keystore)}
    with Brokers(security=security) as brokers:
        told = topics(brokers, **trusting, **own)
        with pytest.raises(KafkaError):
            topics(brokers, seconds=1, **trusting)

    assert told == []


def test_half_a_security_is_refused():
    """SASL without users and TLS without a key are told at once."""
    with pytest.raises(Misuse, match="SASL_PLAINTEXT needs a mechanism and users"):
        Security(protocol="SASL_PLAINTEXT", mechanism="PLAIN")
    with pytest.raises(Misuse, match="SSL needs keystore_pem"):
        Security(protocol="SSL")


def test_passwords_are_not_shown():
    """Neither the options nor an error of them print a password."""
    assert "secret" not in repr(Security(protocol="SASL_PLAINTEXT", mechanism="PLAIN", users={"ada": "secret"}))
