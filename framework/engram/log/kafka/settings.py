"""Which Kafka, which topics, and how to connect: a URL, and a file for what must not be seen in one.

    kafka://host:port,host:port/TOPIC?replication=3&min_insync=2&config=client.properties

Options of the connection (`security.protocol`, `sasl.mechanism`, `ssl.cafile` ...) may stand in the URL or in the file
that `config` names, one `name=value` a line; passwords only in the file. Their names are kafka-python's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from engram.errors import Misuse

_DEFAULT_PORT = 9092
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,200}")
_SECRET = frozenset({"sasl_plain_password", "ssl_password"})
_NUMBERS = frozenset({"request_timeout_ms", "delivery_timeout_ms", "fetch_max_wait_ms", "linger_ms"})
_TEXTS = frozenset(
    {
        "security_protocol",
        "client_id",
        "compression_type",
        "sasl_mechanism",
        "sasl_plain_username",
        "sasl_plain_password",
        "sasl_kerberos_name",
        "sasl_kerberos_service_name",
        "sasl_kerberos_domain_name",
        "ssl_cafile",
        "ssl_certfile",
        "ssl_keyfile",
        "ssl_crlfile",
        "ssl_ciphers",
        "ssl_password",
    }
)
_FLAGS = frozenset({"ssl_check_hostname"})
_OPTIONS = _NUMBERS | _TEXTS | _FLAGS
# A dead broker is replaced after about 10 s with Kafka's own settings; appends wait that long, and somewhat more.
_DEFAULTS: dict[str, Any] = {"request_timeout_ms": 10_000, "delivery_timeout_ms": 30_000, "fetch_max_wait_ms": 500}


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """A log's place in a Kafka cluster. `client` has options for kafka-python, with secrets: it is never shown."""

    servers: tuple[str, ...]
    topic: str
    replication: int | None = None
    min_insync: int | None = None
    client: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def events_topic(self) -> str:
        return f"{self.topic}.events"

    @property
    def about_topic(self) -> str:
        """One record: which app the log is for, and its number of partitions."""
        return f"{self.topic}.engram"

    def __str__(self) -> str:
        return f"kafka://{','.join(self.servers)}/{self.topic}"


def parse_kafka_url(url: str) -> KafkaSettings:
    """The settings that a URL and its file say. Raises `Misuse` that names what is wrong with them."""
    parts = urlsplit(url)
    if "@" in parts.netloc:
        raise Misuse(
            "A Kafka URL must not have a user and password in it: put them into a file, and name it ?config=FILE."
        )
    servers = tuple(map(_server, filter(None, parts.netloc.split(","))))
    topic = parts.path.strip("/")
    if not servers or not _TOPIC.fullmatch(topic):
        raise Misuse(
            f"{url!r} is not a Kafka log: write kafka://HOST:PORT/TOPIC, such as kafka://127.0.0.1:9092/social"
        )
    said = dict(parse_qsl(parts.query, keep_blank_values=True))
    replication, min_insync = (_count(said, name) for name in ("replication", "min_insync"))
    file = said.pop("config", None)
    secret = sorted(_SECRET & {_plain(name) for name in said})
    if secret:
        raise Misuse(
            f"{secret[0]} must not stand in a URL, where everybody sees it: put it into a file, and name that file by "
            "?config=FILE."
        )
    client = {
        **_DEFAULTS,
        **(_read(Path(file)) if file else {}),
        **dict(_option(n, v, "the URL") for n, v in said.items()),
    }
    if min_insync is not None and replication is not None and min_insync > replication:
        raise Misuse(f"min_insync={min_insync} can never be met with replication={replication}.")
    return KafkaSettings(servers, topic, replication, min_insync, client)


def absolute_kafka_url(url: str) -> str:
    """The same, with the path of its file made absolute."""
    parts = urlsplit(url)
    query = "&".join(
        f"config={Path(item.partition('=')[2]).expanduser().absolute()}" if item.startswith("config=") else item
        for item in parts.query.split("&")
    )
    return urlunsplit(parts._replace(query=query))


def _server(text: str) -> str:
    host, colon, port = text.rpartition(":") if not text.endswith("]") else (text, "", "")
    if not colon:
        host, port = text, str(_DEFAULT_PORT)
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise Misuse(f"{text!r} is not the address of a broker: write HOST:PORT.")
    return f"{host}:{port}"


def _count(said: dict[str, str], name: str) -> int | None:
    text = said.pop(name, None)
    if text is None:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise Misuse(f"{name}={text} in a Kafka URL must be a number from 1 on.")
    return int(text)


def _read(path: Path) -> dict[str, Any]:
    try:
        lines = path.expanduser().read_text().splitlines()
    except (OSError, UnicodeDecodeError) as problem:
        why = problem.strerror if isinstance(problem, OSError) else "it is not text"
        raise Misuse(f"The file {path} with the options for Kafka cannot be read: {why}.") from problem
    options = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith(("#", "!")):
            continue
        name, equals, value = text.partition("=")
        if not equals:
            raise Misuse(f"Line {number} of {path} is not name=value.")
        option, parsed = _option(name.strip(), value.strip(), f"line {number} of {path}")
        options[option] = parsed
    return options


def _option(name: str, value: str, where: str) -> tuple[str, Any]:
    option = _plain(name)
    if option not in _OPTIONS:
        near = get_close_matches(option, _OPTIONS, 3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(sorted(_OPTIONS))}."
        raise Misuse(f"{name!r} in {where} is not an option for Kafka: {hint}")
    if option in _NUMBERS:
        if not value.isdecimal():
            raise Misuse(f"{name} in {where} must be a number.")
        return option, int(value)
    if option in _FLAGS:
        if value not in ("true", "false"):
            raise Misuse(f"{name} in {where} must be true or false.")
        return option, value == "true"
    return option, value


def _plain(name: str) -> str:
    return name.replace(".", "_")
