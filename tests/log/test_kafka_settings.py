"""Which Kafka, and how to connect: the URL, the file that it names, and what they must not show."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from engram.errors import Misuse
from engram.log.kafka.settings import KafkaSettings, parse_kafka_url
from engram.log.open import absolute_url, folder_beside, open_log
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer

SECRET = "open-sesame"
Config = Callable[[str], Path]

LOGIN = f"""\
# How production is reached.
security.protocol = SASL_SSL
sasl.mechanism=SCRAM-SHA-512

! As Java's properties have it, too.
sasl_plain_username=ada
sasl.plain.password={SECRET}
"""


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """Writes a file with options, and gives its path."""

    def write(text: str) -> Path:
        path = tmp_path / "client.properties"
        path.write_text(text)
        return path

    return write


def refusal(url: str) -> str:
    with pytest.raises(Misuse) as refused:
        parse_kafka_url(url)
    shown = "".join(traceback.format_exception(refused.value))
    assert SECRET not in shown
    return str(refused.value)


# URLs


def test_a_url_names_brokers_and_a_topic():
    """Brokers have commas between them; one without a port has Kafka's own."""
    settings = parse_kafka_url("kafka://one:1234,two,[::1]:9093/social?replication=3&min_insync=2")

    assert settings.servers == ("one:1234", "two:9092", "[::1]:9093")
    assert (settings.topic, settings.replication, settings.min_insync) == ("social", 3, 2)
    assert (settings.events_topic, settings.about_topic) == ("social.events", "social.engram")


def test_what_is_not_said_has_a_default():
    """Times have defaults; how many replicas there are to be is for the cluster to say."""
    settings = parse_kafka_url("kafka://one/social")

    assert settings.client == {"request_timeout_ms": 10_000, "delivery_timeout_ms": 30_000, "fetch_max_wait_ms": 500}
    assert (settings.replication, settings.min_insync) == (None, None)


def test_dots_and_underscores_are_the_same():
    """Options may be written as Java's clients or as Python's have them."""
    dots = parse_kafka_url("kafka://one/social?request.timeout.ms=1000&security.protocol=SSL&ssl.check.hostname=false")
    underscores = parse_kafka_url(
        "kafka://one/social?request_timeout_ms=1000&security_protocol=SSL&ssl_check_hostname=false"
    )

    assert dots == underscores
    assert dots.client["request_timeout_ms"] == 1000
    assert dots.client["ssl_check_hostname"] is False


@pytest.mark.parametrize(
    "url",
    [
        "kafka://one:9092",
        "kafka://one:9092/",
        "kafka:social",
        "kafka:///social",
        "kafka://one/a/b",
        "kafka://one/a%20b",
    ],
)
def test_a_url_without_brokers_or_topic_is_refused(url: str):
    """The sentence shows how a log on Kafka is named."""
    example = "write kafka://HOST:PORT/TOPIC, such as kafka://127.0.0.1:9092/social"

    assert refusal(url) == f"{url!r} is not a Kafka log: {example}"


def test_a_host_in_brackets_that_is_no_address_is_refused():
    """Python's own error does not get through."""
    assert refusal("kafka://[one/social").startswith(
        "'kafka://[one/social' is not a Kafka log: write kafka://HOST:PORT"
    )


@pytest.mark.parametrize("server", ["one:", "one:port", "one:0", "one:65536", ":9092"])
def test_a_port_that_is_none_is_refused(server: str):
    """The address is told, among several."""
    assert refusal(f"kafka://good:9092,{server}/social") == (
        f"{server!r} is not the address of a broker: write HOST:PORT."
    )


@pytest.mark.parametrize("login", ["ada", f"ada:{SECRET}", f"ada:open/{SECRET}"])
def test_a_user_in_the_url_is_refused(login: str):
    """The sentence says where users and passwords belong, and shows neither."""
    assert refusal(f"kafka://{login}@one:9092/social") == (
        "A Kafka URL must not have a user and password in it: put them into a file, and name it ?config=FILE."
    )


@pytest.mark.parametrize(
    ("option", "named"),
    [
        ("sasl_plain_password", "sasl_plain_password"),
        ("sasl.plain.password", "sasl_plain_password"),
        ("ssl.password", "ssl_password"),
    ],
)
def test_a_password_in_the_url_is_refused(option: str, named: str):
    """The sentence says where it belongs, and does not show it."""
    assert refusal(f"kafka://one/social?{option}={SECRET}") == (
        f"{named} must not stand in a URL, where everybody sees it: put it into a file, and name that file by "
        "?config=FILE."
    )


def test_a_bad_url_is_told_without_its_options():
    """A password that stands in a URL without a topic is not repeated."""
    assert refusal(f"kafka://one?sasl_plain_password={SECRET}").startswith("'kafka://one' is not a Kafka log: ")


# Options


def test_an_option_that_is_nearly_right_is_named():
    """A misspelt option is refused with the one that was meant."""
    assert refusal(f"kafka://one/social?sasl.plain.pasword={SECRET}") == (
        "'sasl.plain.pasword' in the URL is not an option for Kafka: did you mean sasl_plain_password?"
    )


