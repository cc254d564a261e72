"""`engram quarantine`: what failed in a running app, and why; sent again, or dropped."""

from __future__ import annotations

import json as json_module
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from engram.cli.output import REFUSED, UNAVAILABLE, say, say_json, show_table
from engram.cli.talk import exchange, reaching, succeeded, the_app
from engram.errors import EngramError, Misuse, Unavailable

# All that a gateway gives at once.
_ALL = 10_000
_ERROR_CHARACTERS = 200

Json = dict[str, Any]


class Quarantine:
    """The quarantine of the app at `url`, as commands see it. Everything is asked for when it is needed."""

    def __init__(self, url: str, *, hint: str) -> None:
        """`hint` is what has to be added to a command line to reach the same app."""
        self._url = url.rstrip("/")
        with reaching(url):
            self.app = the_app(self._url)["app"]
        self._hint = f" {hint}" if hint else ""

    def listed(self, limit: int) -> Json:
        return self._ask("GET", f"?limit={limit}")

    def row(self, position: str) -> Json:
        return self._ask("GET", f"/{_checked(position)}")

    def retry(self, position: str) -> Json:
        return self._ask("POST", f"/{_checked(position)}/retry")

    def drop(self, position: str) -> Json:
        return self._ask("DELETE", f"/{_checked(position)}")

    def command_line(self, what: str, position: str) -> str:
        """What to type to do something with a row."""
        return f"engram quarantine {what} {position}{self._hint}"

    def _ask(self, method: str, path: str) -> Json:
        with reaching(self._url):
            return succeeded(*exchange(f"{self._url}/api/{self.app}/quarantine{path}", None, {}, method))


def list_failed(quarantine: Quarantine, *, limit: int, json: bool) -> None:
    """Prints the newest failed commands, and where there may be more."""
    found = quarantine.listed(limit)
    rows = found["rows"]
    if json:
        say_json(found)
        return
    if rows:
        newest = f", the newest {len(rows)} of them" if len(rows) < found["listed"] else ""
        title = f"{quarantine.app}: {_many(found['listed'])} in quarantine{newest}"
        columns = ["position", "failed at (UTC)", "command", "for", "times", "error"]
        show_table(title, columns, [_cells(row) for row in rows])
    elif not found["not_served"]:
        before = f" There were {found['count']:,} failures; all were retried or dropped." if found["count"] else ""
        say(f"Nothing is in quarantine.{before}")
    _say_not_served(found)
    if rows:
        newest_position = rows[0]["position"]
        say(f"See why:      {quarantine.command_line('show', newest_position)}")
        say(f"Send again:   {quarantine.command_line('retry', newest_position)}")
        say(f"Give it up:   {quarantine.command_line('drop', newest_position)}")


def show_failed(quarantine: Quarantine, positions: Sequence[str], *, json: bool) -> None:
    """Prints all that is known of failed commands."""
    for position in positions:
        row = quarantine.row(position)
        if json:
            say_json(row)
        else:
            say("\n".join(_told(row, quarantine)))


def retry_failed(quarantine: Quarantine, positions: Sequence[str], *, every: bool, json: bool) -> None:
    """Sends failed commands again, in the order of the log, and says what became of each."""

    def tell(retried: Json) -> str:
        match retried["outcome"]:
            case "reply":
                return f"done, at {retried['position']}; the reply is {_short(_json(retried['reply']))}"
            case "rejected":
                told = ": ".join(filter(None, [retried["code"], _short(retried["error"])]))
                return f"rejected, at {retried['position']}: {told} (it is not in quarantine any more)"
        times = f", {retried['failures']} times now" if retried["failures"] else ""
        again = quarantine.command_line("show", retried["position"])
        return f"FAILED AGAIN{times}: {_short(retried['error'])} (it is {retried['position']} now: {again})"

    _for_each(quarantine, positions, quarantine.retry, tell, every=every, json=json)


def drop_failed(quarantine: Quarantine, positions: Sequence[str], *, every: bool, json: bool) -> None:
    """Takes failed commands off the list, and says so for each."""
    _for_each(quarantine, positions, quarantine.drop, lambda _: "dropped; it stays in the log", every=every, json=json)


