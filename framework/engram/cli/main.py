"""The `engram` command. Heavy imports are inside the commands, so that help is there at once."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

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
Token = Annotated[
    str, typer.Option("--token", help="Who you are, where the app wants to know; by default what ENGRAM_TOKEN holds.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
JsonLines = Annotated[
    bool, typer.Option("--json", help="Print a line of JSON for each record, with all that is in it.")
]
Partition = Annotated[int | None, typer.Option(min=0, help="Only this one; all by default.")]

Positions = Annotated[list[str], typer.Argument(metavar="POSITION...", help="Where they are, such as 3:1042.0")]
SomePositions = Annotated[
    list[str] | None, typer.Argument(metavar="[POSITION...]", help="Where they are, such as 3:1042.0")
]
Every = Annotated[bool, typer.Option("--all", help="All of them, in the order of the log.")]
Baseline = Annotated[
    Path | None, typer.Option(metavar="FILE", help="The baseline; schema.json beside the app's module by default.")
]

LogOfSnapshots = Annotated[str | None, typer.Option("--log", metavar="URL", help="The log that they are beside.")]
Snapshots = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Where the snapshots are, if not beside the log: a folder, or s3://BUCKET/PREFIX"),
]

_GATEWAY = "http://127.0.0.1:8080"

dev = typer.Typer(help="What an app needs around it while it is written.", no_args_is_help=True)
app.add_typer(dev, name="dev")
log = typer.Typer(help="The records of a log: see them, follow them, copy them.", no_args_is_help=True)
app.add_typer(log, name="log")
quarantine = typer.Typer(
    help="Commands of a running app that failed: see them, retry them, drop them.", no_args_is_help=True
)
app.add_typer(quarantine, name="quarantine")
snapshot = typer.Typer(help="Snapshots: what there is, and whether it can be used.", no_args_is_help=True)
app.add_typer(snapshot, name="snapshot")
schema = typer.Typer(help="The shapes of an app's types, against those that were committed.", no_args_is_help=True)
app.add_typer(schema, name="schema")


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
    host: Annotated[
        str, typer.Option(help="The address that the gateway listens on; others than loopback only with --auth.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The gateway's port; 0 takes a free one.")] = 8080,
    auth: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Whose tokens are good, and how much each may ask for (TOML).")
    ] = None,
    registry_host: Annotated[
        str, typer.Option(help="This machine's address, for shards on others; their lines are then encrypted.")
    ] = "127.0.0.1",
    snapshots: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Where snapshots are kept: a folder, or s3://BUCKET/PREFIX; beside the log by default."
        ),
    ] = None,
    keep_snapshots: Annotated[
        int, typer.Option(min=1, help="How many are kept of each partition, savepoints aside.")
    ] = 3,
    snapshot_every: Annotated[int, typer.Option(min=1, help="Commands between two snapshots of a partition.")] = 20_000,
    snapshot_pause: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="And so long between them, however many commands there are.")
    ] = 5.0,
    snapshot_budget: Annotated[
        float, typer.Option(min=0.1, metavar="MS", help="How long commands wait for a snapshot at a time.")
    ] = 5.0,
    snapshot_share: Annotated[
        float, typer.Option(min=0.001, max=1, help="How much of its time a shard may spend on snapshots.")
    ] = 0.1,
    hot_entities: Annotated[
        int,
        typer.Option(min=0, help="How many entities of a partition stay decoded; others go to disk. 0: all."),
    ] = 0,
    spill: Annotated[
        Path | None, typer.Option(help="Where they go: a folder on the machines that run the shards.")
    ] = None,
    stuck_after: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, help="When a handler that does not return is reported.")
    ] = 10.0,
    from_savepoint: Annotated[
        str, typer.Option("--from", metavar="SAVEPOINT", help="Begin there: newer snapshots are set aside first.")
    ] = "",
    spark_conf: Annotated[
        list[str] | None, typer.Option("--spark-conf", metavar="NAME=VALUE", help="A setting for Spark.")
    ] = None,
    spark_output: Annotated[bool, typer.Option("--spark-output", help="Let Spark's own output through.")] = False,
    sink: Annotated[
        list[str] | None,
        typer.Option(
            "--sink",
            metavar="URL",
            help="Where events go, may be repeated: sqlite:PATH?table=NAME or https://HOST/PATH",
        ),
    ] = None,
    sink_allow_private: Annotated[
        bool, typer.Option("--sink-allow-private", help="Let webhooks go to loopback and private addresses.")
    ] = False,
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
            host=host,
            port=port,
            auth=auth,
            registry_host=registry_host,
            snapshots=snapshots,
            keep_snapshots=keep_snapshots,
            snapshot_every=snapshot_every,
            snapshot_pause=snapshot_pause,
            snapshot_budget=snapshot_budget,
            snapshot_share=snapshot_share,
            hot_entities=hot_entities,
            spill=spill,
            stuck_after=stuck_after,
            savepoint=from_savepoint,
            spark_settings=tuple(spark_conf or ()),
            spark_output=spark_output,
            sinks=tuple(sink or ()),
            sink_allow_private=sink_allow_private,
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
    no_wait: Annotated[bool, typer.Option("--no-wait", help="The same as --wait log.")] = False,
    wait: Annotated[
        Literal["log", "reply", "effects"],
        typer.Option(help="Until the command is logged, is handled, or all that it led to is handled."),
    ] = "reply",
    token: Token = "",
    json: Json = False,
) -> None:
    """Send a command to a running app."""
    from engram.cli.talk import send_command

    until = "log" if no_wait else wait
    send_command(url, command, key, body, idempotency_key=idempotency_key, wait=until, token=token, json=json)


@app.command()
@refuse_nicely
def ask(
    query: Annotated[str, typer.Argument(help="The query's name.")],
    key: Annotated[str, typer.Argument(help="The entity's key.")],
    body: Annotated[str, typer.Argument(metavar="JSON", help="The query's fields.")] = "{}",
    *,
    url: Url = _GATEWAY,
    at_least: Annotated[
        str, typer.Option(help="A token, or a position such as 3:1042.0, that the answer must include.")
    ] = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Ask a running app a query."""
    from engram.cli.talk import ask_query

    ask_query(url, query, key, body, at_least=at_least, token=token, json=json)


