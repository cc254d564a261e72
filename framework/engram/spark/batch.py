"""Batch jobs: pieces of work, mostly one for each partition, as tasks of one Spark job, with progress."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from engram import errors
from engram.errors import EngramError, Unavailable
from engram.spark.job import cause_of
from engram.spark.progress import Door, Progress, ProgressListener, Tell
from engram.spark.spark import Spark
from engram.spark.worker import prepare_worker

P = TypeVar("P")
D = TypeVar("D")

# Runs in an executor, for one piece. It may run again, also while a first run of it is still alive somewhere: what it
# leaves behind must be the same.
Work = Callable[[P, Tell], D]
# How a step of a job is run: `run_batch`, unless a test puts something between.
Run = Callable[..., list[Any]]


def run_batch(
    spark: Spark,
    pieces: Sequence[P],
    work: Work[P, D],
    *,
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> list[D]:
    """What `work` makes of each piece, in their order. Pieces, work and what it gives back are sent by Spark.

    An error of Engram's that `work` raises ends the job and is raised here again. A task whose process dies is started
    again by Spark; when that does not help, `Unavailable` says so, and the job can be run again.
    """
    if not pieces:
        return []
    with closing(ProgressListener(on_progress, host=spark.host)) as listener:
        task = _Task(work=work, path=spark.settings.path, door=listener.door)
        numbered = spark.context.parallelize(list(enumerate(pieces)), len(pieces))
        with spark_problems():
            ended: list[_Ended] = numbered.mapPartitions(task).collect()
    for end in ended:
        if end.error:
            raise getattr(errors, end.error)(end.text)
    return [end.done for end in sorted(ended, key=lambda end: end.piece)]


@contextmanager
def spark_problems() -> Iterator[None]:
    """What Spark raises becomes `Unavailable`, in one sentence."""
    try:
        yield
    except Exception as problem:
        if _is_of_spark(problem):
            raise Unavailable(f"The Spark job has failed: {cause_of(problem)}. Run it again.") from problem
        raise


class _Ended(NamedTuple):
    piece: int
    done: Any
    error: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class _Task(Generic[P, D]):
    work: Work[P, D]
    path: tuple[str, ...]
    door: Door

    def __call__(self, pieces: Iterable[tuple[int, P]]) -> Iterator[_Ended]:
        prepare_worker(self.path)
        for number, piece in pieces:
            try:
                yield _Ended(number, self.work(piece, self.door.teller(number)))
            except EngramError as problem:
                yield _Ended(number, None, _public(problem), str(problem))


def _public(problem: EngramError) -> str:
    """The name of the error in `engram.errors` that it is a kind of."""
    names = (cls.__name__ for cls in type(problem).__mro__ if getattr(errors, cls.__name__, None) is cls)
    return str(next(names))


def _is_of_spark(problem: Exception) -> bool:
    return type(problem).__module__.partition(".")[0] in {"py4j", "pyspark"}
