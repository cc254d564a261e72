"""A state that does not fit into memory, in real processes that may not have more."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.shard.larger import COUNT, LETTERS

# Less than the state, encoded. Of this, an interpreter with all that is imported takes a quarter.
LIMIT_MB = 420


def _run(folder: Path, what: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.shard.larger", str(folder), str(LIMIT_MB), what]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def test_a_state_larger_than_memory_is_handled_snapshotted_merged_and_restarted(tmp_path: Path):
    """Four processes, each with less memory than the encoded state has, by the kernel's limit: the first makes it and
    writes all of it, the second loads it and writes what has changed, the third merges, the fourth writes a savepoint.
    Each finds what the one before has left, by the digest of all of it."""
    fill, change, more, look = (_run(tmp_path, what) for what in ("fill", "change", "more", "look"))

    assert COUNT * LETTERS > LIMIT_MB * 2**20
    assert [told["entities"] for told in (fill, change, more, look)] == [0, COUNT, COUNT, COUNT]
    assert [told["loaded"] for told in (change, more, look)] == [told["left"] for told in (fill, change, more)]
    assert [told["published"] for told in (fill, change, more, look)] == [
        told["left"] for told in (fill, change, more, look)
    ]
    assert len({told["left"] for told in (fill, change, more)}) == 3
    assert [told["steps"] for told in (fill, change, more, look)] == [1, 2, 1, 1]
    assert max(told["peak_mb"] for told in (fill, change, more, look)) < LIMIT_MB
