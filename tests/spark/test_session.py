"""`engram.spark.session`: the formats in a process of one's own, as a notebook has it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.spark.running import ROOT, START_S
from tests.spark.story import PEOPLE, SOCIAL, Story

pytestmark = pytest.mark.spark

# Python of the docs that needs Spark: tests/test_docs.py runs the rest.
BLOCKS = re.compile(r"^```python spark\n(.*?)^```", re.MULTILINE | re.DOTALL)
AGAIN = f"""
import json

spark.stop()
spark = engram.spark.session(master="local[1]", settings={{"spark.sql.codegen.wholeStage": "false"}})
formats = {{
    "log": {{}}, "state": {{"entity": "user"}}, "events": {{}}, "replies": {{}}, "rows": {{"model": "most_followed"}}
}}
where = {{"app": "{SOCIAL}", "log": "sqlite:data/social.db", "snapshots": "snapshots"}}
told = {{
    form: spark.read.format(f"engram.{{form}}").options(**where, **more).load().count()
    for form, more in formats.items()
}}
try:
    engram.spark.session()
except engram.Misuse as problem:
    told["refused"] = str(problem)
told["settings"] = [spark.sparkContext.defaultParallelism, spark.conf.get("spark.sql.codegen.wholeStage")]
told["goes on"] = spark.range(3).count()
print(json.dumps(told))
"""


def test_a_session_can_be_had_again_after_it_was_stopped(tmp_path: Path):
    """What the docs show runs; then it is stopped, and the next has its own settings and reads every format. One beside
    it is refused, and leaves it alone."""
    (tmp_path / "data").mkdir()
    with closing(Story(tmp_path, f"sqlite:{tmp_path / 'data' / 'social.db'}")) as story:
        story.live()
        (block,) = BLOCKS.findall((ROOT / "docs" / "reference" / "dataframes.md").read_text())
        said = subprocess.run(
            [sys.executable, "-c", block + AGAIN],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=2 * START_S,
            check=False,
        )

    assert said.returncode == 0, said.stderr
    *shown, last = said.stdout.splitlines()
    told = json.loads(last)
    assert "|key|count|" in shown
    assert told["settings"] == [1, "false"]
    assert told["log"] > told["replies"] == story.sent
    assert (told["state"], told["rows"]) == (len(PEOPLE), len(PEOPLE) - 1)
    assert told["events"] > len(PEOPLE)
    assert told["refused"].startswith("A Spark runs in this process already")
    assert told["goes on"] == 3
