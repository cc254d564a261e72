"""Which Kafka, which topics, and how to connect: a URL, and a file for what must not be seen in one.

    kafka://host:port,host:port/TOPIC?replication=3&min_insync=2&config=client.properties

Options of the connection (`security.protocol`, `sasl.mechanism`, `ssl.cafile` ...) may stand in the URL or in the file
that `config` names, one `name=value` a line; passwords only in the file. Their names are kafka-python's. Paths in the
file are relative to its folder.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit, urlunsplit

from engram.errors import Misuse

_DEFAULT_PORT = 9092
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,200}")
_SECRET = frozenset({"sasl_plain_password", "ssl_password"})
_NUMBERS = frozenset({"request_timeout_ms", "delivery_timeout_ms", "fetch_max_wait_ms", "linger_ms"})
_CHOICES = {
    "security_protocol": ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    "sasl_mechanism": ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI"),
    "compression_type": ("gzip", "snappy", "lz4", "zstd"),
    "ssl_check_hostname": ("true", "false"),
}
_TEXTS = frozenset(
    {
        "client_id",
        "sasl_plain_username",
        "sasl_plain_password",
        "sasl_kerberos_name",
        "sasl_kerberos_service_name",
        "sasl_kerberos_domain_name",
        "ssl_password",
    }
)
_PATHS = frozenset({"ssl_cafile", "ssl_certfile", "ssl_keyfile", "ssl_crlfile"})
_OPTIONS = _NUMBERS | _CHOICES.keys() | _TEXTS | _PATHS
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
    parts = _split(url)
    if "@" in parts.netloc + parts.path:
        raise Misuse(
            "A Kafka URL must not have a user and password in it: put them into a file, and name it ?config=FILE."
        )
    servers = tuple(map(_server, filter(None, parts.netloc.split(","))))
    topic = parts.path.strip("/")
    if not servers or not _TOPIC.fullmatch(topic):
        raise _no_kafka_url(url)
    said = dict(parse_qsl(parts.query.replace("+", "%2B"), keep_blank_values=True))
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
        **({} if file is None else _read(Path(file).expanduser())),
        **dict(_option(n, v, "the URL", Path.cwd()) for n, v in said.items()),
    }
    _check_login(client)
    _check_times(client)
    if min_insync is not None and replication is not None and min_insync > replication:
        raise Misuse(
            f"min_insync={min_insync} can never be met with replication={replication}: choose a smaller min_insync, or "
            "a larger replication."
        )
    return KafkaSettings(servers, topic, replication, min_insync, client)


def absolute_kafka_url(url: str) -> str:
    """The same, with the paths of its files made absolute."""
    parts = _split(url)
    items = (item.partition("=") for item in parts.query.split("&"))
    query = "&".join(
        f"{name}={quote(str(Path(unquote(value)).expanduser().absolute()))}"
        if name == "config" or _plain(name) in _PATHS
        else f"{name}{equals}{value}"
        for name, equals, value in items
    )
    return urlunsplit(parts._replace(query=query))


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url, allow_fragments=False)
    except ValueError:  # brackets that are no IPv6 address
        raise _no_kafka_url(url) from None


def _no_kafka_url(url: str) -> Misuse:
    # Without its options: there may be a password among them.
    return Misuse(
        f"{url.partition('?')[0]!r} is not a Kafka log: write kafka://HOST:PORT/TOPIC, such as "
        "kafka://127.0.0.1:9092/social"
    )


def _check_login(client: Mapping[str, Any]) -> None:
    protocol = client.get("security_protocol", "")
    if protocol.startswith("SASL"):
        login = () if client.get("sasl_mechanism") == "GSSAPI" else ("sasl_plain_username", "sasl_plain_password")
        missing = [name for name in ("sasl_mechanism", *login) if not client.get(name)]
        if missing:
            raise Misuse(
                f"security_protocol={protocol} needs {' and '.join(missing)} too: say that in the file that ?config= "
                "names."
            )


def _check_times(client: Mapping[str, Any]) -> None:
    delivery, least = client["delivery_timeout_ms"], client["request_timeout_ms"] + client.get("linger_ms", 0)
    if delivery <= least:
        raise Misuse(
            f"delivery_timeout_ms={delivery} must be more than request_timeout_ms and linger_ms together, which are "
            f"{least}."
        )


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
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as problem:
        why = problem.strerror if isinstance(problem, OSError) else "it is not text"
        raise Misuse(f"The file {path} with the options for Kafka cannot be read: {why}.") from None
    options = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith(("#", "!")):
            continue
        name, equals, value = text.partition("=")
        if not equals:  # what it is instead may be half a password
            raise Misuse(f"Line {number} of {path} is not name=value.")
        option, parsed = _option(name.strip(), value.strip(), f"line {number} of {path}", path.absolute().parent)
        options[option] = parsed
    return options


def _option(name: str, value: str, where: str, folder: Path) -> tuple[str, Any]:
    """The option's own name and its value. Raises `Misuse` that does not show the value of one that may be secret."""
    option = _plain(name)
    if option not in _OPTIONS:
        near = get_close_matches(option, _OPTIONS, 1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(_OPTIONS))}."
        raise Misuse(f"{name!r} in {where} is not an option for Kafka: {hint}")
    if option in _NUMBERS:
        least = 0 if option == "linger_ms" else 1
        if not value.isdecimal() or int(value) < least:
            raise Misuse(f"{name} in {where} must be a number from {least} on.")
        return option, int(value)
    if option in _CHOICES:
        if value not in _CHOICES[option]:
            raise Misuse(f"{name} in {where} must be {' or '.join(_CHOICES[option])}, not {value!r}.")
        return option, value == "true" if option == "ssl_check_hostname" else value
    if option in _PATHS:
        return option, _readable(folder / Path(value).expanduser(), name, where)
    return option, value


def _readable(path: Path, name: str, where: str) -> str:
    try:
        path.open("rb").close()
    except OSError as problem:
        raise Misuse(f"The file {path} that {name} in {where} names cannot be read: {problem.strerror}.") from problem
    return str(path)


def _plain(name: str) -> str:
    return name.replace(".", "_")
