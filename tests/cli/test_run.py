"""`engram run` refuses what cannot work before Spark is started, in one readable sentence with the way out.

The Java of these tests is a script that only says its version: a run that got as far as Spark would say so.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from engram.codec.record import Envelope, Epoch, Kind, encode_commands, encode_epoch
from engram.log.base import Entry
from engram.log.sqlite import SqliteLog

from tests.cli.saying import Engram, Java, sentence

Refused = Callable[..., str]
SOCIAL = "sample_apps.social:app"


@pytest.fixture(autouse=True)
def _java_17(java: Java) -> None:
    java("17.0.1")


@pytest.fixture
def refused(engram: Engram) -> Refused:
    """What `engram run` says when it refuses; on a free port unless one is named."""
    return lambda *arguments: sentence(engram("run", "--port", 0, *arguments), 2)


@pytest.fixture
def log(tmp_path: Path) -> str:
    """A log of the social network with four partitions."""
    SqliteLog(tmp_path / "social.db", "social", partitions=4, create=True).close()
    return f"sqlite:{tmp_path / 'social.db'}"


@pytest.fixture
def new(tmp_path: Path) -> str:
    """Where a log could be made."""
    return f"sqlite:{tmp_path / 'new' / 'social.db'}"


# The app


def test_an_unknown_module_is_refused(refused: Refused, new: str):
    """The sentence names the module, and where it was looked for."""
    said = refused("no_such_module:app", "--log", new)

    assert said.startswith("There is no module 'no_such_module' (looked in ")
    assert "PYTHONPATH" in said


def test_an_unknown_app_is_refused_with_those_that_are_there(refused: Refused, new: str):
    """A module without such an app says which it has."""
    said = refused("sample_apps.social:application", "--log", new)

    assert said == "sample_apps.social has no App named 'application'. It has: app."


def test_a_name_that_is_no_app_is_refused(refused: Refused, new: str):
    """Something that is there but no App is not taken for one."""
    said = refused("json:dumps", "--log", new)

    assert said == "json has no App named 'dumps'. It holds no App at all."


@pytest.mark.parametrize("reference", ["sample_apps.social", "sample_apps.social:", ":app", "", ".social:app"])
def test_a_reference_of_the_wrong_form_is_refused(refused: Refused, new: str, reference: str):
    """The sentence shows how an app is named."""
    said = refused(reference, "--log", new)

    assert said == f"{reference!r} names no app: write MODULE:NAME, such as sample_apps.social:app"


# The log


@pytest.mark.parametrize("url", ["social.db", "sqlite:", "sqlite", ""])
def test_a_bad_log_url_is_refused(refused: Refused, url: str):
    """The sentence shows how a log is named."""
    said = refused(SOCIAL, "--log", url)

    assert said == f"{url!r} is not a log: write sqlite:PATH, such as sqlite:data/social.db, or kafka://HOST:PORT/TOPIC"


@pytest.mark.parametrize("more", [(), ("--partitions", 4)])
def test_the_log_of_another_app_is_refused(refused: Refused, log: str, more: tuple[object, ...]):
    """Both names are told."""
    said = refused("tests.serving.counter:app", "--log", log, *more)

    assert said.endswith("belongs to app 'social', not to 'counters': choose another log.")


def test_another_number_of_partitions_is_refused(refused: Refused, log: str):
    """Both numbers are told, and that the number is for ever."""
    said = refused(SOCIAL, "--log", log, "--partitions", 6)

    assert "has 4 partitions, not 6" in said
    assert "use --partitions 4, or a new log" in said


@pytest.mark.parametrize("more", [(), ("--partitions", 4)])
def test_a_path_below_a_file_is_refused(refused: Refused, tmp_path: Path, more: tuple[object, ...]):
    """A log cannot be kept where its folder is a file; the sentence names the path."""
    (tmp_path / "file").touch()
    said = refused(SOCIAL, "--log", f"sqlite:{tmp_path / 'file' / 'social.db'}", *more)

    assert str(tmp_path / "file") in said
    assert "is not a folder" in said


def test_a_file_that_is_no_log_is_refused(refused: Refused, tmp_path: Path):
    """A file of something else is not written into."""
    notes = tmp_path / "notes.txt"
    notes.write_text("remember the milk, " * 100)
    said = refused(SOCIAL, "--log", f"sqlite:{notes}")

    assert f"{notes} is not an Engram log" in said
    assert notes.read_text() == "remember the milk, " * 100


def test_records_of_another_version_are_refused(refused: Refused, log: str):
    """A log whose last records were handled by another version of the app is not replayed by this one."""
    made = SqliteLog(Path(log.removeprefix("sqlite:")), "social")
    envelope = Envelope("register", 1, "ada", b'{"name":"Ada"}', "s", 0)
    made.append(
        [
            Entry(0, Kind.EPOCH, 1, encode_epoch(Epoch(owner="x", app_version=7))),
            Entry(0, Kind.COMMANDS, 2, encode_commands([envelope], "w")),
        ]
    )
    made.close()
    said = refused(SOCIAL, "--log", log)

    assert "This is version 1 of social, but 1 record of partition 0 after the last snapshot" in said
    assert "was handled by version 7" in said
    assert f"(`engram run {SOCIAL} --log {log}`)" in said


def test_a_snapshot_folder_that_is_a_file_is_refused(refused: Refused, log: str, tmp_path: Path):
    """Snapshots need a folder."""
    (tmp_path / "file").touch()
    said = refused(SOCIAL, "--log", log, "--snapshots", tmp_path / "file")

    assert f"Snapshots cannot be kept in {tmp_path / 'file'}" in said


# Shards, ports and settings


def test_more_shards_than_partitions_are_refused(refused: Refused, log: str, new: str):
    """Both numbers are told, for a log that is there and for one that would be made."""
    said = refused(SOCIAL, "--log", log, "--shards", 5)
    of_new = refused(SOCIAL, "--log", new, "--shards", 3, "--partitions", 2)
    of_default = refused(SOCIAL, "--log", new, "--shards", 9)

    assert said == "5 shards cannot share 4 partitions: use fewer --shards."
    assert of_new.startswith("3 shards cannot share 2 partitions")
    assert of_default.startswith("9 shards cannot share 8 partitions")


def test_a_taken_port_is_refused(refused: Refused, log: str, taken_port: int):
    """The sentence names the port and how to choose another."""
    said = refused(SOCIAL, "--log", log, "--port", taken_port)

    assert said.startswith(f"Port {taken_port} on 127.0.0.1 cannot be used (")
    assert said.endswith("choose another with --port.")


def test_a_setting_of_the_wrong_form_is_refused(refused: Refused, log: str):
    """Settings for Spark are NAME=VALUE."""
    said = refused(SOCIAL, "--log", log, "--spark-conf", "spark.ui.enabled")

    assert said == "--spark-conf 'spark.ui.enabled' is not NAME=VALUE."


@pytest.mark.parametrize("more", [("--shards", 9), ("--shards", 3, "--partitions", 2), ("--spark-conf", "x")])
def test_a_refused_run_makes_no_log(refused: Refused, new: str, tmp_path: Path, more: tuple[object, ...]):
    """The number of partitions is for ever: a run that never was must not decide it."""
    refused(SOCIAL, "--log", new, *more)

    assert not (tmp_path / "new").exists()


def test_a_run_refused_for_its_port_makes_no_log(refused: Refused, new: str, tmp_path: Path, taken_port: int):
    """Nor does one whose port is taken."""
    refused(SOCIAL, "--log", new, "--port", taken_port)

    assert not (tmp_path / "new").exists()


# Sinks


@pytest.mark.parametrize(
    ("sink", "said"),
    [
        ("events.db", "'events.db' is not a sink: write sqlite:PATH?table=NAME or https://HOST/PATH."),
        ("sqlite:events.db?table=a-b", "'a-b' is no name for a table of events"),
        ("https://user:pass@1.1.1.1/hook", "https://1.1.1.1/hook has a user or password in it"),
        ("https://1.1.1.1/hook#secret=NOT_SET", "https://1.1.1.1/hook needs a secret to sign with: set NOT_SET"),
    ],
)
def test_a_bad_sink_is_refused(refused: Refused, new: str, tmp_path: Path, sink: str, said: str):
    """Before anything is made: neither the log nor a table."""
    assert said in refused(SOCIAL, "--log", new, "--sink", "sqlite:fine.db", "--sink", sink)
    assert {path.name for path in tmp_path.iterdir()} == {"fake-java"}


def test_a_webhook_inside_is_refused(refused: Refused, new: str, monkeypatch: pytest.MonkeyPatch):
    """The sentence names the option that allows it."""
    monkeypatch.setenv("ENGRAM_WEBHOOK_SECRET", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    said = refused(SOCIAL, "--log", new, "--sink", "http://127.0.0.1:9/hook")

    assert said.startswith("127.0.0.1 is not an address outside")
    assert said.endswith("--sink-allow-private.")


def test_the_same_sink_twice_is_refused(refused: Refused, log: str):
    """Two that write to one place would each count for the other."""
    said = refused(SOCIAL, "--log", log, "--sink", "sqlite:events.db", "--sink", "sqlite:./events.db?table=events")

    assert said.startswith("--sink sqlite:")
    assert said.endswith("/events.db?table=events is there twice: leave one out.")


# Java


def test_missing_java_is_refused(refused: Refused, new: str, monkeypatch: pytest.MonkeyPatch):
    """Without Java the sentence says what to install."""
    monkeypatch.setenv("PATH", "/nowhere")
    said = refused(SOCIAL, "--log", new)

    assert said.startswith("Spark needs Java 17 or newer. There is no java on the PATH. Install a JDK of version 17")


def test_a_java_home_without_java_is_refused(
    refused: Refused, new: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """A JAVA_HOME that leads nowhere is named: it counts more than the PATH."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    said = refused(SOCIAL, "--log", new)

    assert f"JAVA_HOME is {tmp_path / 'jdk'}, but" in said


@pytest.mark.parametrize(("version", "major"), [("11.0.2", "11"), ("1.8.0_392", "8"), ("16", "16")])
def test_an_old_java_is_refused(refused: Refused, new: str, java: Java, version: str, major: str):
    """The sentence tells the version that was found and the one that is needed."""
    path = java(version)
    said = refused(SOCIAL, "--log", new)

    assert said.startswith(f"Spark needs Java 17 or newer, but {path} is version {major}.")


def test_a_java_that_does_not_say_its_version_is_refused(refused: Refused, new: str, java: Java):
    """Something named java that is none is not started as Spark's."""
    path = java("unknown")
    said = refused(SOCIAL, "--log", new)

    assert said.startswith(f"{path} does not say its version.")
