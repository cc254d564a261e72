"""The form of every benchmark's result: rows and aims, on the screen and as JSON."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.table import Table

FOLDER = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Row:
    """One case: the median of its repetitions, and how far they spread (greatest minus least, over the median)."""

    case: str
    median: float
    unit: str
    spread: float

    @classmethod
    def of(cls, case: str, values: Sequence[float], unit: str) -> Row:
        median = statistics.median(values)
        spread = (max(values) - min(values)) / median if median else 0.0
        return cls(case, _rounded(median), unit, round(spread, 3))


@dataclass(frozen=True)
class Aim:
    """What was hoped for, and what came out."""

    name: str
    aim: str
    value: float
    met: bool


@dataclass
class Result:
    title: str
    rows: list[Row] = field(default_factory=list)
    aims: list[Aim] = field(default_factory=list)

    def publish(self, name: str) -> None:
        """Prints the tables and writes `bench/results/NAME.json`."""
        console = Console(width=110)
        table = Table(title=self.title, title_justify="left")
        for column in ("case", "median", "unit", "spread"):
            table.add_column(column, justify="left" if column in ("case", "unit") else "right")
        for row in self.rows:
            table.add_row(row.case, f"{row.median:,}", row.unit, f"{row.spread:.0%}")
        console.print(table)
        for aim in self.aims:
            console.print(f"  {'met   ' if aim.met else 'MISSED'} {aim.name}: {aim.value} (aim: {aim.aim})")
        machine = {"python": platform.python_version(), "cores": os.cpu_count(), "system": platform.machine()}
        versions = {package: version(package) for package in ("engram", "pydantic", "msgspec", "pyspark")}
        FOLDER.mkdir(exist_ok=True)
        content = {"machine": machine, "versions": versions, **asdict(self)}
        (FOLDER / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n")
        console.print(f"  {platform.python_version()}, {os.cpu_count()} cores; bench/results/{name}.json")


def _rounded(value: float) -> float:
    return round(value) if value >= 100 else round(value, 3)