def _for_each(
    quarantine: Quarantine,
    positions: Sequence[str],
    change: Callable[[str], Json],
    tell: Callable[[Json], str],
    *,
    every: bool,
    json: bool,
) -> None:
    """Goes on after a failure. The exit code is that of the worst: nothing but done is 0."""
    if every == bool(positions):
        raise Misuse("Name the positions, such as 3:1042.0, or write --all.")
    found: Json = quarantine.listed(_ALL) if every else {"rows": [], "listed": 0, "not_served": []}
    about = {row["position"]: _name(row) for row in found["rows"]}
    chosen = sorted(about, key=_place) if every else positions
    code = 0
    for position in chosen:
        done, text, own_code = _changed(position, change, tell)
        code = max(code, own_code)
        if json:
            say_json({"of": position, **done})
        else:
            say(f"{position}{about.get(position, '')}: {text}")
    if every and not json:
        if not chosen and not found["not_served"]:
            say("Nothing is in quarantine.")
        if len(chosen) < found["listed"]:
            say(f"There are {found['listed'] - len(chosen)} more: do it again.")
        _say_not_served(found)
    if code or found["not_served"]:
        raise SystemExit(UNAVAILABLE if found["not_served"] else code)


def _changed(position: str, change: Callable[[str], Json], tell: Callable[[Json], str]) -> tuple[Json, str, int]:
    """What came of it, the same for people, and the exit code that it stands for."""
    try:
        done = change(position)
    except EngramError as problem:
        code = UNAVAILABLE if isinstance(problem, Unavailable) else REFUSED
        return {"problem": str(problem)}, f"NOT DONE: {problem}", code
    return done, tell(done), REFUSED if done.get("outcome", "reply") != "reply" else 0


def _say_not_served(found: Json) -> None:
    for missing in found["not_served"]:
        say(f"Partition {missing['partition']} could not be asked, and may have more. {missing['problem']}")


def _cells(row: Json) -> list[str]:
    whom = f"{row['entity']} {row['key']}".strip()
    return [
        row["position"],
        _time(row),
        row["command"] or "(not readable)",
        _printable(whom) or "-",
        str(row["failures"]),
        _short(row["error"]),
    ]


def _told(row: Json, quarantine: Quarantine) -> list[str]:
    position = row["position"]
    often = "once" if row["failures"] == 1 else f"{row['failures']} times, the last time"
    readable = bool(row["command"] and row["body"] is not None)
    return [
        f"{position}{_name(row)}",
        f"  failed    {often} at {_time(row)} (UTC)",
        f"  error     {_printable(row['error'])}",
        f"  fields    {_printable(_json(row['body'])) if readable else 'not known'}",
        "",
        *(_printable(line) for line in row["traceback"].splitlines()),
        "",
        "The state is as if it had never been sent. When the cause is removed:",
        *([f"  send it again   {quarantine.command_line('retry', position)}"] if readable else []),
        f"  give it up      {quarantine.command_line('drop', position)}",
    ]


def _name(row: Json) -> str:
    if not row["command"]:
        return "  a record that nobody could read"
    version = f" v{row['version']}" if "version" in row else ""
    return f"  {row['command']}{version} for {row['entity'] or 'entity'} {_printable(row['key'])}"


def _checked(position: str) -> str:
    from engram.model.position import Position

    return str(Position.parse(position))


def _place(position: str) -> tuple[int, int, int]:
    from engram.model.position import Position

    return Position.parse(position)


def _time(row: Json) -> str:
    return f"{datetime.fromisoformat(row['time']):%Y-%m-%d %H:%M:%S}"


def _many(number: int) -> str:
    return f"{number:,} command{'' if number == 1 else 's'}"


def _json(value: Any) -> str:
    return json_module.dumps(value, ensure_ascii=False)


def _short(text: str) -> str:
    text = _printable(text)
    return text if len(text) <= _ERROR_CHARACTERS else text[: _ERROR_CHARACTERS - 1] + "…"


def _printable(text: str) -> str:
    """What somebody else wrote must not reach the terminal as a control sequence."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
