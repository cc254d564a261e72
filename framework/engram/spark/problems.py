"""What Spark says when something goes wrong, in one sentence."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module

from engram import errors
from engram.errors import EngramError, Misuse, Unavailable
from engram.spark.job import cause_of

# The last line of a Python traceback, in the middle of Spark's own words.
_OURS = re.compile(r"^(engram\.[\w.]+)\.(\w+): (.+)$", re.MULTILINE)
# [SOME_CLASS.SUB] What is wrong. SQLSTATE: 42601 (line 1, pos 0)
_CONDITION = re.compile(r"^\[([A-Z0-9_.]+)\] (.+?)(?: SQLSTATE: .*)?$", re.MULTILINE)
_PLACE = re.compile(r"line (\d+),? pos (\d+)")


@contextmanager
def told_shortly() -> Iterator[None]:
    """Raises Spark's errors as ours: one that our own code raised in a task as it was, `Misuse` for a statement that is
    not right, and `Unavailable` for all else."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    # PySpark writes every error with its page of Java to stderr, besides raising it.
    loggers = [logging.getLogger(name) for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger")]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    except (PySparkException, Py4JError) as problem:
        raise short(problem) from problem
    finally:
        for logger, disabled in zip(loggers, before, strict=True):
            logger.disabled = disabled


def short(problem: Exception) -> EngramError:
    text = str(problem)
    ours = _OURS.findall(text)
    if ours:
        module, name, said = ours[-1]
        return _public(module, name)(said.strip())
    condition = _CONDITION.search(text)
    of_statement = type(problem).__name__ in {"AnalysisException", "ParseException", "IllegalArgumentException"}
    if condition is None:
        said = cause_of(problem)
    else:
        place = _PLACE.search(text)
        where = f" (line {place[1]}, column {int(place[2]) + 1})" if place else ""
        said = f"{condition[2].strip().rstrip('.')}{where}"
    if of_statement or (condition is not None and condition[1].split(".")[0] in _OF_VALUES):
        return Misuse(f"Spark cannot run the statement: {said}.")
    return Unavailable(f"The Spark job has failed: {said}. Run it again.")


def _public(module: str, name: str) -> type[EngramError]:
    """The error of `engram.errors` that one of ours is a kind of; `Misuse` for what nobody knows here."""
    found = None
    with suppress(ImportError):
        found = getattr(import_module(module), name, None)
    kinds = found.__mro__ if isinstance(found, type) else ()
    return next((kind for kind in kinds if issubclass(kind, EngramError) and _is_public(kind)), Misuse)


def _is_public(kind: type) -> bool:
    return getattr(errors, kind.__name__, None) is kind


# What a statement does to values that are not as it takes them to be: no other run will help.
_OF_VALUES = {
    "ARITHMETIC_OVERFLOW",
    "CAST_INVALID_INPUT",
    "CAST_OVERFLOW",
    "DIVIDE_BY_ZERO",
    "INVALID_ARRAY_INDEX",
    "INVALID_VARIANT_CAST",
    "REMAINDER_BY_ZERO",
    "USER_RAISED_EXCEPTION",
}