def test_an_unknown_option_is_refused_with_those_that_there_are():
    """Something else altogether is refused with the list."""
    said = refusal("kafka://one/social?colour=blue")

    assert said.startswith("'colour' in the URL is not an option for Kafka: there are client_id, compression_type, ")
    assert said.endswith(", ssl_password.")


@pytest.mark.parametrize(("name", "value"), [("replication", "0"), ("replication", "three"), ("min_insync", "-1")])
def test_a_count_that_is_none_is_refused(name: str, value: str):
    """Replicas are counted from 1."""
    assert refusal(f"kafka://one/social?{name}={value}") == (
        f"{name}={value} in a Kafka URL must be a number from 1 on."
    )


@pytest.mark.parametrize(
    ("name", "value", "least"),
    [("request_timeout_ms", "soon", 1), ("delivery.timeout.ms", "0", 1), ("linger_ms", "-1", 0), ("linger_ms", "", 0)],
)
def test_a_time_that_is_none_is_refused(name: str, value: str, least: int):
    """Times are milliseconds."""
    assert refusal(f"kafka://one/social?{name}={value}") == f"{name} in the URL must be a number from {least} on."


@pytest.mark.parametrize(
    ("name", "value", "known"),
    [
        ("security.protocol", "SASL-SSL", "PLAINTEXT or SSL or SASL_PLAINTEXT or SASL_SSL"),
        ("sasl_mechanism", "SCRAM", "PLAIN or SCRAM-SHA-256 or SCRAM-SHA-512 or GSSAPI"),
        ("compression_type", "zip", "gzip or snappy or lz4 or zstd"),
        ("ssl_check_hostname", "no", "true or false"),
    ],
)
def test_a_value_that_there_is_not_is_refused(name: str, value: str, known: str):
    """A misspelt protocol is never taken for plain text: the sentence lists what there is."""
    assert refusal(f"kafka://one/social?{name}={value}") == f"{name} in the URL must be {known}, not {value!r}."


def test_more_in_sync_than_there_are_replicas_is_refused():
    """Both numbers are told."""
    assert refusal("kafka://one/social?replication=2&min_insync=3") == (
        "min_insync=3 can never be met with replication=2: choose a smaller min_insync, or a larger replication."
    )


def test_a_delivery_that_ends_before_its_requests_is_refused():
    """Both times are told."""
    assert refusal("kafka://one/social?delivery_timeout_ms=5000&linger_ms=5") == (
        "delivery_timeout_ms=5000 must be more than request_timeout_ms and linger_ms together, which are 10005."
    )


@pytest.mark.parametrize(
    ("options", "missing"),
    [
        ("security_protocol=SASL_SSL", "sasl_mechanism and sasl_plain_username and sasl_plain_password"),
        ("security_protocol=SASL_SSL&sasl_mechanism=PLAIN&sasl_plain_username=ada", "sasl_plain_password"),
    ],
)
def test_half_a_login_is_refused(options: str, missing: str):
    """The sentence names what is missing, and where it belongs."""
    assert refusal(f"kafka://one/social?{options}") == (
        f"security_protocol=SASL_SSL needs {missing} too: say that in the file that ?config= names."
    )


# The file


def test_options_come_from_a_file(config: Config):
    """The file has one option a line; comments, empty lines and blanks around do not count."""
    settings = parse_kafka_url(f"kafka://one/social?config={config(LOGIN)}&client_id=me")

    assert settings.client == {
        "request_timeout_ms": 10_000,
        "delivery_timeout_ms": 30_000,
        "fetch_max_wait_ms": 500,
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "ada",
        "sasl_plain_password": SECRET,
        "client_id": "me",
    }


def test_a_password_may_have_anything_in_it(config: Config):
    """Only the first = of a line counts, and a # only at its beginning."""
    path = config("sasl_plain_password = a=b # c!d=é\n")

    assert parse_kafka_url(f"kafka://one/social?config={path}").client["sasl_plain_password"] == "a=b # c!d=é"


def test_the_url_counts_more_than_the_file(config: Config):
    """An option in both is the URL's."""
    path = config("request_timeout_ms=1000\n")

    assert (
        parse_kafka_url(f"kafka://one/social?config={path}&request.timeout.ms=2000").client["request_timeout_ms"]
        == 2000
    )


def test_a_missing_file_is_refused(tmp_path: Path):
    """The path is told."""
    assert refusal(f"kafka://one/social?config={tmp_path / 'none'}") == (
        f"The file {tmp_path / 'none'} with the options for Kafka cannot be read: No such file or directory."
    )


def test_a_folder_is_no_file(tmp_path: Path):
    """A folder cannot be read either."""
    assert refusal(f"kafka://one/social?config={tmp_path}") == (
        f"The file {tmp_path} with the options for Kafka cannot be read: Is a directory."
    )


def test_a_file_that_is_not_text_is_refused(tmp_path: Path):
    """Such as a key store of Java's; nothing of it is shown."""
    path = tmp_path / "keystore.jks"
    path.write_bytes(b"\xfe\xed" + SECRET.encode())

    assert refusal(f"kafka://one/social?config={path}") == (
        f"The file {path} with the options for Kafka cannot be read: it is not text."
    )


