"""Kafka's errors in our words."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field

from kafka import errors

from engram.errors import Corrupt, EngramError, Fenced, Misuse, Unavailable
from engram.log.kafka.settings import KafkaSettings

_FENCED = (errors.ProducerFencedError, errors.InvalidProducerEpochError)
_LOGIN = (errors.SaslAuthenticationFailedError, errors.UnsupportedSaslMechanismError, errors.IllegalSaslStateError)
_TOO_LARGE = (errors.MessageSizeTooLargeError, errors.RecordListTooLargeError)


@dataclass
class Tried:
    """What a client met while it tried to start, and whether a broker ever told it its version."""

    problems: list[BaseException] = field(default_factory=list)
    answered: bool = False


def explain_start(tried: Tried, settings: KafkaSettings) -> EngramError:
    """What to raise for a client that could not start in time."""
    for problem in tried.problems:
        told = explain(problem, settings, "open")
        if isinstance(told, Misuse):
            return told
    lost = [problem for problem in tried.problems if isinstance(problem, errors.KafkaConnectionError)]
    hung_up = bool(lost) and all("disconnected" in str(problem) for problem in lost)
    # A broker hangs up on who may not come in, often before the client has read why.
    return _turned_away(settings) if hung_up and tried.answered else _no_broker(settings, hung_up=hung_up)


def explain(  # noqa: PLR0911 - a table
    problem: BaseException, settings: KafkaSettings, doing: str, topic: str = ""
) -> EngramError:
    """What to raise for an error of Kafka's client while `doing` something with a topic: the records', or another."""
    servers = ", ".join(settings.servers)
    topic = topic or settings.topic
    insecure = _cause(problem, ssl.SSLError)
    if insecure is not None:
        return _not_secure(insecure, settings)
    if _cause(problem, _LOGIN) is not None:
        return _turned_away(settings)
    if isinstance(problem, errors.AuthorizationError):
        return Misuse(f"Kafka at {servers} does not allow this user to {doing} {topic}: {_words(problem)}.")
    if isinstance(problem, errors.KafkaConfigurationError) or not isinstance(problem, (errors.KafkaError, OSError)):
        said = str(problem).removeprefix(f"{type(problem).__name__}: ").rstrip(".!")
        return Misuse(f"The options for Kafka at {servers} cannot be used: {said}.")
    if _cause(problem, _FENCED) is not None:  # heard by the client's own thread, it comes inside of another
        return Fenced(f"A newer owner lets out the events of {settings.topic} now.")
    if isinstance(problem, (errors.UnknownTopicOrPartitionError, errors.UnknownTopicIdError)):
        return Corrupt(f"The topic {topic} is not in Kafka at {servers} any more: was it deleted?")
    if isinstance(problem, _TOO_LARGE):
        return Misuse(
            f"The record is larger than {topic} allows now (max.message.bytes): make it smaller, or that larger."
        )
    return Unavailable(f"Kafka at {servers} could not {doing} {topic}: {_words(problem)}.")


def _no_broker(settings: KafkaSettings, *, hung_up: bool) -> Unavailable:
    servers = ", ".join(settings.servers)
    if hung_up:
        return Unavailable(
            f"What listens at {servers} hangs up: is it a Kafka broker, is it ready, and does it want another "
            f"security_protocol than {_protocol(settings)}?"
        )
    return Unavailable(
        f"No Kafka broker answers at {servers}: is it running, and is that its address? "
        "(`engram dev kafka` starts one for development.)"
    )


def _turned_away(settings: KafkaSettings) -> Misuse:
    client, servers, protocol = settings.client, ", ".join(settings.servers), _protocol(settings)
    if not protocol.startswith("SASL"):
        return Misuse(
            f"Kafka at {servers} turns this client away: it wants another security_protocol than {protocol}, and who "
            "this is."
        )
    return Misuse(
        f"Kafka at {servers} turns {client.get('sasl_plain_username', 'this client')} away: check the password, "
        f"sasl_mechanism ({client.get('sasl_mechanism')}) and security_protocol ({protocol}) in the file that ?config= "
        "names."
    )


def _not_secure(problem: BaseException, settings: KafkaSettings) -> Misuse:
    servers = ", ".join(settings.servers)
    if isinstance(problem, ssl.SSLCertVerificationError):
        return Misuse(
            f"The connection to Kafka at {servers} is not trusted: {problem.verify_message.rstrip('.')}. Check "
            "ssl_cafile, and that the host in the URL is the one in the broker's certificate."
        )
    why = str(getattr(problem, "reason", "") or problem).replace("_", " ").lower()
    return Misuse(
        f"Kafka at {servers} and this client find no common TLS: {why}. Check security_protocol "
        f"({_protocol(settings)}), and what ssl_cafile, ssl_certfile and ssl_keyfile hold."
    )


def _protocol(settings: KafkaSettings) -> str:
    return str(settings.client.get("security_protocol", "PLAINTEXT"))


def _cause(
    problem: BaseException | None, kind: type[BaseException] | tuple[type[BaseException], ...]
) -> BaseException | None:
    while problem is not None and not isinstance(problem, kind):
        inner = next((arg for arg in problem.args if isinstance(arg, BaseException)), None)
        problem = problem.__cause__ or inner or problem.__context__
    return problem


def _words(problem: BaseException) -> str:
    text = str(problem).rstrip(".")
    return text if text.startswith(type(problem).__name__) else f"{type(problem).__name__}: {text}"