@app.command()
@refuse_nicely
def look(
    model: Annotated[str, typer.Argument(metavar="NAME", help="The read model's name.")],
    place: Annotated[str, typer.Argument(help="Its key, board or group, or the words to search for.")],
    *,
    limit: Annotated[int | None, typer.Option(min=1, max=10_000, help="How many rows; 100 by default.")] = None,
    cursor: Annotated[str, typer.Option(help="Go on after the rows that came with it.")] = "",
    url: Url = _GATEWAY,
    at_least: Annotated[str, typer.Option(help="Positions that the rows must include, with commas.")] = "",
    json: Json = False,
) -> None:
    """Look into a read model of a running app."""
    from engram.cli.talk import look_into

    look_into(url, model, place, limit=limit, cursor=cursor, at_least=at_least, json=json)


@app.command()
@refuse_nicely
def savepoint(
    name: Annotated[str | None, typer.Argument(help="What to call it; its version and the time by default.")] = None,
    *,
    url: Url = _GATEWAY,
    json: Json = False,
) -> None:
    """Stop a running app with a savepoint of every partition, so that another version of it can start."""
    from engram.cli.savepoint import end_with_savepoint

    end_with_savepoint(url, name=name, json=json)


@app.command()
@refuse_nicely
def replay(reference: AppReference, log: LogUrl, *, json: Json = False) -> None:
    """Replay a log from zero, in this process, and print the digest of every partition."""
    from engram.cli.replay import replay_log

    replay_log(reference, log, json=json)


