"""The form of every benchmark's result: rows and aims, on the screen and as JSON."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.plot import plot

FOLDER = Path(__file__).parent / "results"
_OURS = ("engram", "pydantic", "msgspec", "pyspark", "kafka-python", "fastapi", "uvicorn")
_PACKAGES = (*_OURS, "redis", "eventsourcing", "confluent-kafka")


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


@dataclass(frozen=True)
class Machine:
    """Where and with what it was measured; `load` is how much was going on when it began."""

    python: str
    cores: int
    cpu: str
    memory_gb: int
    load: float
    versions: dict[str, str]

    @classmethod
    def here(cls) -> Machine:
        found = {package: version(package) for package in _PACKAGES}
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
        load = round(os.getloadavg()[0], 2)
        return cls(platform.python_version(), os.cpu_count() or 1, _cpu(), round(memory), load, found)

    def __str__(self) -> str:
        versions = ", ".join(f"{package} {found}" for package, found in self.versions.items())
        where = f"{self.cores} cores ({self.cpu}), {self.memory_gb} GB, load {self.load} at the start"
        return f"Python {self.python}, {where}; {versions}"


def _cpu() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


@dataclass
class Result:
    title: str
    rows: list[Row] = field(default_factory=list)
    aims: list[Aim] = field(default_factory=list)
    machine: Machine = field(default_factory=Machine.here)

    def publish(self, name: str) -> None:
        """Prints the tables, and writes `bench/results/NAME.json` and a plot beside it."""
        console = Console(width=110)
        table = Table(title=self.title, title_justify="left")
        for column in ("case", "median", "unit", "spread"):
            table.add_column(column, justify="left" if column in ("case", "unit") else "right")
        for row in self.rows:
            table.add_row(row.case, f"{row.median:,}", row.unit, f"{row.spread:.0%}")
        console.print(table)
        for aim in self.aims:
            console.print(f"  {'met   ' if aim.met else 'MISSED'} {aim.name}: {aim.value} (aim: {aim.aim})")
        FOLDER.mkdir(exist_ok=True)
        content = asdict(self)
        (FOLDER / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n")
        plot(self.title, content["rows"], FOLDER / f"{name}.png")
        console.print(f"  {self.machine}")
        console.print(f"  bench/results/{name}.json, {name}.png")


def _rounded(value: float) -> float:
    return round(value) if value >= 100 else round(value, 3)
