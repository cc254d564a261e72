"""Runs benchmarks by name: `python -m bench hotpath`, or all of them."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from bench.quiet import errors_only

# A benchmark is a module that measures; the others are what they share.
_NAMES = sorted(p.stem for p in Path(__file__).parent.glob("*.py") if "\ndef measure(" in p.read_text())


def main() -> None:
    wanted = [name for name in sys.argv[1:] if name != "all"] or _NAMES
    unknown = [name for name in wanted if name not in _NAMES]
    if unknown:
        raise SystemExit(f"There is no benchmark {', '.join(unknown)}: choose from {', '.join(_NAMES)}.")
    errors_only()
    for name in wanted:
        print(f"bench {name} ...", file=sys.stderr)
        importlib.import_module(f"bench.{name}").measure().publish(name)


if __name__ == "__main__":
    main()
