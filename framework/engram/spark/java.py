"""Java: Spark needs one of version 17 or newer."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from engram.errors import Misuse

_INSTALL = "Install a JDK of version 17 or newer (Debian: apt-get install openjdk-17-jre-headless) or set JAVA_HOME."


def java_version() -> tuple[Path, int]:
    """The `java` that Spark will use and its major version; raises `Misuse` when it is missing or too old."""
    home = os.environ.get("JAVA_HOME")
    java = Path(home) / "bin" / "java" if home else Path(shutil.which("java") or "")
    if not java.is_file():
        where = f"JAVA_HOME is {home}, but {java} is not there." if home else "There is no java on the PATH."
        raise Misuse(f"Spark needs Java 17 or newer. {where} {_INSTALL}")
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr  # noqa: S603
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    if found is None:
        raise Misuse(f"{java} does not say its version. {_INSTALL}")
    if int(found[1]) < 17:
        raise Misuse(f"Spark needs Java 17 or newer, but {java} is version {found[1]}. {_INSTALL}")
    return java, int(found[1])
