"""Runs benchmarks by name: `python -m bench hotpath`, or all of them."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

_OTHERS = {"__init__", "__main__", "pipeline_frames", "questions", "redis_server", "result", "served", "users"}
_NAMES = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem not in _OTHERS)


def main() -> None:
    wanted = [name for name in sys.argv[1:] if name != "all"] or _NAMES
    unknown = [name for name in wanted if name not in _NAMES]
    if unknown:
        raise SystemExit(f"There is no benchmark {', '.join(unknown)}: choose from {', '.join(_NAMES)}.")
    for name in wanted:
        print(f"bench {name} ...", file=sys.stderr)
        importlib.import_module(f"bench.{name}").measure().publish(name)


if __name__ == "__main__":
    main()
