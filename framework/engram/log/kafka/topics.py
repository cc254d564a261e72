"""The topics of a log: made with the settings that its guarantees need, or checked for them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from kafka import KafkaAdminClient, TopicPartition, errors
from kafka.admin import ConfigResource, ConfigResourceType
from pydantic import BaseModel, ConfigDict, ValidationError

from engram.errors import Misuse, Unavailable
from engram.log.base import Making, NoLog, Unfinished
from engram.log.kafka import clients
from engram.log.kafka.problems import explain
from engram.log.kafka.settings import KafkaSettings

FORMAT = 2
_MAX_PARTITIONS = 1 << 15
_TOPICS = 3
_READY_S = 30.0
_READY_MS = int(_READY_S * 1000)
# Who makes a log writes last, and within moments, what it is; after a crash in between nobody does.
_ABOUT_S = 3.0
_LOOK_S = 0.1

# Nothing is ever removed by Kafka itself: neither by age nor by size nor because a key came again. A record's time is
# its writer's, and none is refused for it.
_NEEDED = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "unclean.leader.election.enable": "false",
    "message.timestamp.type": "CreateTime",
    "message.timestamp.after.max.ms": str(2**63 - 1),
    "message.timestamp.before.max.ms": str(2**63 - 1),
}


class About(BaseModel):
    """The one record of a log's third topic; of one that was made by `engram repartition`, the first and the last."""

    # Others may stand there in a later format, which is then told.
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    app: str
    partitions: int
    format: int = FORMAT
    base: int = 0
    plan: str = ""  # of the repartition that made it
    making: bool = False  # it is not whole until there is a second record, without this


class _Topic(NamedTuple):
    partitions: int
    replicas: int  # of the partition that has the fewest


def open_topics(
    settings: KafkaSettings, app: str, *, partitions: int | None, create: bool, making: Making | None = None
) -> About:
    """What the log says of itself, whose topics are there and as they must be.

    Makes them when `create`. Raises `NoLog` when there are none and they are not to be made; `Misuse` when they are
    another app's, have another number of partitions, or settings that would lose records; and when the log is not
    whole, or was made by another plan than `making`.
    """
    with clients.admin(settings) as admin:
        try:
            return _open(admin, settings, app, partitions, create=create, making=making)
        except errors.KafkaError as problem:
            raise explain(problem, settings, "open") from problem


def finish_topics(settings: KafkaSettings, about: About) -> None:
    """Says that a log is whole."""
    try:
        _write_about(settings, about.model_copy(update={"making": False}))
    except errors.KafkaError as problem:
        raise explain(problem, settings, "append to") from problem


def delete_before(settings: KafkaSettings, partition: int, offset: int) -> None:
    """Has Kafka remove the records of a partition before `offset`."""
    with clients.admin(settings) as admin:
        try:
            admin.delete_records({TopicPartition(settings.topic, partition): offset}, timeout_ms=_READY_MS)
        except errors.KafkaError as problem:
            raise explain(problem, settings, "trim") from problem


def _open(
    admin: KafkaAdminClient,
    settings: KafkaSettings,
    app: str,
    partitions: int | None,
    *,
    create: bool,
    making: Making | None,
) -> About:
    about = _find_about(admin, settings, wait_s=0 if create else _ABOUT_S)
    if about is None:
        if not create:
            raise NoLog(f"There is no log at {settings}: check the name, or let `engram run` make it.")
        about = _make(admin, settings, app, partitions, making)
    if about.format != FORMAT:
        raise Misuse(f"The log {settings} has format {about.format}; this Engram reads format {FORMAT}.")
    if about.app != app:
        raise Misuse(f"The log {settings} belongs to app {about.app!r}, not to {app!r}: choose another log.")
    _check_made(settings, about, making)
    there = _topics(admin, settings)
    for name in (settings.topic, settings.events_topic):
        if there[name].partitions != about.partitions:
            raise Misuse(
                f"The topic {name} has {there[name].partitions} partitions, but the log was made with "
                f"{about.partitions}: keys would be looked for where they are not. Restore the topic, or copy the log "
                "to a new one (`engram log copy`)."
            )
    if partitions is not None:
        _check_count(settings, about.partitions, partitions)
    for name, topic in there.items():
        _check_settings(admin, settings, name, topic)
    return about


