"""`engram snapshot take` and `engram savepoint`: snapshots of a running app, while it goes on and at its end."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from engram.cli.output import say, say_json, show_progress, show_table
from engram.cli.talk import exchange, reaching, succeeded, the_app
from engram.errors import EngramError, Unavailable

# What the gateway waits for at most.
_SECONDS = 3600.0
_AT_ONCE = 16


def take_snapshots(url: str, *, name: str, json: bool) -> None:
    """Has a snapshot of every partition taken, and says of each when it is there.

    Raises `Unavailable` at the end when some could not be taken; the others are there.
    """
    url = url.rstrip("/")
    with reaching(url):
        app = the_app(url)["app"]
        partitions = range(succeeded(*exchange(f"{url}/api/{app}", None, {}))["partitions"])
    taken: list[dict[str, Any]] = []
    problems: list[EngramError] = []
    for one in _each(url, app, name, partitions):
        if isinstance(one, EngramError):
            problems.append(one)
        else:
            taken.append(one)
        show_progress(f"{len(taken)} of {len(partitions)} partitions ...")
    show_progress("")
    taken.sort(key=lambda row: row["partition"])
    if taken or not problems:
        _tell(
            f"{app}: {f'savepoint {name}' if name else 'snapshots'}", {"savepoint": name, "snapshots": taken}, json=json
        )
    if len(problems) == len(partitions):
        raise problems[0]
    if problems:
        raise Unavailable(f"{len(problems)} of {len(partitions)} partitions have none. {problems[0]}")


def _each(url: str, app: str, name: str, partitions: range) -> Iterator[dict[str, Any] | EngramError]:
    """What became of each partition, as it comes."""

    def take(partition: int) -> dict[str, Any]:
        wanted = {"partition": partition, "timeout": f"{_SECONDS:g}", **({"savepoint": name} if name else {})}
        with reaching(url):
            asked = f"{url}/api/{app}/snapshots?{urlencode(wanted)}"
            (one,) = succeeded(*exchange(asked, None, {}, "POST", seconds=_SECONDS))["snapshots"]
        return dict(one)

    with ThreadPoolExecutor(min(_AT_ONCE, len(partitions))) as threads:
        for taking in as_completed([threads.submit(take, partition) for partition in partitions]):
            problem = taking.exception()
            if problem is None:
                yield taking.result()
            elif isinstance(problem, EngramError):
                yield problem
            else:
                raise problem


def end_with_savepoint(url: str, *, name: str | None, json: bool) -> None:
    """Stops the app with a savepoint of every partition; without a name, it gets one of the version and the time."""
    url = url.rstrip("/")
    with reaching(url):
        about = the_app(url)
        name = name or f"v{about['version']}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
        show_progress(f"{about['app']}: the last snapshots of version {about['version']} ...")
        asked = f"{url}/api/{about['app']}/stop?{urlencode({'savepoint': name})}"
        answer = exchange(asked, None, {}, "POST", seconds=_SECONDS)
    show_progress("")
    _tell(f"{about['app']}: savepoint {name}", succeeded(*answer), json=json)
    if not json:
        say(
            f"Version {about['version']} has ended, and all that it has handled is in savepoint {name}. The next "
            "version can start."
        )


def _tell(title: str, content: dict[str, Any], *, json: bool) -> None:
    if json:
        say_json(content)
        return
    rows = content["snapshots"]
    columns = [c for c in ("partition", "offset", "entities", "changed", "bytes") if not rows or c in rows[0]]
    show_table(title, columns, [[f"{row[column]:,}" for column in columns] for row in rows])
