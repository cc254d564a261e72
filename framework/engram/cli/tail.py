"""`engram tail --events`: an app's events as they leave, from the log itself."""

from __future__ import annotations

import json as json_module
import sys
from contextlib import closing
from typing import Any

from engram.cli.log import cut, terminal_width
from engram.cli.output import SIGNAL_S, leave_on_signals, say, say_json
from engram.errors import Misuse
from engram.log.cursor import END, START, cursor_of
from engram.log.open import open_log
from engram.log.stream import EventReader, NewEvents, described
from engram.shard.reference import resolve_app

_READ_EVENTS = 200


def tail_events(reference: str, url: str, *, after: str, from_start: bool, json: bool) -> None:
    """Prints events, until SIGINT or SIGTERM, and then ends with exit code 0 and the cursor to go on from."""
    if after and from_start:
        raise Misuse("--after and --from-start exclude each other: leave one out.")
    leave_on_signals()
    app = resolve_app(reference)
    with closing(open_log(url, app.name)) as log, closing(NewEvents(log)) as news:
        reader = EventReader(log, cursor_of(after or (START if from_start else END), log))
        cursor = reader.cursor
        width = terminal_width()
        if not json:
            _tell(f"{app.name}: events of {log.partitions} partitions (Ctrl-C stops)")
        try:
            while True:
                news.clear()
                events = reader.read(_READ_EVENTS)
                for event in events:
                    about = described(event)
                    cursor = cursor.past(event)
                    if json:
                        say_json({**about, "cursor": str(cursor)})
                    else:
                        say(cut(line_of(about), width))
                if not events:
                    news.wait(SIGNAL_S)
        finally:
            if not json:
                _tell(f"to go on from here: --after {cursor}")


def line_of(about: dict[str, Any]) -> str:
    body = json_module.dumps(about["body"], ensure_ascii=False, separators=(",", ":"))
    return f"{about['id']:<12} {about['time']}  {about['name']} v{about['version']}  {about['key']}  {body}"


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