def _check_made(settings: KafkaSettings, about: About, making: Making | None) -> None:
    if about.making and making is None:
        raise Unfinished.at(settings)
    if making is not None and about.plan != making.plan:
        raise Misuse(f"There is a log at {settings} already, which is not of this: choose another topic.")


def _make(
    admin: KafkaAdminClient, settings: KafkaSettings, app: str, partitions: int | None, making: Making | None
) -> About:
    """Makes what is not there; what is there must be empty, and as it must be. Several processes may do so at once:
    the first one's number of partitions counts, and the first one's app."""
    there = _topics(admin, settings)
    used = _used(settings, there)
    if used:
        # The last look: another process may have made the log, and used it, since the first.
        about = _find_about(admin, settings, wait_s=_ABOUT_S)
        if about is not None:
            return about
        raise _not_ours(settings, there, used)
    for name, topic in there.items():
        _check_settings(admin, settings, name, topic)
    wanted = partitions if partitions is not None or settings.topic not in there else there[settings.topic].partitions
    if wanted is None or not 1 <= wanted <= _MAX_PARTITIONS:
        raise Misuse(f"A new log needs a number of partitions from 1 to {_MAX_PARTITIONS}, not {wanted}.")
    _create(admin, settings, {settings.topic: wanted})
    held = _topics(admin, settings)[settings.topic].partitions
    _check_count(settings, held, wanted)
    _create(admin, settings, {settings.events_topic: held, settings.about_topic: 1})
    about = About(app=app, partitions=held)
    if making is not None:
        about = About(app=app, partitions=held, base=making.base, plan=making.plan, making=True)
    _write_about(settings, about)
    written = _read_about(settings, wait_s=_READY_S)
    if written is None:
        raise Unavailable(f"The topic {settings.about_topic} does not say yet which app the log is for: try again.")
    return written


def _not_ours(settings: KafkaSettings, there: Mapping[str, _Topic], used: str) -> Misuse:
    lost = " and ".join(name for name in (settings.topic, settings.events_topic) if name not in there)
    if lost and settings.about_topic in there and _read_about(settings, wait_s=0) is not None:
        rest = " and ".join(sorted(there))
        return Misuse(f"The log {settings} has lost its topic {lost}: bring it back, or delete {rest} for a new log.")
    return Misuse(f"The topic {used} holds records that are not of an Engram log: choose another topic.")


def _check_count(settings: KafkaSettings, held: int, wanted: int) -> None:
    if held != wanted:
        raise Misuse(
            f"The log {settings} has {held} partitions, not {wanted}. The number is fixed when a log is made: "
            f"use --partitions {held}, or a new log."
        )


def _topics(admin: KafkaAdminClient, settings: KafkaSettings) -> dict[str, _Topic]:
    """Those of the log's topics that are there."""
    names = [settings.topic, settings.events_topic, settings.about_topic]
    return {
        topic["name"]: _Topic(len(topic["partitions"]), min(len(p["replica_nodes"]) for p in topic["partitions"]))
        for topic in admin.describe_topics(names)
        if topic["error_code"] == 0 and topic["partitions"]
    }


def _used(settings: KafkaSettings, there: Mapping[str, _Topic]) -> str | None:
    """A topic in which there are records, or have been."""
    consumer = clients.consumer(settings)
    try:
        for name, topic in there.items():
            places = [TopicPartition(name, partition) for partition in range(topic.partitions)]
            if any(consumer.end_offsets(places, timeout_ms=_READY_MS).values()):
                return name
    finally:
        consumer.close()
    return None