@app.command()
@refuse_nicely
def tail(
    reference: AppReference,
    log: LogUrl,
    *,
    events: Annotated[bool, typer.Option("--events", help="The events that leave, instead of the records.")] = False,
    after: Annotated[str, typer.Option(metavar="CURSOR", help="With --events: from where an earlier one ended.")] = "",
    partition: Partition = None,
    from_start: Annotated[bool, typer.Option("--from-start", help="First, what is there already.")] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print a line of JSON for each, with all that is in it.")
    ] = False,
) -> None:
    """Show records or events of a log as they come, until Ctrl-C."""
    from engram.errors import Misuse

    if events:
        from engram.cli.tail import tail_events

        if partition is not None:
            raise Misuse("--partition is not for events, which are one stream: leave it out.")
        tail_events(reference, log, after=after, from_start=from_start, json=json)
    else:
        from engram.cli.log import tail_log

        if after:
            raise Misuse("--after is for events: add --events.")
        tail_log(reference, log, partition=partition, from_start=from_start, json=json)


@app.command()
@refuse_nicely
def trace(
    reference: AppReference,
    command_id: Annotated[
        str, typer.Argument(metavar="ID", help="A position such as 3:1042.7, SESSION/SEQUENCE, or an idempotency key.")
    ],
    log: LogUrl,
    *,
    limit: Annotated[int, typer.Option(min=1, help="How many lines.")] = 200,
    json: Json = False,
) -> None:
    """Show what a command led to: messages, timers and events, as a tree, from the log alone."""
    from engram.cli.trace import show_trace

    show_trace(reference, log, command_id, limit=limit, json=json)


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


@quarantine.command("list")
@refuse_nicely
def quarantine_list(
    *,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many, the newest first.")] = 100,
    url: Url = _GATEWAY,
    json: Json = False,
) -> None:
    """Show what failed: which command, for whom, when, how often, and why."""
    from engram.cli.quarantine import Quarantine, list_failed

    list_failed(Quarantine(url, hint=_hint(url)), limit=limit, json=json)


@quarantine.command("show")
@refuse_nicely
def quarantine_show(positions: Positions, *, url: Url = _GATEWAY, json: Json = False) -> None:
    """Show failed commands with their fields and tracebacks."""
    from engram.cli.quarantine import Quarantine, show_failed

    show_failed(Quarantine(url, hint=_hint(url)), positions, json=json)


@quarantine.command("retry")
@refuse_nicely
def quarantine_retry(
    positions: SomePositions = None, *, every: Every = False, url: Url = _GATEWAY, json: Json = False
) -> None:
    """Send failed commands again, as new commands, and say what became of each."""
    from engram.cli.quarantine import Quarantine, retry_failed

    retry_failed(Quarantine(url, hint=_hint(url)), positions or [], every=every, json=json)


@quarantine.command("drop")
@refuse_nicely
def quarantine_drop(
    positions: SomePositions = None, *, every: Every = False, url: Url = _GATEWAY, json: Json = False
) -> None:
    """Give failed commands up: they leave the list, and stay in the log."""
    from engram.cli.quarantine import Quarantine, drop_failed

    drop_failed(Quarantine(url, hint=_hint(url)), positions or [], every=every, json=json)


@snapshot.command("list")
@refuse_nicely
def snapshot_list(
    reference: AppReference, *, log: LogOfSnapshots = None, snapshots: Snapshots = None, json: Json = False
) -> None:
    """List snapshots: of which record, how old, how many entities, what had changed, and what it cost."""
    from engram.cli.snapshot import list_snapshots

    list_snapshots(reference, log, snapshots, json=json)


@snapshot.command("take")
@refuse_nicely
def snapshot_take(
    *,
    name: Annotated[
        str, typer.Option(help="Makes savepoints of them: whole, and kept until somebody removes them.")
    ] = "",
    url: Url = _GATEWAY,
    json: Json = False,
) -> None:
    """Have a running app take a snapshot of every partition, while it goes on."""
    from engram.cli.savepoint import take_snapshots

    take_snapshots(url, name=name, json=json)


