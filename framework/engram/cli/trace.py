"""`engram trace`: what a command led to, as a tree."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

from engram.cli.log import cut, terminal_width
from engram.cli.output import say, say_json, show_progress
from engram.errors import Misuse
from engram.log.open import open_log
from engram.log.stream import time_text
from engram.log.trace import Step, find_position, trace
from engram.model.position import Position
from engram.shard.reference import resolve_app


def show_trace(reference: str, url: str, command_id: str, *, limit: int, json: bool) -> None:
    """Prints the tree of the command with that position, session and sequence, or idempotency key."""
    app = resolve_app(reference)
    with closing(open_log(url, app.name)) as log:
        try:
            position = Position.parse(command_id)
        except Misuse:
            position = find_position(log, command_id)
        root = trace(log, position, progress=lambda records: show_progress(f"{records:,} records read ..."))
    show_progress("")
    if json:
        say_json(_described(root))
        return
    width = terminal_width()
    lines = list(_lines(root, position, root.time))
    for line in lines[:limit]:
        say(cut(line, width))
    if len(lines) > limit:
        say(f"... and {len(lines) - limit:,} more lines: see them with --limit {len(lines)}.")


def _described(step: Step) -> dict[str, Any]:
    return {
        "position": str(step.position),
        "command": step.command,
        "key": step.key,
        "time": step.time,
        "timer": step.timer,
        "everywhere": step.everywhere,
        "events": [{"name": event.name, "number": event.number} for event in step.events],
        "led_to": [_described(below) for below in step.led_to],
    }


def _lines(root: Step, asked: Position, start: int) -> Iterator[str]:
    """Without recursion: a chain may be long."""
    waiting: list[tuple[str, str, Step]] = [("", "", root)]
    while waiting:
        head, indent, step = waiting.pop()
        when = time_text(step.time) if step is root else f"+{step.time - start} ms"
        yield f"{head}{step.position}  {_what(step)}  {when}{'   <-- asked for' if step.position == asked else ''}"
        below = len(step.led_to)
        for number, event in enumerate(step.events, 1):
            bar = "`-- " if number == len(step.events) and not below else "|-- "
            yield f"{indent}{bar}event {event.name}"
        for number, child in reversed(list(enumerate(step.led_to, 1))):
            bar, more = ("`-- ", "    ") if number == below else ("|-- ", "|   ")
            waiting.append((indent + bar, indent + more, child))


def _what(step: Step) -> str:
    if step.everywhere:
        return f"{step.command} in partition {step.position.partition}"
    name = f"timer {step.command}".rstrip() if step.timer else step.command
    return f"{name} of {step.key}" if step.key else name
