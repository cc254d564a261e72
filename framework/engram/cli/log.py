"""`engram log show` and `engram log tail`: the records of a log, as they lie there."""

from __future__ import annotations

import heapq
import json as json_module
import select
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import islice
from typing import Any

import pydantic_core

from engram.cli.output import SIGNAL_S, leave_on_signals, say, say_json
from engram.codec.codec import Codec, Commands, Messages
from engram.codec.record import Epoch, Kind, Origin, Record
from engram.errors import Corrupt, Misuse
from engram.log.base import Log
from engram.log.open import open_log
from engram.log.scan import scan
from engram.log.stream import time_text
from engram.shard.reference import resolve_app

_READ_RECORDS = 200
# Into a pipe, whoever reads it has no width.
_WIDE = (200, 24)

Tell = Callable[[Record], None]


def show_log(reference: str, url: str, *, partition: int | None, start: int, limit: int, json: bool) -> None:
    """Prints records, those of several partitions in the order of their times. `start` below 0 counts from the end."""
    app = resolve_app(reference)
    with closing(open_log(url, app.name)) as log:
        tell = _teller(Codec(app), json=json)
        ends = {p: log.end(p) for p in _chosen(log, partition)}
        begins = {p: start if start > 0 else max(log.start(p), end + start if start else 0) for p, end in ends.items()}
        found = islice(_in_time_order(scan(log, p, begins[p], min(ends[p], begins[p] + limit)) for p in ends), limit)
        shown = 0
        for shown, record in enumerate(found, 1):  # noqa: B007 - counted for what comes after
            tell(record)
        if not shown and not json:
            say("No records there: " + ", ".join(f"partition {p} ends at {end}" for p, end in ends.items()) + ".")


def tail_log(reference: str, url: str, *, partition: int | None, from_start: bool, json: bool) -> None:
    """Prints what is appended, until SIGINT or SIGTERM, and then ends with exit code 0."""
    leave_on_signals()
    app = resolve_app(reference)
    with closing(open_log(url, app.name)) as log:
        tell = _teller(Codec(app), json=json)
        chosen = _chosen(log, partition)
        with closing(log.watch(chosen)) as watch:
            following = {p: log.start(p) if from_start else log.end(p) for p in chosen}
            if not json:
                print(
                    f"{app.name}: what is new in {len(chosen)} partitions (Ctrl-C stops)", file=sys.stderr, flush=True
                )
            while True:
                watch.clear()
                new = [log.read(p, offset, limit=_READ_RECORDS) for p, offset in following.items()]
                for record in _in_time_order(new):
                    tell(record)
                    following[record.partition] = record.offset + 1
                if not any(new):
                    select.select([watch], [], [], SIGNAL_S)


def _chosen(log: Log, partition: int | None) -> Sequence[int]:
    if partition is not None and not 0 <= partition < log.partitions:
        raise Misuse(f"There is no partition {partition}: the log has 0 to {log.partitions - 1}.")
    return range(log.partitions) if partition is None else [partition]


def _in_time_order(partitions: Iterable[Iterable[Record]]) -> Iterator[Record]:
    """Each partition's in its own order, even where a writer's clock went back."""
    return heapq.merge(*partitions, key=lambda record: record.time)


def _teller(codec: Codec, *, json: bool) -> Tell:
    if json:
        return lambda record: say_json(described(record, codec))
    width = terminal_width()
    return lambda record: say("\n".join(cut(line, width) for line in lines_of(described(record, codec))))


def described(record: Record, codec: Codec) -> dict[str, Any]:
    """Everything that is in a record, as the log has it: commands of old versions are not brought up.

    One that the app cannot decode has a `problem`, and its payload as text.
    """
    about: dict[str, Any] = {
        "position": f"{record.partition}:{record.offset}",
        "kind": record.kind.value,
        "time": record.time,
        "bytes": len(record.payload),
    }
    if record.kind in (Kind.NOTHING, Kind.TICK):
        return about
    try:
        content = codec.decode_record(record)
    except Corrupt as problem:
        return {**about, "problem": str(problem), "payload": record.payload.decode(errors="backslashreplace")}
    if isinstance(content, Epoch):
        return {**about, **content.model_dump(exclude_none=True)}
    return {**about, **_who(content), "commands": list(_commands(record, content))}


def _who(content: Commands | Messages) -> dict[str, Any]:
    if isinstance(content, Messages):
        return {"origin_partition": content.header.origin_partition}
    about: dict[str, Any] = {"writer": content.header.writer}
    if content.header.releases:
        about["releases"] = [f"{offset}.{index}" for offset, index in content.header.releases]
    return about


def _commands(record: Record, content: Commands | Messages) -> Iterator[dict[str, Any]]:
    header = content.header
    bodies = _bodies(record, header.which)
    for index, (number, key, body) in enumerate(zip(header.which, header.keys, bodies, strict=True)):
        name, version = header.types[number]
        command = {"index": index, "name": name, "version": version, "key": key, "body": body}
        if isinstance(content, Messages):
            origin = Origin(*content.header.origin(index))
            command["origin"] = f"{content.header.origin_partition}:{origin.offset}.{origin.index}.{origin.number}"
        else:
            command["session"] = content.header.sessions[content.header.session[index]]
            command["sequence"] = content.header.sequence[index]
            if index in content.header.idempotency:
                command["idempotency_key"] = content.header.idempotency[index]
        yield command


def _bodies(record: Record, which: Sequence[int]) -> list[Any]:
    """The commands' own JSON, in their order, of a record that can be decoded."""
    _, *lines = record.payload.split(b"\n", 1 if record.kind is Kind.PLAIN else -1)
    if record.kind is Kind.PLAIN:
        return [pydantic_core.from_json(lines[0])]
    groups = [iter(pydantic_core.from_json(line)) for line in lines]
    return [next(groups[number]) for number in which]


def lines_of(about: dict[str, Any]) -> Iterator[str]:
    """The same for people: a line for the record, and one for each of its commands."""
    time = time_text(about["time"]) if about["kind"] != Kind.NOTHING else ""  # Kafka does not say
    yield f"{about['position']:<10} {about['kind']:<8} {time}  {_owner(about)}"
    if "problem" in about:
        yield f"    PROBLEM {about['problem']}"
        yield f"    {about['payload']}"
    for place in about.get("releases", ()):
        yield f"    takes {about['position'].partition(':')[0]}:{place} out of quarantine"
    for command in about.get("commands", ()):
        body = json_module.dumps(command["body"], ensure_ascii=False, separators=(",", ":"))
        yield f"    .{command['index']:<4} {command['name']} v{command['version']}  {command['key']}  {body}"


def _owner(about: dict[str, Any]) -> str:
    if "owner" in about:
        where = f" at {about['address']}" if about["address"] else ""
        if "ends" in about:
            return f"owner {about['owner']} has ended"
        return f"owner {about['owner']}{where}, app version {about['app_version']}"
    if "origin_partition" in about:
        return f"from partition {about['origin_partition']}"
    return f"by {about['writer']}" if about.get("writer") else ""


def terminal_width() -> int:
    return shutil.get_terminal_size(_WIDE).columns


def cut(text: str, width: int) -> str:
    """A line for a terminal of that width."""
    # What a client wrote must not reach the terminal as a control sequence.
    printable = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[: width + 1])
    return printable.rstrip() if len(printable) <= width else printable[: width - 1] + "…"
