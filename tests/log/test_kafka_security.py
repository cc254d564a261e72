"""The log on brokers that want to know who is there: logins from a file, refusals that teach, secrets that stay so."""

from __future__ import annotations

import logging
import select
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import pytest
from engram.codec.record import Kind
from engram.dev.kafka import Brokers, Security
from engram.errors import Misuse, Unavailable
from engram.log.base import Entry
from engram.log.kafka import clients
from engram.log.open import open_log
from engram.log.scan import scan
from engram.model.effects import OutEvent

from tests.dev.certificates import Certificates, make_certificates

SECRET = "open-sesame"
# And whatever a file could take for its own.
PASSWORD = f"{SECRET} =#\"'\\é"
DEADLINE_S = 10.0
Login = Callable[..., str]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def scram(kafka_at_hand: None, certificates: Certificates) -> Iterator[Brokers]:
    """A broker with SCRAM over TLS, whose certificate is for 127.0.0.1."""
    users = {"ada": PASSWORD}
    security = Security(protocol="SASL_SSL", mechanism="SCRAM-SHA-256", users=users, keystore_pem=certificates.keystore)
    with Brokers(security=security) as brokers:
        yield brokers


@pytest.fixture(scope="module")
def plain(kafka_at_hand: None) -> Iterator[Brokers]:
    """A broker with passwords and without TLS."""
    with Brokers(security=Security(protocol="SASL_PLAINTEXT", mechanism="PLAIN", users={"ada": PASSWORD})) as brokers:
        yield brokers


@pytest.fixture
def login(tmp_path: Path) -> Login:
    """Writes a file with options, and gives the URL of a new log that names it."""

    def write(brokers: Brokers, **options: str) -> str:
        path = tmp_path / "client.properties"
        path.write_text("".join(f"{name.replace('_', '.')}={value}\n" for name, value in options.items()))
        return brokers.url(f"secure-{uuid4().hex[:8]}") + f"?config={path}"

    return write


def scram_options(certificates: Certificates, **other: str) -> dict[str, str]:
    return {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_plain_username": "ada",
        "sasl_plain_password": PASSWORD,
        "ssl_cafile": str(certificates.authority),
        **other,
    }


def plain_options(**other: str) -> dict[str, str]:
    return {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "ada",
        "sasl_plain_password": PASSWORD,
        **other,
    }


@pytest.fixture
def heard() -> Iterator[list[str]]:
    """Everything that is logged, at its most talkative."""
    lines: list[str] = []

    class Listen(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(f"{record.name}: {logging.Formatter().format(record)}")

    handler = Listen()
    loggers = [logging.getLogger(), *map(logging.getLogger, ("kafka", *_kafkas()))]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.DEBUG)
    for logger in loggers[:2]:
        logger.addHandler(handler)
    yield lines
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)
        logger.removeHandler(handler)


def _kafkas() -> list[str]:
    return [name for name in logging.root.manager.loggerDict if name.startswith("kafka.")]


class Used(NamedTuple):
    offsets: list[int]
    payloads: list[bytes]
    awake: bool
    events: list[OutEvent]


def use(url: str) -> Used:
    """Makes a log, and does with it all that a shard does."""
    log = open_log(url, "app", partitions=2, create=True)
    try:
        watch = log.watch()
        watch.clear()
        offsets = log.append([Entry(1, Kind.COMMANDS, 0, b"one"), Entry(1, Kind.COMMANDS, 0, b"two")], [EVENT])
        awake = bool(select.select([watch], [], [], DEADLINE_S)[0])
        watch.close()
        payloads = [record.payload for record in scan(log, 1)]
        return Used(offsets, payloads, awake, log.events(1, after=(-1, -1, -1), limit=10))
    finally:
        log.close()


EVENT = OutEvent(1, 0, 0, 0, "event", 1, 0, "ada", b"{}")
WORKS = Used([0, 1], [b"one", b"two"], True, [EVENT])


def refusal(url: str, heard: list[str], kind: type[Exception] = Misuse) -> str:
    """What is said when a log cannot be opened; neither there nor in anything that was logged is a password."""
    with pytest.raises(kind) as refused:
        open_log(url, "app", partitions=2, create=True)
    assert heard, "nothing was logged, so nothing was tested"
    problem: BaseException | None = refused.value
    shown = [*heard, *traceback.format_exception(refused.value)]
    while problem is not None:
        shown.append(repr(problem))
        problem = problem.__cause__ or problem.__context__
    assert [line for line in shown if SECRET in line] == []
    return str(refused.value)


# What works


def test_scram_over_tls(scram: Brokers, certificates: Certificates, login: Login, heard: list[str]):
    """SASL_SSL with SCRAM-SHA-256: a file with the login is all that it takes, and nobody hears the password."""
    used = use(login(scram, **scram_options(certificates)))

    assert used == WORKS
    assert [line for line in heard if SECRET in line] == []
    assert any("Authenticated as ada via SASL" in line for line in heard)


def test_passwords_without_tls(plain: Brokers, login: Login, heard: list[str]):
    """SASL_PLAINTEXT with PLAIN: the password goes over the line as it is, and still into no log."""
    used = use(login(plain, **plain_options()))

    assert used == WORKS
    assert [line for line in heard if SECRET in line] == []
    assert any("Authenticated as ada via SASL" in line for line in heard)


