"""Kafka's errors in our words."""

from __future__ import annotations

import ssl

from kafka import errors

from engram.errors import Corrupt, EngramError, Fenced, Misuse, Unavailable
from engram.log.kafka.settings import KafkaSettings

_FENCED = (errors.ProducerFencedError, errors.InvalidProducerEpochError)


def explain(problem: BaseException, settings: KafkaSettings, doing: str) -> EngramError:  # noqa: PLR0911 - a table
    """What to raise for an error of Kafka's client that happened while `doing`."""
    servers = ", ".join(settings.servers)
    certificate = _cause(problem, ssl.SSLError)
    if certificate is not None:
        return Misuse(
            f"The connection to Kafka at {servers} is not trusted: {_certificate(certificate)}. Check ssl_cafile, and "
            "that the host in the URL is the one in the broker's certificate."
        )
    if _cause(problem, errors.SaslAuthenticationFailedError) is not None:
        return Misuse(
            f"Kafka at {servers} does not know this user or password: check sasl_mechanism, sasl_plain_username and "
            "sasl_plain_password in the file that ?config= names."
        )
    if isinstance(problem, errors.UnsupportedSaslMechanismError):
        return Misuse(
            f"Kafka at {servers} does not offer {settings.client.get('sasl_mechanism')}: check sasl_mechanism."
        )
    if isinstance(problem, errors.AuthorizationError):
        return Misuse(f"Kafka at {servers} does not allow this user to {doing} {settings.topic}: {_words(problem)}.")
    if isinstance(problem, _FENCED):
        return Fenced(f"A newer owner lets out the events of {settings.topic}.")
    if isinstance(problem, (errors.UnknownTopicOrPartitionError, errors.UnknownTopicIdError)):
        return Corrupt(f"The topic {settings.topic} is not in Kafka at {servers} any more: was it deleted?")
    if isinstance(problem, (errors.MessageSizeTooLargeError, errors.RecordListTooLargeError)):
        return Misuse(f"The record is larger than {settings.topic} allows (max.message.bytes): nothing was appended.")
    return Unavailable(f"Kafka at {servers} could not {doing} {settings.topic}: {_words(problem)}.")


def no_broker(settings: KafkaSettings) -> Unavailable:
    servers = ", ".join(settings.servers)
    return Unavailable(
        f"No Kafka broker answers at {servers}: is it running, and is that its address? "
        "(`engram dev kafka` starts one for development.)"
    )


def _cause(problem: BaseException | None, kind: type[BaseException]) -> BaseException | None:
    while problem is not None and not isinstance(problem, kind):
        inner = next((arg for arg in problem.args if isinstance(arg, BaseException)), None)
        problem = problem.__cause__ or inner or problem.__context__
    return problem


def _certificate(problem: BaseException) -> str:
    return str(getattr(problem, "verify_message", "") or problem)


def _words(problem: BaseException) -> str:
    text = str(problem).rstrip(".")
    return text if text.startswith(type(problem).__name__) else f"{type(problem).__name__}: {text}"
