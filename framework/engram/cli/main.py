"""The `engram` command. Heavy imports are inside the commands, so that help is there at once."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from engram.cli.output import refuse_nicely

app = typer.Typer(
    name="engram",
    help="Run and inspect event-sourced applications on Spark.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

AppReference = Annotated[str, typer.Argument(metavar="MODULE:APP", help="The app, such as sample_apps.social:app")]
LogUrl = Annotated[
    str, typer.Option("--log", metavar="URL", help="The command log: sqlite:PATH or kafka://HOST:PORT/TOPIC")
]
Url = Annotated[str, typer.Option("--url", help="Where the app's gateway is.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
JsonLines = Annotated[
    bool, typer.Option("--json", help="Print a line of JSON for each record, with all that is in it.")
]
Partition = Annotated[int | None, typer.Option(min=0, help="Only this one; all by default.")]

_GATEWAY = "http://127.0.0.1:8080"

dev = typer.Typer(help="What an app needs around it while it is written.", no_args_is_help=True)
app.add_typer(dev, name="dev")
log = typer.Typer(help="The records of a log: see them, follow them, copy them.", no_args_is_help=True)
app.add_typer(log, name="log")


@app.callback()
def prepare() -> None:
    """Run and inspect event-sourced applications on Spark."""
    # As `python -m` does: an app is found in the folder the command is started in.
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))


@app.command()
@refuse_nicely
def run(
    reference: AppReference,
    log: LogUrl,
    *,
    shards: Annotated[int, typer.Option(min=1, help="How many Spark tasks share the partitions.")] = 2,
    partitions: Annotated[
        int | None,
        typer.Option(min=1, help="For a new log (default 8); an existing one is checked against it."),
    ] = None,
    master: Annotated[str, typer.Option(help="Spark's master URL; a local one by default.")] = "",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The gateway's port on loopback; 0 takes a free one.")
    ] = 8080,
    snapshots: Annotated[Path | None, typer.Option(help="Folder for snapshots; beside the log by default.")] = None,
    snapshot_every: Annotated[int, typer.Option(min=1, help="Commands between two snapshots of a partition.")] = 20_000,
    spark_conf: Annotated[
        list[str] | None, typer.Option("--spark-conf", metavar="NAME=VALUE", help="A setting for Spark.")
    ] = None,
    spark_output: Annotated[bool, typer.Option("--spark-output", help="Let Spark's own output through.")] = False,
    json: Json = False,
) -> None:
    """Run an app on Spark until Ctrl-C."""
    from engram.cli.run import RunOptions, run_app

    run_app(
        RunOptions(
            reference=reference,
            log=log,
            shards=shards,
            partitions=partitions,
            master=master,
            port=port,
            snapshots=snapshots,
            snapshot_every=snapshot_every,
            spark_settings=tuple(spark_conf or ()),
            spark_output=spark_output,
            json=json,
        )
    )


@app.command()
@refuse_nicely
def send(
    command: Annotated[str, typer.Argument(help="The command's name.")],
    key: Annotated[str, typer.Argument(help="The entity's key.")],
    body: Annotated[str, typer.Argument(metavar="JSON", help="The command's fields.")] = "{}",
    *,
    url: Url = _GATEWAY,
    idempotency_key: Annotated[str | None, typer.Option(help="The same key again gives the first reply again.")] = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Return as soon as the command is logged.")] = False,
    json: Json = False,
) -> None:
    """Send a command to a running app."""
    from engram.cli.talk import send_command

    send_command(url, command, key, body, idempotency_key=idempotency_key, wait=not no_wait, json=json)


@app.command()
@refuse_nicely
def ask(
    query: Annotated[str, typer.Argument(help="The query's name.")],
    key: Annotated[str, typer.Argument(help="The entity's key.")],
    body: Annotated[str, typer.Argument(metavar="JSON", help="The query's fields.")] = "{}",
    *,
    url: Url = _GATEWAY,
    at_least: Annotated[str, typer.Option(help="A position that the answer must include, such as 3:1042.0")] = "",
    json: Json = False,
) -> None:
    """Ask a running app a query."""
    from engram.cli.talk import ask_query

    ask_query(url, query, key, body, at_least=at_least, json=json)


@app.command()
@refuse_nicely
def replay(reference: AppReference, log: LogUrl, *, json: Json = False) -> None:
    """Replay a log from zero, in this process, and print the digest of every partition."""
    from engram.cli.replay import replay_log

    replay_log(reference, log, json=json)


@app.command()
@refuse_nicely
def doctor(
    *,
    folder: Annotated[Path, typer.Option(help="Where logs and snapshots are to be kept.")] = Path(),
    port: Annotated[int, typer.Option(min=1, max=65535, help="The gateway's port.")] = 8080,
    json: Json = False,
) -> None:
    """Check Java, Spark, versions, the port and the folder."""
    from engram.cli.doctor import examine

    examine(folder, port, json=json)


@dev.command("kafka")
@refuse_nicely
def dev_kafka(
    *,
    brokers: Annotated[int, typer.Option(min=1, max=9, help="How many; with three, one may be lost.")] = 1,
    json: Json = False,
) -> None:
    """Run Kafka on loopback until Ctrl-C, with data that is thrown away."""
    from engram.cli.dev import run_kafka

    run_kafka(brokers, json=json)


@log.command("show")
@refuse_nicely
def log_show(
    reference: AppReference,
    log: LogUrl,
    *,
    partition: Partition = None,
    start: Annotated[
        int, typer.Option("--from", metavar="OFFSET", help="The first record's offset; -20 is 20 before the end.")
    ] = 0,
    limit: Annotated[int, typer.Option(min=1, help="How many records.")] = 20,
    json: JsonLines = False,
) -> None:
    """Show records of a log: their positions, times and writers, and the commands in them."""
    from engram.cli.log import show_log

    show_log(reference, log, partition=partition, start=start, limit=limit, json=json)


@log.command("tail")
@refuse_nicely
def log_tail(
    reference: AppReference,
    log: LogUrl,
    *,
    partition: Partition = None,
    from_start: Annotated[bool, typer.Option("--from-start", help="First, what is there already.")] = False,
    json: JsonLines = False,
) -> None:
    """Show records of a log as they are appended, until Ctrl-C."""
    from engram.cli.log import tail_log

    tail_log(reference, log, partition=partition, from_start=from_start, json=json)


@log.command("copy")
@refuse_nicely
def log_copy(
    reference: AppReference,
    source: Annotated[str, typer.Argument(metavar="FROM_URL", help="The log to copy: sqlite:PATH or kafka://...")],
    target: Annotated[str, typer.Argument(metavar="TO_URL", help="Where to; a log there must be empty.")],
    *,
    json: Json = False,
) -> None:
    """Copy a whole log, from SQLite to Kafka or back, and compare the two by replaying both."""
    from engram.cli.copy import copy_and_compare

    copy_and_compare(reference, source, target, json=json)


if __name__ == "__main__":
    app()