# What is refused


@pytest.mark.parametrize("wrong", [{"sasl_plain_password": f"{SECRET}!"}, {"sasl_plain_username": "eve"}])
def test_a_wrong_password_is_refused(
    scram: Brokers, certificates: Certificates, login: Login, heard: list[str], wrong: dict[str, str]
):
    """The sentence names the user, and what to check, where."""
    options = scram_options(certificates, **wrong)
    user = options["sasl_plain_username"]

    assert refusal(login(scram, **options), heard) == (
        f"Kafka at {scram.bootstrap} turns {user} away: check the password, sasl_mechanism (SCRAM-SHA-256) and "
        "security_protocol (SASL_SSL) in the file that ?config= names."
    )


def test_a_wrong_password_without_tls_is_refused(plain: Brokers, login: Login, heard: list[str]):
    """Also where the broker hangs up before it can be heard."""
    assert refusal(login(plain, **plain_options(sasl_plain_password=f"{SECRET}!")), heard) == (
        f"Kafka at {plain.bootstrap} turns ada away: check the password, sasl_mechanism (PLAIN) and security_protocol "
        "(SASL_PLAINTEXT) in the file that ?config= names."
    )


def test_a_mechanism_that_the_broker_does_not_offer_is_refused(plain: Brokers, login: Login, heard: list[str]):
    """The sentence tells which one was tried."""
    assert refusal(login(plain, **plain_options(sasl_mechanism="SCRAM-SHA-256")), heard) == (
        f"Kafka at {plain.bootstrap} turns ada away: check the password, sasl_mechanism (SCRAM-SHA-256) and "
        "security_protocol (SASL_PLAINTEXT) in the file that ?config= names."
    )


def test_who_does_not_say_who_it_is_is_refused(plain: Brokers, heard: list[str]):
    """A URL without a file, to a broker that wants a password."""
    assert refusal(plain.url("social"), heard) == (
        f"Kafka at {plain.bootstrap} turns this client away: it wants another security_protocol than PLAINTEXT, and "
        "who this is."
    )


def test_a_certificate_for_another_host_is_refused(
    scram: Brokers, certificates: Certificates, login: Login, heard: list[str]
):
    """The sentence tells which host the certificate is not for."""
    servers = scram.bootstrap.replace("127.0.0.1", "localhost")
    url = login(scram, **scram_options(certificates)).replace(scram.bootstrap, servers)

    assert refusal(url, heard) == (
        f"The connection to Kafka at {servers} is not trusted: Hostname mismatch, certificate is not valid for "
        "'localhost'. Check ssl_cafile, and that the host in the URL is the one in the broker's certificate."
    )


def test_the_host_need_not_be_checked(scram: Brokers, certificates: Certificates, login: Login):
    """Who knows what they do can leave the host unchecked; the authority is checked nevertheless."""
    servers = scram.bootstrap.replace("127.0.0.1", "localhost")
    url = login(scram, **scram_options(certificates, ssl_check_hostname="false"))

    assert use(url.replace(scram.bootstrap, servers)) == WORKS


def test_an_unknown_authority_is_refused(
    scram: Brokers, certificates: Certificates, login: Login, tmp_path: Path, heard: list[str]
):
    """A certificate that somebody else has signed is not trusted."""
    other = make_certificates(tmp_path).authority

    assert refusal(login(scram, **scram_options(certificates, ssl_cafile=str(other))), heard) == (
        f"The connection to Kafka at {scram.bootstrap} is not trusted: unable to get local issuer certificate. Check "
        "ssl_cafile, and that the host in the URL is the one in the broker's certificate."
    )


def test_tls_with_a_broker_that_has_none_is_refused(
    plain: Brokers, certificates: Certificates, login: Login, heard: list[str]
):
    """The sentence leads to the protocol."""
    url = login(plain, **scram_options(certificates, sasl_mechanism="PLAIN"))

    said = refusal(url, heard)

    assert said.startswith(f"Kafka at {plain.bootstrap} and this client find no common TLS: ")
    assert said.endswith(
        ". Check security_protocol (SASL_SSL), and what ssl_cafile, ssl_certfile and ssl_keyfile hold."
    )


def test_plain_text_to_a_broker_with_tls_is_refused(
    scram: Brokers, login: Login, heard: list[str], monkeypatch: pytest.MonkeyPatch
):
    """The broker hangs up without a word, as one does that is not ready yet: the sentence names both."""
    monkeypatch.setattr(clients, "_START_MS", (2000,))

    assert refusal(login(scram, **plain_options()), heard, Unavailable) == (
        f"What listens at {scram.bootstrap} hangs up: is it a Kafka broker, is it ready, and does it want another "
        "security_protocol than SASL_PLAINTEXT?"
    )


def test_a_file_that_holds_no_certificate_is_refused(
    scram: Brokers, certificates: Certificates, login: Login, tmp_path: Path, heard: list[str]
):
    """The sentence names the options whose files to look into."""
    (tmp_path / "notes.txt").write_text("remember the milk")

    assert refusal(login(scram, **scram_options(certificates, ssl_cafile="notes.txt")), heard) == (
        f"Kafka at {scram.bootstrap} and this client find no common TLS: no certificate or crl found. Check "
        "security_protocol (SASL_SSL), and what ssl_cafile, ssl_certfile and ssl_keyfile hold."
    )