def test_a_line_that_is_no_option_is_refused(config: Config):
    """The line is told by its number only: it may be half a password."""
    path = config(f"client_id=me\n\n{SECRET}\n")

    assert refusal(f"kafka://one/social?config={path}") == f"Line 3 of {path} is not name=value."


def test_a_bad_option_in_the_file_is_told_with_its_line(config: Config):
    """The sentence leads to the line."""
    path = config("client_id=me\nsasl.pasword=x\n")

    assert refusal(f"kafka://one/social?config={path}").startswith(
        f"'sasl.pasword' in line 2 of {path} is not an option for Kafka: did you mean "
    )


def test_a_certificate_that_is_not_there_is_refused(config: Config, tmp_path: Path):
    """A file that an option names is looked for at once, beside the file that names it."""
    path = config("ssl.cafile=authority.pem\n")

    assert refusal(f"kafka://one/social?config={path}") == (
        f"The file {tmp_path / 'authority.pem'} that ssl.cafile in line 1 of {path} names cannot be read: "
        "No such file or directory."
    )


def test_paths_in_the_file_are_relative_to_it(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A folder with the file and its certificates can be used from anywhere."""
    (tmp_path / "authority.pem").touch()
    path = config("ssl_cafile=authority.pem\n")
    monkeypatch.chdir("/")

    assert parse_kafka_url(f"kafka://one/social?config={path}").client["ssl_cafile"] == str(tmp_path / "authority.pem")


# Secrets


def test_secrets_are_not_shown(config: Config, caplog: pytest.LogCaptureFixture):
    """Neither the settings nor what is logged of them have the password."""
    settings = parse_kafka_url(f"kafka://one:9092/social?config={config(LOGIN)}")
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("app").debug("%s %r", settings, [settings])

    assert str(settings) == "kafka://one:9092/social"
    assert SECRET not in f"{settings} {settings!r} {settings=} {[settings]} {caplog.text}"
    assert isinstance(settings, KafkaSettings)


def test_kafka_python_knows_the_names_of_kerberos_options(config: Config):
    """Kerberos' options come from the file, and go to each of the clients."""
    path = config(
        "security_protocol=SASL_PLAINTEXT\nsasl_mechanism=GSSAPI\nsasl_kerberos_service_name=kafka\n"
        "sasl_kerberos_domain_name=broker.example\nsasl_kerberos_name=kafka@broker.example\n"
    )
    client = parse_kafka_url(f"kafka://one/social?config={path}").client
    given = {name: value for name, value in client.items() if name.startswith(("sasl", "security"))}

    assert given == {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "GSSAPI",
        "sasl_kerberos_service_name": "kafka",
        "sasl_kerberos_domain_name": "broker.example",
        "sasl_kerberos_name": "kafka@broker.example",
    }
    for kind in (KafkaAdminClient, KafkaConsumer, KafkaProducer):
        assert given.keys() <= kind.DEFAULT_CONFIG.keys()


# Other processes


def test_the_path_of_the_file_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A process that was started elsewhere finds the same files, whatever the folder is called."""
    folder = tmp_path / "a+b 100% #1&2"
    folder.mkdir()
    (folder / "client.properties").write_text("client_id=me\n")
    (folder / "authority.pem").touch()
    monkeypatch.chdir(folder)
    url = absolute_url("kafka://one:9092/social?replication=3&config=client.properties&ssl.cafile=authority.pem")
    monkeypatch.chdir("/")
    settings = parse_kafka_url(url)

    assert settings.replication == 3
    assert settings.client["client_id"] == "me"
    assert settings.client["ssl_cafile"] == str(folder / "authority.pem")


def test_an_absolute_url_stays_as_it_is(config: Config):
    """A path that is absolute already is kept, and so is a URL without one."""
    url = f"kafka://one:9092,two:9092/social?replication=3&config={config('')}&client.id=me"

    assert absolute_url(url) == url
    assert absolute_url("kafka://one:9092/social") == "kafka://one:9092/social"


def test_a_path_from_home_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """~ is the home of who opens the log."""
    (tmp_path / "client.properties").write_text("client_id=me\n")
    monkeypatch.setenv("HOME", str(tmp_path))

    assert parse_kafka_url("kafka://one/social?config=~/client.properties").client["client_id"] == "me"
    assert absolute_url("kafka://one/social?config=~/client.properties") == (
        f"kafka://one/social?config={tmp_path}/client.properties"
    )


def test_what_lies_beside_a_log_on_kafka_is_named_for_its_topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Snapshots of a log that is no file are kept in data/, below the current folder."""
    monkeypatch.chdir(tmp_path)

    assert folder_beside("kafka://one:9092/social?replication=3") == tmp_path / "data" / "social"


def test_a_bad_url_is_refused_where_logs_are_opened():
    """`open_log` says the same, before anything is tried."""
    with pytest.raises(Misuse, match=r"^'kafka://one' is not a Kafka log: write kafka://HOST:PORT/TOPIC"):
        open_log("kafka://one", "social")