@snapshot.command("show")
@refuse_nicely
def snapshot_show(
    reference: AppReference,
    which: Annotated[
        str, typer.Argument(metavar="SNAPSHOT", help="A savepoint's name, or PARTITION:OFFSET, such as 3:1042")
    ],
    *,
    log: LogOfSnapshots = None,
    snapshots: Snapshots = None,
    json: Json = False,
) -> None:
    """Show all that is known of a snapshot, or of a savepoint in every partition: parts, types, versions, timers."""
    from engram.cli.snapshot import show_snapshot

    show_snapshot(reference, which, log, snapshots, json=json)


@snapshot.command("restore-from")
@refuse_nicely
def snapshot_restore_from(
    reference: AppReference,
    name: Annotated[str, typer.Argument(metavar="SAVEPOINT", help="Its name.")],
    log: LogUrl,
    *,
    snapshots: Snapshots = None,
    json: Json = False,
) -> None:
    """Have the next start of an app begin from a savepoint: newer snapshots are set aside. It must not be running."""
    from engram.cli.restore import restore_from

    restore_from(reference, log, snapshots, name, json=json)


@snapshot.command("remove")
@refuse_nicely
def snapshot_remove(
    reference: AppReference,
    name: Annotated[str, typer.Argument(metavar="SAVEPOINT", help="Its name.")],
    *,
    log: LogOfSnapshots = None,
    snapshots: Snapshots = None,
    json: Json = False,
) -> None:
    """Remove a savepoint, which is kept otherwise. Not while it is the newest snapshot."""
    from engram.cli.snapshot import remove_savepoint

    remove_savepoint(reference, name, log, snapshots, json=json)


@snapshot.command("verify")
@refuse_nicely
def snapshot_verify(
    reference: AppReference, *, log: LogOfSnapshots = None, snapshots: Snapshots = None, json: Json = False
) -> None:
    """Read every snapshot back as a start would: parts, checksums, every entity. Nothing is changed."""
    from engram.cli.snapshot import verify_snapshots

    verify_snapshots(reference, log, snapshots, json=json)


@schema.command("record")
@refuse_nicely
def schema_record(
    reference: AppReference,
    *,
    baseline: Baseline = None,
    accept: Annotated[
        bool, typer.Option("--accept", help="Also what `engram schema check` refuses: nothing that counts has it.")
    ] = False,
) -> None:
    """Write the baseline: the version and shape of every type of an app. Commit it."""
    from engram.cli.schema import record_schema

    record_schema(reference, baseline, accept=accept)


@schema.command("check")
@refuse_nicely
def schema_check(
    reference: AppReference,
    *,
    baseline: Baseline = None,
    log: Annotated[
        str | None, typer.Option("--log", metavar="URL", help="Say how many of its records would be affected.")
    ] = None,
    snapshots: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="A folder or URL of snapshots: say how many of their entities would be affected."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Compare an app with its baseline; exit code 2 when a shape changed without a new version."""
    from engram.cli.schema import check_schema

    check_schema(reference, baseline, log=log, snapshots=snapshots, json=json)


@schema.command("draft")
@refuse_nicely
def schema_draft(
    reference: AppReference,
    name: Annotated[str, typer.Argument(metavar="TYPE", help="Such as user, entity:user or User.")],
    *,
    baseline: Baseline = None,
    output: Annotated[Path | None, typer.Option(help="A new file for it, instead of printing it.")] = None,
) -> None:
    """Draft an upcaster from the baseline's version of a type to the code's, with its test."""
    from engram.cli.schema import draft_upcaster

    draft_upcaster(reference, name, baseline, output)


def _hint(url: str) -> str:
    """What a command line needs to reach the same app."""
    return "" if url == _GATEWAY else f"--url {url}"


if __name__ == "__main__":
    app()
