"""An app's data as tables for SQL: the log, events, replies, state, its entity types and its read models."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engram.errors import Misuse
from engram.model.app import App
from engram.model.entity import Shared
from engram.shard.reference import resolve_app

_WORD = re.compile(r"\w+")
_ABOUT_TABLES = re.compile(r"\s*(show|describe|desc)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A format with its options. `unique` is the column that no two rows have the same value of, if there is one."""

    form: str
    options: Mapping[str, str]
    unique: str = ""
    variant: str = ""  # a column of JSON text that SQL reads as VARIANT


def tables_of(reference: str, *, log: str, snapshots: str, at: str = "") -> dict[str, Table]:
    """The tables by their names. `reference` is MODULE:APP; or the app's name alone, and then there is what can be read
    without its classes."""
    where = {"app": reference, "log": log, "snapshots": snapshots}
    moment = {**where, "at": at} if at else where
    found = {
        "log": Table(form="engram.log", options=where),
        "events": Table(form="engram.events", options=where, unique="id"),
        "state": Table(form="engram.state", options=moment, variant="state"),
    }
    if ":" in reference:
        app = resolve_app(reference)
        found["replies"] = Table(form="engram.replies", options=where, unique="position")
        found |= _of_entities(app, moment, found)
        found |= _of_read_models(app, moment, found)
    return found


def _of_entities(app: App, moment: Mapping[str, str], taken: Mapping[str, Table]) -> dict[str, Table]:
    return {
        f"entity_{name}" if name in taken else name: Table(
            form="engram.state",
            options={**moment, "entity": name},
            unique="" if issubclass(cls, Shared) else "key",
        )
        for name, cls in app.entities.items()
    }


def _of_read_models(app: App, moment: Mapping[str, str], taken: Mapping[str, Table]) -> dict[str, Table]:
    return {
        f"rows_{name}" if name in taken else name: Table(form="engram.rows", options={**moment, "model": name})
        for name in app.read_models
    }


class Tables:
    """Tables in a SparkSession. One becomes known to Spark when a statement first has its name: each costs a look into
    the app, and most are not asked for."""

    def __init__(self, session: Any, tables: Mapping[str, Table]) -> None:
        self._session = session
        self._tables = tables
        self._known: set[str] = set()

    def frame(self, name: str) -> Any:
        """All of a table. Raises `Misuse` for one that is not there."""
        table = self._tables.get(name)
        if table is None:
            raise Misuse(f"There is no table {name}: there are {', '.join(sorted(self._tables))}.")
        frame = self._session.read.format(table.form).options(**table.options).load()
        if table.variant:
            from pyspark.sql.functions import parse_json

            frame = frame.withColumn(table.variant, parse_json(table.variant))
        return frame

    def unique(self, name: str) -> str:
        return self._tables[name].unique

    def ask(self, statement: str) -> Any:
        """The DataFrame of a statement."""
        words = {word.lower() for word in _WORD.findall(statement)}
        every = _ABOUT_TABLES.match(statement) is not None
        for name in self._tables:
            if name not in self._known and (every or name.lower() in words):
                self.frame(name).createOrReplaceTempView(name)
                self._known.add(name)
        return self._session.sql(statement)

    def stop(self) -> None:
        """Ends what another thread has asked for and is not done: it gets an error."""
        self._session.sparkContext.cancelAllJobs()
