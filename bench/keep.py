"""Keeps results of a run in the docs: `python -m bench.keep latency gateway`, after `make bench NAME=...`.

Each result is copied to docs/explanation/figures/, with its plot, and the page is made anew from all that are there.
What is in NAME.md beside them is written by hand: what the figures say, and where the time goes when an aim is missed.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from bench.result import FOLDER, Machine

_PAGE = Path(__file__).parent.parent / "docs" / "explanation" / "figures.md"
_KEPT = _PAGE.with_suffix("")
_HEAD = """# Figures

What was measured, each benchmark in one run on one machine: ratios within a run are what counts, because another
machine has other figures. Of each case there is the median of its repetitions, and how far these spread (greatest minus
least, over the median). Made by `python -m bench.keep` from the results of `make bench`.
"""


def main() -> None:
    _KEPT.mkdir(exist_ok=True)
    for name in sys.argv[1:]:
        if not (FOLDER / f"{name}.json").exists():
            raise SystemExit(f"There is no result of {name}: run make bench NAME={name} before.")
        for suffix in (".json", ".png"):
            shutil.copy(FOLDER / f"{name}{suffix}", _KEPT)
    _PAGE.write_text("\n".join([_HEAD, *map(_section, sorted(_KEPT.glob("*.json")))]))


def _section(path: Path) -> str:
    name, content = path.stem, json.loads(path.read_text())
    note = path.with_suffix(".md")
    return "\n".join(
        [
            f"## {name}",
            "",
            f"{content['title']}. `make bench NAME={name}`; {Machine(**content['machine'])}.",
            "",
            *([note.read_text()] if note.exists() else []),
            "| case | median | unit | spread |",
            "|---|---:|---|---:|",
            *(f"| {r['case'].strip()} | {r['median']:,} | {r['unit']} | {r['spread']:.0%} |" for r in content["rows"]),
            "",
            *([_aims(content["aims"]), ""] if content["aims"] else []),
            f"![{name}](figures/{name}.png)",
            "",
        ]
    )


def _aims(aims: list[dict[str, Any]]) -> str:
    rows = [f"| {a['name']} | {a['aim']} | {a['value']:,} | {'met' if a['met'] else '**missed**'} |" for a in aims]
    return "\n".join(["| aim | wanted | came out | |", "|---|---|---:|---|", *rows])


if __name__ == "__main__":
    main()
