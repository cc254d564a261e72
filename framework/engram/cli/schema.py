"""`engram schema record|check|draft`: the shapes of an app's types against those that were committed."""

from __future__ import annotations

import sys
from pathlib import Path
from textwrap import wrap
from typing import Any

from engram.cli.held import held_by_log, held_by_snapshots
from engram.cli.log import terminal_width
from engram.cli.output import REFUSED, say, say_json
from engram.codec.check import Finding, Held, check
from engram.codec.draft import draft, find_type
from engram.codec.schema import Schema, read_schema, schema_of, write_schema
from engram.errors import Misuse
from engram.model.app import App
from engram.shard.reference import resolve_app

NAME = "schema.json"
_WIDEST = 120  # of a paragraph


def record_schema(reference: str, baseline: Path | None, *, accept: bool) -> None:
    """Writes the baseline. One with problems is written only when they are accepted."""
    app, path = _app_and_path(reference, baseline)
    after = schema_of(app)
    if path.exists():
        before = _read(path, app)
        problems = [f for f in check(before, after, {}, draft=_draft(reference, baseline)) if f.problem]
        if problems and not accept:
            _tell(problems)
            raise Misuse(
                f"{path} was left as it is: put right what is said above, or add --accept if nothing of it was ever "
                "written to a log that counts."
            )
    text = write_schema(after)
    try:
        if path.exists() and path.read_text() == text:
            say(f"{path} is up to date.")
            return
        path.write_text(text)
    except OSError as problem:
        raise Misuse(f"{path} cannot be written: {problem.strerror}.") from problem
    say(f"Recorded {_count(after)} types of {app.name} in {path}: commit it.")


def check_schema(reference: str, baseline: Path | None, *, log: str | None, snapshots: str | None, json: bool) -> None:
    """Ends with exit code 2 when a shape changed without a version, and when the baseline is not up to date."""
    app, path = _app_and_path(reference, baseline)
    before, after = _read(path, app), schema_of(app)
    held: dict[str, Held] = {}
    if log is not None:
        held["the log"] = held_by_log(log, app.name)
    if snapshots is not None:
        held["the newest snapshots"] = held_by_snapshots(snapshots, app.name)
    found = check(before, after, held, draft=_draft(reference, baseline))
    problems = sum(finding.problem for finding in found)
    if json:
        say_json({"app": app.name, "baseline": str(path), "findings": [f._asdict() for f in found]})
    else:
        _tell(found)
    if not found:
        if not json:
            say(f"{app.name}: {_count(after)} types, as in {path}.")
        return
    record = f"engram schema record {reference}" + ("" if baseline is None else f" --baseline {baseline}")
    if problems:
        print(f"engram: {problems} to be put right; {path} is the baseline.", file=sys.stderr)
    else:
        print(f"engram: {path} is behind the code: run `{record}`, and commit it.", file=sys.stderr)
    raise SystemExit(REFUSED)


def draft_upcaster(reference: str, wanted: str, baseline: Path | None, output: Path | None) -> None:
    """Prints the skeleton of an upcaster with its test, or writes it to a file that is not there yet."""
    app, path = _app_and_path(reference, baseline)
    before, after = _read(path, app), schema_of(app)
    classes = _classes(app)
    kind, name = find_type(after, wanted, classes)
    if name not in before.of_kind(kind):
        raise Misuse(f"{kind} {name} is not in {path}: a new type has nothing to be upcast from.")
    text = draft(before, after, kind, name, cls=classes[kind, name], app=reference)
    if output is None:
        say(text.rstrip("\n"))
        return
    try:
        with output.open("x") as file:
            file.write(text)
    except FileExistsError:
        raise Misuse(f"{output} is there already: choose another name.") from None
    except OSError as problem:
        raise Misuse(f"{output} cannot be written: {problem.strerror}.") from problem
    say(f"Drafted in {output}: put each half where it belongs, and fill in what is marked with `...`.")


def _app_and_path(reference: str, baseline: Path | None) -> tuple[App, Path]:
    app = resolve_app(reference)
    if baseline is not None:
        return app, baseline
    file = sys.modules[reference.partition(":")[0]].__file__
    if file is None:
        raise Misuse(f"{reference} has no file beside which its {NAME} could be: use --baseline.")
    path = Path(file).parent / NAME
    return app, path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _read(path: Path, app: App) -> Schema:
    try:
        text = path.read_text()
    except FileNotFoundError:
        raise Misuse(f"There is no baseline {path}: make it with `engram schema record`, and commit it.") from None
    except (OSError, UnicodeDecodeError) as problem:
        raise Misuse(f"The baseline {path} cannot be read: {problem}.") from problem
    schema = read_schema(text, str(path))
    if schema.app != app.name:
        raise Misuse(f"{path} is the baseline of app {schema.app}, not of {app.name}: use --baseline.")
    return schema


def _classes(app: App) -> dict[tuple[str, str], type[Any]]:
    registries: dict[str, dict[str, Any]] = {
        "entity": app.entities,
        "command": app.commands,
        "query": app.queries,
        "event": app.events,
        "value": app.values,
    }
    return {(kind, name): cls for kind, of in registries.items() for name, cls in of.items()}


def _tell(findings: list[Finding]) -> None:
    """One paragraph per finding, those that must be put right first, marked with `!`."""
    width = min(terminal_width(), _WIDEST)
    for finding in findings:
        mark = "! " if finding.problem else "  "
        lines = wrap(finding.text, width - 2, break_long_words=False, break_on_hyphens=False)
        say("\n".join((mark if not number else "  ") + line for number, line in enumerate(lines)))


def _draft(reference: str, baseline: Path | None) -> str:
    return f"engram schema draft {reference}" + ("" if baseline is None else f" --baseline {baseline}")


def _count(schema: Schema) -> int:
    return sum(len(schema.of_kind(kind)) for kind in ("entity", "command", "query", "event", "value"))
