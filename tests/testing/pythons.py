"""`make pythons OTHER=python3.12`: the same bytes from another Python, in an environment of its own.

What the project needs is installed there once, but for Spark, which is large, and no part of it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_LARGE = ("pyspark", "pandas")


def bytes_of(python: str, *, hash_seed: str = "random") -> dict[str, Any]:
    """What `tests.testing.same_bytes` comes to in a process of its own."""
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": f"{ROOT}:{ROOT / 'framework'}"}
    command = [python, "-m", "tests.testing.same_bytes"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{python} could not run it:\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def needed() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [
        package
        for package in project["dependencies"] + project["optional-dependencies"]["testing"]
        if not package.startswith(_LARGE)
    ]


def environment_of(other: str) -> str:
    """An interpreter with what is needed, made from another Python that is there."""
    found, asked = shutil.which(other) or "", "import sys; print('%d.%d' % sys.version_info[:2])"
    said = subprocess.run([found, "-c", asked], capture_output=True, text=True, check=False) if found else None
    if said is None or said.returncode:  # pyenv has names on the PATH of what it does not have
        raise SystemExit(f"There is no {other} here: install it, and name it with make pythons OTHER=/path/to/python.")
    version = said.stdout.strip()
    if tuple(map(int, version.split("."))) < (3, 11):
        raise SystemExit(f"{found} is Python {version}: Engram needs 3.11 or newer.")
    folder = Path(sys.prefix) / f"other-{version}"
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([found, "-m", "venv", str(folder)], check=True)
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", *needed()], check=True)
    return str(python)


def main() -> None:
    other = environment_of(sys.argv[1])
    here, there = bytes_of(sys.executable, hash_seed="1"), bytes_of(other, hash_seed="2")
    versions = here.pop("python"), there.pop("python")
    if here != there:
        raise SystemExit(f"Python {versions[0]} and {versions[1]} come to different bytes: {here} and {there}")
    sys.stdout.write(
        f"Python {versions[0]} and {versions[1]}, with hash seeds 1 and 2, come to the same bytes: {here}\n"
    )


if __name__ == "__main__":
    main()
