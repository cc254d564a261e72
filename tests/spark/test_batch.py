"""Batch jobs on a real Spark: results in order, progress, errors, a task that is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from engram.errors import Corrupt, Misuse, Unavailable
from engram.spark.batch import run_batch
from engram.spark.progress import Progress, Tell
from engram.spark.spark import Spark

from tests.spark.quick import QUICK

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spark]:
    log_file = tmp_path_factory.mktemp("spark") / "spark.log"
    with Spark(name="batch", master="local[2,4]", slots=1, log_file=log_file, settings=QUICK) as spark:
        yield spark


def test_what_becomes_of_each_piece_comes_in_their_order(spark: Spark):
    """More pieces than slots: each is worked on once, and nobody hears of Spark's order."""

    def square(number: int, tell: Tell) -> int:
        for done in range(number + 1):
            tell(done, number)
        return number * number

    heard: list[Progress] = []
    assert run_batch(spark, [3, 1, 2], square, on_progress=heard.append) == [9, 1, 4]
    assert run_batch(spark, [], square) == []
    assert {(word.piece, word.of) for word in heard} <= {(0, 3), (1, 1), (2, 2)}


def test_an_error_of_ours_is_raised_again_as_it_was(spark: Spark):
    """Its kind and text are those that the task raised; a kind that only the task knows is the public one above it."""

    def fail(kind: str, _tell: Tell) -> None:
        if kind == "corrupt":
            raise Corrupt("Record 7 of partition 3 cannot be decoded.")

        class Special(Misuse):
            pass

        raise Special("There is no log there.")

    with pytest.raises(Corrupt, match=r"Record 7 of partition 3 cannot be decoded\."):
        run_batch(spark, ["corrupt"], fail)
    with pytest.raises(Misuse, match=r"There is no log there\."):
        run_batch(spark, ["misuse"], fail)


def test_a_bug_in_the_work_is_named(spark: Spark):
    """What no error of ours explains ends as one sentence with the Python error, not a page of Java."""

    def divide(number: int, _tell: Tell) -> float:
        return 1 / number

    with pytest.raises(Unavailable, match=r"failed: .*ZeroDivisionError: division by zero.*\. Run it again\."):
        run_batch(spark, [0], divide)


def test_a_task_whose_process_is_killed_is_done_again(spark: Spark, tmp_path: Path):
    """SIGKILL in the middle of a piece: Spark starts it again, and the job ends as if nothing had been."""

    def die_once(place: str, tell: Tell) -> str:
        marker = Path(place)
        tell(1, 2)
        if not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return "alive"

    assert run_batch(spark, [str(tmp_path / "a"), str(tmp_path / "b")], die_once) == ["alive", "alive"]