def _create(admin: KafkaAdminClient, settings: KafkaSettings, topics: Mapping[str, int]) -> None:
    """Returns when these topics are there, with these numbers of partitions if they were not yet."""
    brokers = len(admin.describe_cluster()["brokers"])
    replication = settings.replication or min(3, brokers)
    insync = settings.min_insync or max(1, replication - 1)
    if insync > replication:
        raise Misuse(
            f"min_insync={insync} can never be met with replication={replication}: choose a smaller min_insync, or "
            "more brokers."
        )
    configs = {**_NEEDED, "min.insync.replicas": str(insync), "max.message.bytes": str(clients.MESSAGE_BYTES)}
    for name, partitions in topics.items():
        try:
            with suppress(errors.TopicAlreadyExistsError):  # another process was faster; it is checked like any other
                admin.create_topics(
                    {name: {"num_partitions": partitions, "replication_factor": replication, "configs": configs}}
                )
        except errors.InvalidReplicationFactorError as problem:
            raise Misuse(
                f"replication={replication} needs {replication} brokers, and Kafka at {', '.join(settings.servers)} "
                f"has {brokers}: start more, or choose a smaller replication."
            ) from problem
        except errors.InvalidTopicError as problem:
            raise Misuse(f"Kafka does not take {name} as the name of a topic: {problem}.") from problem
    _wait_for(admin, settings, list(topics))


def _wait_for(admin: KafkaAdminClient, settings: KafkaSettings, names: list[str]) -> None:
    deadline = time.monotonic() + _READY_S
    while True:
        left = deadline - time.monotonic()
        admin.wait_for_topics(names, timeout_ms=max(1, int(left * 1000)))
        if _topics(admin, settings).keys() >= set(names):
            return
        if left <= 0:
            raise Unavailable(f"Kafka did not make the topics {', '.join(names)} within {_READY_S:.0f} s: try again.")


def _check_settings(admin: KafkaAdminClient, settings: KafkaSettings, name: str, topic: _Topic) -> None:
    if settings.replication is not None and topic.replicas != settings.replication:
        raise Misuse(
            f"The topic {name} has {topic.replicas} replicas of each partition, not {settings.replication}: leave "
            "replication out of the URL, or have them changed (kafka-reassign-partitions.sh)."
        )
    held = _settings_of(admin, name)
    wrong = {setting: value for setting, value in _NEEDED.items() if held.get(setting) != value}
    if int(held["max.message.bytes"]) < clients.MESSAGE_BYTES:
        wrong["max.message.bytes"] = str(clients.MESSAGE_BYTES)
    if settings.min_insync is not None and int(held["min.insync.replicas"]) != settings.min_insync:
        wrong["min.insync.replicas"] = str(settings.min_insync)
    if wrong:
        found = ", ".join(f"{setting}={held.get(setting)}" for setting in wrong)
        mend = ",".join(f"{setting}={value}" for setting, value in wrong.items())
        raise Misuse(
            f"The topic {name} has {found}, with which records can be lost or refused. Set {mend} (kafka-configs.sh "
            f"--alter --entity-type topics --entity-name {name} --add-config {mend}), and start again."
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
        clients.close(producer, wait_s=1)


def _find_about(admin: KafkaAdminClient, settings: KafkaSettings, *, wait_s: float) -> About | None:
    """What the log says of itself, if all of its topics are there."""
    return _read_about(settings, wait_s=wait_s) if len(_topics(admin, settings)) == _TOPICS else None


def _read_about(settings: KafkaSettings, *, wait_s: float) -> About | None:
    """Waits for it, if it is not there: who makes a log writes it last."""
    partition = TopicPartition(settings.about_topic, 0)
    consumer = clients.consumer(settings)
    try:
        consumer.assign([partition])
        consumer.seek(partition, 0)
        deadline = time.monotonic() + wait_s
        while not (end := consumer.end_offsets([partition], timeout_ms=_READY_MS)[partition]):
            if time.monotonic() > deadline:
                return None
            time.sleep(_LOOK_S)
        deadline = time.monotonic() + _READY_S
        while time.monotonic() < deadline:
            for record in consumer.poll(timeout_ms=200).get(partition, []):
                about = About.model_validate_json(record.value or b"")
                if not about.making or record.offset == end - 1:
                    return about
    except ValidationError as problem:
        raise Misuse(f"The topic {settings.about_topic} is not of an Engram log: choose another topic.") from problem
    finally:
        consumer.close()
    raise Unavailable(f"Kafka did not give the record of {settings.about_topic} within {_READY_S:.0f} s: try again.")
