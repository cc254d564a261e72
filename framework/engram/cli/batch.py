"""What the commands that are Spark jobs share: their Spark, and a line that says how far they are."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from engram.cli.output import show_progress
from engram.errors import Misuse
from engram.log.open import folder_beside
from engram.spark.progress import Progress
from engram.spark.spark import Spark

_ALL_CORES = "local[*]"


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkOptions:
    """As the command line has them. `log_file` is where Spark's own output goes, unless it is let through."""

    master: str = ""
    conf: tuple[str, ...] = ()
    output: bool = False
    log_file: Path


def options_beside(log: str, master: str, conf: Sequence[str] | None, *, output: bool) -> SparkOptions:
    """Spark's own output goes to a file beside the log."""
    log_file = Path(f"{folder_beside(log)}-spark.log")
    return SparkOptions(master=master, conf=tuple(conf or ()), output=output, log_file=log_file)


@contextmanager
def batch_spark(name: str, options: SparkOptions) -> Iterator[Spark]:
    """Spark for one job; gone afterwards."""
    show_progress("starting Spark ...")
    with Spark(
        name=f"engram {name}",
        master=options.master or _ALL_CORES,
        slots=1,
        log_file=None if options.output else options.log_file,
        settings=spark_settings(options.conf),
    ) as spark:
        yield spark
    show_progress("")


def spark_settings(texts: Sequence[str]) -> dict[str, str]:
    return dict(map(_setting, texts))


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise Misuse(f"--spark-conf {text!r} is not NAME=VALUE.")
    return name, value


def progress_of(doing: str, noun: str, pieces: int) -> Callable[[Progress], None]:
    """Shows `doing`: how many `noun` of all pieces are done, how many pieces are whole, and how fast it goes."""
    heard: dict[int, Progress] = {}
    started = time.monotonic()

    def show(word: Progress) -> None:
        heard[word.piece] = word
        done, of = sum(p.done for p in heard.values()), sum(p.of for p in heard.values())
        whole = sum(p.done >= p.of for p in heard.values())
        rate = done / max(time.monotonic() - started, 0.001)
        more = "" if len(heard) == pieces else "+"
        show_progress(f"{doing}: {done:,} of {of:,}{more} {noun}, {whole} of {pieces} partitions, {rate:,.0f}/s")

    return show
