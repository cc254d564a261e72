"""The check of an app against its baseline: what changed without a version, and what that would break."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from engram.codec.changes import Change, changes_of, same_result
from engram.codec.schema import KINDS, Schema, TypeSchema, write_schema
from engram.model.version import Version

# How often each type and version is in a place: by kind, name and version.
Held = Counter[tuple[str, str, Version]]


class Finding(NamedTuple):
    """What is to be said of one type. A `problem` must be put right; anything else is for a new baseline only."""

    kind: str
    name: str
    problem: bool
    text: str


def check(before: Schema, after: Schema, held: Mapping[str, Held], *, draft: str) -> list[Finding]:
    """Compares the code's schema with the baseline. `held` says what each place has, such as "the log"; `draft` is the
    command that writes an upcaster's skeleton, to which a type's name is added.

    No findings: the baseline is up to date. Types are in the order of kinds, then by name; problems come first.
    """
    checker = _Checker(before, after, held, draft)
    found = [finding for kind in KINDS for finding in checker.kind(kind)]
    if not found and write_schema(before) != write_schema(after):
        found = [Finding("app", after.app, False, _app_text(before, after))]
    return sorted(found, key=lambda finding: not finding.problem)


class _Checker(NamedTuple):
    before: Schema
    after: Schema
    held: Mapping[str, Held]
    draft: str

    def kind(self, kind: str) -> Iterator[Finding]:
        old, new = self.before.of_kind(kind), self.after.of_kind(kind)
        for name in sorted({*old, *new}):
            if name not in new:
                yield self._vanished(kind, name, old[name])
            elif name not in old:
                yield Finding(kind, name, False, f"{kind} {name} is new, at version {new[name].version}.")
            else:
                yield from self._both(kind, name, old[name], new[name])

    def _both(self, kind: str, name: str, old: TypeSchema, new: TypeSchema) -> Iterator[Finding]:
        changes = changes_of(self.before, self.after, old, new)
        if new.version < old.version:
            text = (
                f"{kind} {name} is at version {new.version}, and was at {old.version} in the baseline. Versions only "
                f"go up, because older code must refuse what newer code wrote: give it version {old.version} or more."
            )
            yield Finding(kind, name, True, text + self._affected(kind, name))
        elif new.version > old.version:
            text = f"{kind} {name} went from version {old.version} to {new.version}"
            text += f": {_listed(changes)}" if changes else "."
            yield Finding(kind, name, False, text + (self._affected(kind, name) if self.held else ""))
        elif changes:
            yield Finding(kind, name, True, self._changed(kind, name, old.version, changes))
        if not same_result(self.before, self.after, old, new):
            text = (
                f"{kind} {name} has other {'replies' if kind == 'command' else 'answers'} ({new.result}, before: "
                f"{old.result}): they have no version, so clients must be ready for both."
            )
            yield Finding(kind, name, False, text)

    def _changed(self, kind: str, name: str, version: int, changes: list[Change]) -> str:
        where = "its class statement" if kind != "value" else "its declaration"
        if all(change.compatible for change in changes):
            reading = (
                "What was written before still reads as it is, so the upcaster may return it unchanged; but older code "
                "could not read the new, and without a version it would not know."
            )
        else:
            reading = f"What was written as version {version} cannot be read as it is."
        return (
            f"{kind} {name} changed, and is still at version {version}: {_listed(changes)} {reading} "
            f"Write version={version + 1} into {where}, and an upcaster from version {version}: "
            f"`{self.draft} {kind}:{name}` drafts it." + self._affected(kind, name)
        )

    def _vanished(self, kind: str, name: str, old: TypeSchema) -> Finding:
        if kind in ("query", "value"):  # never kept as such; what holds a value is told on its own
            return Finding(kind, name, False, f"{kind} {name} is not in the app any more.")
        text = f"{kind} {name} (version {old.version}) is not in the app any more"
        new = self.after.of_kind(kind)
        alike = [
            other
            for other, type_ in new.items()
            if other not in self.before.of_kind(kind)
            and type_.fields
            and not changes_of(self.before, self.after, old, type_)
        ]
        renamed = (
            f" It looks as if it was renamed to {alike[0]}: names are for ever, only classes move." if alike else ""
        )
        count = sum(self._count(held, kind, name) for held in self.held.values())
        if self.held and not count:
            return Finding(kind, name, False, f"{text}, and {' and '.join(self.held)} have nothing of it.{renamed}")
        told = self._affected(kind, name) if self.held else " A log or a snapshot may still have it."
        way_out = (
            "What has it could not be read. Keep its class until nothing has it any more; to say that nothing has, "
            "record the schema with --accept."
        )
        return Finding(kind, name, True, f"{text}.{renamed}{told} {way_out}")

    def _affected(self, kind: str, name: str) -> str:
        """Which records and snapshots have a type; for a value, what holds it."""
        types = self.before.holders(name) if kind == "value" else [(kind, name)]
        text = ""
        if kind == "value" and types:
            text = f" It is in {_enumerated([' '.join(each) for each in types])}."
        if not self.held:
            return text
        rows = [
            f"in {place} {_enumerated(each)}"
            for place, held in self.held.items()
            if (
                each := [
                    f"{count:,} of {k} {n} version {v}"
                    for (k, n, v), count in sorted(held.items(), key=lambda row: (row[0][:2], str(row[0][2])))
                    if (k, n) in types
                ]
            )
        ]
        return f"{text} Affected: {'; '.join(rows) or 'nothing in ' + ' and '.join(self.held)}."

    @staticmethod
    def _count(held: Held, kind: str, name: str) -> int:
        return sum(count for (k, n, _), count in held.items() if (k, n) == (kind, name))


def _app_text(before: Schema, after: Schema) -> str:
    if before.version != after.version:
        return f"app {after.app} went from version {before.version} to {after.version}."
    return f"app {after.app} is written otherwise in the baseline: classes in it were renamed, or have a name now."


def _listed(changes: list[Change]) -> str:
    return "; ".join(change.text for change in changes) + "." if changes else ""


def _enumerated(texts: list[str]) -> str:
    *first, last = texts
    return f"{', '.join(first)} and {last}" if first else last
