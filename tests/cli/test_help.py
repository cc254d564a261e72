"""Help: there for every command, and there at once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main
from engram.cli.main import app

from tests.cli.saying import Engram


def leaves(group: Any) -> Iterator[tuple[str, Any]]:
    """All commands by their whole names, those of groups included."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from ((f"{name} {below}", leaf) for below, leaf in leaves(command))
        else:
            yield name, command


COMMANDS = dict(sorted(leaves(typer.main.get_command(app))))
HEAVY = [
    "pyspark",
    "py4j",
    "fastapi",
    "starlette",
    "uvicorn",
    "aiohttp",
    "zmq",
    "pyarrow",
    "pandas",
    "sqlite3",
    "kafka",
]


def test_the_commands_are_those_of_the_reference():
    """A new command needs a line here, and a page in the documentation."""
    assert list(COMMANDS) == [
        "archive",
        "ask",
        "backfill",
        "dev kafka",
        "doctor",
        "export",
        "log copy",
        "log show",
        "log tail",
        "look",
        "quarantine drop",
        "quarantine list",
        "quarantine retry",
        "quarantine show",
        "rebuild",
        "repartition",
        "replay",
        "run",
        "savepoint",
        "schema check",
        "schema draft",
        "schema record",
        "send",
        "shadow",
        "snapshot list",
        "snapshot remove",
        "snapshot restore-from",
        "snapshot show",
        "snapshot take",
        "snapshot verify",
        "sql",
        "tail",
        "trace",
    ]


def test_help_lists_every_command_with_what_it_does(engram: Engram):
    """`engram --help` has a line for each command."""
    result = engram("--help")

    assert result.exit_code == 0
    for command in COMMANDS:
        assert command.split()[0] in result.stdout
    assert "Run an app on Spark until Ctrl-C." in result.stdout


def test_engram_alone_shows_the_help(engram: Engram):
    """Without arguments the program says what it can do."""
    assert "Send a command to a running app." in engram().output


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_for_all_its_options(engram: Engram, command: str):
    """Each option and argument of each command is explained."""
    result = engram(*command.split(), "--help")

    assert result.exit_code == 0
    parameters = COMMANDS[command].params
    assert parameters
    for parameter in parameters:
        if parameter.name != "help":
            assert parameter.help, f"{parameter.name} is not explained"
            assert parameter.help.split()[0] in result.stdout


@pytest.mark.parametrize("command", sorted(COMMANDS.keys() - {"run", "schema draft", "schema record"}))
def test_whatever_prints_a_table_prints_json_too(command: str):
    """Every command that shows something has `--json`; those that write a file show nothing."""
    assert "--json" in [option for parameter in COMMANDS[command].params for option in parameter.opts]


def test_help_imports_nothing_heavy():
    """Help needs neither Spark nor the web framework: it does not wait for them."""
    program = (
        "import sys\n"
        "from engram.cli.main import app\n"
        "app(['--help'], standalone_mode=False)\n"
        f"print('heavy:', [name for name in {HEAVY} if name in sys.modules])\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)

    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "heavy: []"


def test_an_unknown_command_is_refused(engram: Engram):
    """A command that is none gets exit code 2 and its name back."""
    result = engram("fly")

    assert result.exit_code == 2
    assert "fly" in result.stderr
