"""Kafka's jars: fetched by Maven once, kept outside the repository."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from engram.errors import Misuse, Unavailable

KAFKA_VERSION = "4.1.2"
# Kafka logs through SLF4J and brings no binding: without one it would fail without a word.
_SLF4J_VERSION = "1.7.36"
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:2.8:copy-dependencies"
_OVERRIDE = "ENGRAM_KAFKA_JARS"
_TRIES = 3
# A first fetch is about 45 MB over what may be a slow line; a Maven that hangs for longer is given up.
_TRY_S = 600.0
_WAY_OUT = f"or set {_OVERRIDE} to a folder that holds the jars of a Kafka (such as libs/ of its distribution)."

_POM = f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>engram</groupId>
  <artifactId>kafka-jars</artifactId>
  <version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka_2.13</artifactId>
      <version>{KAFKA_VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.slf4j</groupId>
      <artifactId>slf4j-simple</artifactId>
      <version>{_SLF4J_VERSION}</version>
    </dependency>
  </dependencies>
</project>
"""


def kafka_jars() -> Path:
    """The folder with Kafka's jars. The first call on a machine fetches them and says so on stderr; several processes
    may call at once, and one of them fetches. The folder is whole or not there.

    Raises `Unavailable` when Maven is missing or reaches no registry, `Misuse` when ENGRAM_KAFKA_JARS names a folder
    without them.
    """
    named = os.environ.get(_OVERRIDE)
    if named:
        return _checked(Path(named).expanduser().absolute())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").expanduser().absolute() / "engram"
    jars = cache / f"kafka-{KAFKA_VERSION}"
    if jars.is_dir():
        return jars
    maven = shutil.which("mvn")
    if maven is None:
        raise Unavailable(
            "Kafka's jars are fetched by Maven, and there is no mvn on the PATH: install it (Debian: apt-get install "
            f"maven), {_WAY_OUT}"
        )
    cache.mkdir(parents=True, exist_ok=True)
    with _alone(cache / f"kafka-{KAFKA_VERSION}.lock"):
        if not jars.is_dir():
            _fetch(maven, jars)
    return jars


def _checked(jars: Path) -> Path:
    if not any(jars.glob("kafka_*.jar")):
        raise Misuse(
            f"{_OVERRIDE} is {jars}, and no kafka_*.jar is there: name a folder with Kafka's jars, or unset it."
        )
    return jars


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Holds the lock; the system frees it also when this process is killed."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch(maven: str, jars: Path) -> None:
    unfinished = f"{jars.name}-unfinished-"
    for left in jars.parent.glob(f"{unfinished}*"):  # by a process that was killed: only one fetches at a time
        shutil.rmtree(left, ignore_errors=True)
    sys.stderr.write(f"Fetching Kafka {KAFKA_VERSION} by Maven into {jars} (once; about 45 MB) ...\n")
    sys.stderr.flush()
    for _ in range(_TRIES):
        with tempfile.TemporaryDirectory(prefix=unfinished, dir=jars.parent, ignore_cleanup_errors=True) as folder:
            problem = _run(maven, Path(folder))
            if problem is None:
                (Path(folder) / "jars").rename(jars)
                return
    raise Unavailable(
        f"Maven could not fetch Kafka {KAFKA_VERSION} in {_TRIES} tries ({problem}): check the network and Maven's "
        f"settings.xml, {_WAY_OUT}"
    )


def _run(maven: str, folder: Path) -> str | None:
    """What went wrong, in Maven's own words; None when all jars are there."""
    (folder / "pom.xml").write_text(_POM)
    command = [maven, "-B", "-q", _COPY, f"-DoutputDirectory={folder / 'jars'}"]
    try:
        done = subprocess.run(  # noqa: S603 - Maven, from the PATH
            command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=_TRY_S
        )
    except subprocess.TimeoutExpired:
        return f"it did not end within {_TRY_S:.0f} s"
    if done.returncode == 0:
        return None
    said = re.search(r"\[ERROR\] (.*\S)", done.stdout)
    return said[1] if said else f"it ended with exit code {done.returncode}"
