"""The `engram` command. Heavy imports are inside the commands, so that help is there at once."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from engram.cli.commands import (
    archive,
    backfill,
    dev,
    log,
    quarantine,
    rebuild,
    repartition,
    schema,
    shadow,
    snapshot,
    sql,
)
from engram.cli.options import (
    GATEWAY,
    AppReference,
    Json,
    LogUrl,
    Partition,
    Snapshots,
    SparkConf,
    SparkOutput,
    Token,
    Url,
)
from engram.cli.output import refuse_nicely

app = typer.Typer(
    name="engram",
    help="Run and inspect event-sourced applications on Spark.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

app.command("backfill")(backfill.backfill)
app.command("shadow")(shadow.shadow)
app.add_typer(dev.group, name="dev")
app.add_typer(log.group, name="log")
app.add_typer(quarantine.group, name="quarantine")
app.add_typer(snapshot.group, name="snapshot")
app.add_typer(schema.group, name="schema")
app.command("rebuild")(rebuild.rebuild)
app.command("sql")(sql.sql)
app.command("export")(sql.export)
app.command("archive")(archive.archive)
app.command("repartition")(repartition.repartition)


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
    registry_port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port that RPC clients find the shards by; 0 takes a free one.")
    ] = 0,
    line_keys: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Keys for the lines to the shards, kept there for RPC clients; made if new."),
    ] = None,
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
        float,
        typer.Option(
            min=0.001, max=1, help="How much of its time a shard may spend on snapshots that nobody asked for."
        ),
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
    guard: Annotated[
        bool, typer.Option("--guard", help="Refuse handlers that are seen not to be deterministic, and report others.")
    ] = False,
    from_savepoint: Annotated[
        str, typer.Option("--from", metavar="SAVEPOINT", help="Begin there: newer snapshots are set aside first.")
    ] = "",
    spark_conf: SparkConf = None,
    spark_output: SparkOutput = False,
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
            registry_port=registry_port,
            line_keys=line_keys,
            snapshots=snapshots,
            keep_snapshots=keep_snapshots,
            snapshot_every=snapshot_every,
            snapshot_pause=snapshot_pause,
            snapshot_budget=snapshot_budget,
            snapshot_share=snapshot_share,
            hot_entities=hot_entities,
            spill=spill,
            stuck_after=stuck_after,
            guard=guard,
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
    url: Url = GATEWAY,
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
    url: Url = GATEWAY,
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
    url: Url = GATEWAY,
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
    url: Url = GATEWAY,
    json: Json = False,
) -> None:
    """Stop a running app with a savepoint of every partition, so that another version of it can start."""
    from engram.cli.savepoint import end_with_savepoint

    end_with_savepoint(url, name=name, json=json)


@app.command()
@refuse_nicely
def replay(
    reference: AppReference,
    log: LogUrl,
    *,
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare with every snapshot on the way; name the first that differs.")
    ] = False,
    from_savepoint: Annotated[
        str, typer.Option("--from", metavar="SAVEPOINT", help="Begin there, and not with the first record.")
    ] = "",
    snapshots: Snapshots = None,
    json: Json = False,
) -> None:
    """Replay a log from zero, in this process, and print the digest of every partition."""
    from engram.errors import Misuse

    if verify and from_savepoint:
        raise Misuse("--verify begins with the first record: leave --from out.")
    if snapshots is not None and not (verify or from_savepoint):
        raise Misuse("--snapshots is for a replay that uses them: add --verify, or --from SAVEPOINT.")
    if verify:
        from engram.cli.verify import verify_log

        verify_log(reference, log, snapshots, json=json)
    else:
        from engram.cli.replay import replay_log

        replay_log(reference, log, savepoint=from_savepoint, snapshots=snapshots, json=json)


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


if __name__ == "__main__":
    app()
