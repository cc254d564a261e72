"""The topics of a log: made with the settings that its guarantees need, or checked for them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from kafka import KafkaAdminClient, TopicPartition, errors
from kafka.admin import ConfigResource, ConfigResourceType
from pydantic import BaseModel, ConfigDict, ValidationError

from engram.errors import Misuse, Unavailable
from engram.log.base import NoLog
from engram.log.kafka import clients
from engram.log.kafka.problems import explain
from engram.log.kafka.settings import KafkaSettings

FORMAT = 1
_MAX_PARTITIONS = 1 << 15
_READY_S = 30.0
_ABOUT_S = 10.0

# Nothing is ever removed by Kafka itself: neither by age nor by size nor because a key came again.
_NEEDED = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "unclean.leader.election.enable": "false",
}


class About(BaseModel):
    """The one record of a log's third topic."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    app: str
    partitions: int
    format: int = FORMAT


def open_topics(settings: KafkaSettings, app: str, *, partitions: int | None, create: bool) -> int:
    """The number of partitions of the log, whose topics are there and as they must be.

    Makes them when `create`. Raises `NoLog` when there are none and they are not to be made; `Misuse` when they are
    another app's, have another number of partitions, or settings that would lose records.
    """
    with clients.admin(settings) as admin:
        try:
            return _open(admin, settings, app, partitions, create=create)
        except errors.KafkaError as problem:
            raise explain(problem, settings, "open") from problem


def _open(admin: KafkaAdminClient, settings: KafkaSettings, app: str, partitions: int | None, *, create: bool) -> int:
    names = (settings.topic, settings.events_topic, settings.about_topic)
    there = _partitions(admin, names)
    if len(there) < len(names):
        if not create:
            raise NoLog(f"There is no log at {settings}: check the name, or let `engram run` make it.")
        wanted = partitions if partitions is not None else there.get(settings.topic)
        if wanted is None or not 1 <= wanted <= _MAX_PARTITIONS:
            raise Misuse(f"A new log needs a number of partitions from 1 to {_MAX_PARTITIONS}, not {wanted}.")
        _check_count(settings, there.get(settings.topic, wanted), wanted)
        _make(admin, settings, {n: 1 if n == settings.about_topic else wanted for n in names if n not in there})
        there = _wait_for(admin, names)
        _write_about(settings, About(app=app, partitions=wanted))
    about = _read_about(settings)
    if about.format != FORMAT:
        raise Misuse(f"The log {settings} has format {about.format}; this Engram reads format {FORMAT}.")
    if about.app != app:
        raise Misuse(f"The log {settings} belongs to app {about.app!r}, not to {app!r}: choose another log.")
    for name in names[:2]:
        if there[name] != about.partitions:
            raise Misuse(
                f"The topic {name} has {there[name]} partitions, but the log was made with {about.partitions}: keys "
                "would be looked for where they are not. Restore the topic, or use a copy of the log."
            )
    if partitions is not None:
        _check_count(settings, about.partitions, partitions)
    for name in names[:2]:
        _check_settings(admin, settings, name)
    return about.partitions


def _check_count(settings: KafkaSettings, held: int, wanted: int) -> None:
    if held != wanted:
        raise Misuse(
            f"The log {settings} has {held} partitions, not {wanted}. The number is fixed when a log is made: "
            f"use --partitions {held}, or a new log."
        )


def _partitions(admin: KafkaAdminClient, names: tuple[str, ...]) -> dict[str, int]:
    """The topics that are there and have a leader for each partition, with their numbers of partitions."""
    return {
        topic["name"]: len(topic["partitions"])
        for topic in admin.describe_topics(list(names))
        if topic["error_code"] == 0 and topic["partitions"]
    }


def _wait_for(admin: KafkaAdminClient, names: tuple[str, ...]) -> dict[str, int]:
    deadline = time.monotonic() + _READY_S
    while True:
        left = deadline - time.monotonic()
        admin.wait_for_topics(list(names), timeout_ms=max(1, int(left * 1000)))
        there = _partitions(admin, names)
        if len(there) == len(names):
            return there
        if left <= 0:
            raise Unavailable(f"Kafka did not make the topics {', '.join(names)} within {_READY_S:.0f} s.")


def _make(admin: KafkaAdminClient, settings: KafkaSettings, topics: Mapping[str, int]) -> None:
    brokers = len(admin.describe_cluster()["brokers"])
    replication = settings.replication or min(3, brokers)
    insync = settings.min_insync or max(1, replication - 1)
    configs = {**_NEEDED, "min.insync.replicas": str(insync), "max.message.bytes": str(clients.MESSAGE_BYTES)}
    try:
        for name, partitions in topics.items():
            topic = {"num_partitions": partitions, "replication_factor": replication, "configs": configs}
            with suppress(errors.TopicAlreadyExistsError):  # another process was faster; it is checked like any other
                admin.create_topics({name: topic})
    except errors.InvalidReplicationFactorError as problem:
        raise Misuse(
            f"Kafka at {', '.join(settings.servers)} has {brokers} brokers, too few for replication={replication}."
        ) from problem


def _check_settings(admin: KafkaAdminClient, settings: KafkaSettings, topic: str) -> None:
    held = _settings_of(admin, topic)
    wrong = {name: value for name, value in _NEEDED.items() if held.get(name) != value}
    if int(held["max.message.bytes"]) < clients.MESSAGE_BYTES:
        wrong["max.message.bytes"] = str(clients.MESSAGE_BYTES)
    if settings.min_insync is not None and int(held["min.insync.replicas"]) != settings.min_insync:
        wrong["min.insync.replicas"] = str(settings.min_insync)
    if wrong:
        found = ", ".join(f"{name}={held.get(name)}" for name in wrong)
        mend = ",".join(f"{name}={value}" for name, value in wrong.items())
        raise Misuse(
            f"The topic {topic} has {found}, with which records can be lost. Set {mend} (kafka-configs.sh --alter "
            f"--entity-type topics --entity-name {topic} --add-config {mend}), and start again."
        )


def _settings_of(admin: KafkaAdminClient, topic: str) -> dict[str, str]:
    resource = ConfigResource(ConfigResourceType.TOPIC, topic)
    described: Any = admin.describe_configs([resource], config_filter="all")
    return {name: str(config["value"]) for name, config in described["topic"][topic].items()}


def _write_about(settings: KafkaSettings, about: About) -> None:
    """Two processes that make a log at once both write; the first record counts."""
    producer = clients.producer(settings)
    try:
        sent = producer.send(settings.about_topic, value=about.model_dump_json().encode(), partition=0)
        sent.get(timeout=_READY_S)
    finally:
        producer.close(timeout=1)


def _read_about(settings: KafkaSettings) -> About:
    partition = TopicPartition(settings.about_topic, 0)
    consumer = clients.consumer(settings)
    try:
        consumer.assign([partition])
        consumer.seek(partition, 0)
        deadline = time.monotonic() + _ABOUT_S
        while time.monotonic() < deadline:
            for record in consumer.poll(timeout_ms=200).get(partition, []):
                return About.model_validate_json(record.value)
    except ValidationError as problem:
        raise Misuse(f"The topic {settings.about_topic} is not of an Engram log: choose another topic.") from problem
    finally:
        consumer.close()
    raise Unavailable(f"The topic {settings.about_topic} does not say yet which app the log is for: try again.")
