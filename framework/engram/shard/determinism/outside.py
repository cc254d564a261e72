"""What is outside of a handler's world: things that a replay would find changed, and the doors to use instead."""

from __future__ import annotations

import os
import random
from datetime import date
from types import CodeType, ModuleType
from typing import Any, NamedTuple


class Outside(NamedTuple):
    """A kind of thing that handlers must not touch, and what to do instead."""

    name: str
    instead: str


class Touch(NamedTuple):
    """One such thing that a handler touched: by which function, and where in the app's code."""

    outside: Outside
    function: str
    where: str

    def __str__(self) -> str:
        return f"touched {self.outside.name} ({self.function}, in {self.where}): {self.outside.instead}"


CLOCK = Outside("the clock", "use ctx.now, which is the record's time, and ctx.schedule for later")
CHANCE = Outside("randomness", "use ctx.random, which is seeded by the position")
NEW_IDS = Outside("randomness", "use ctx.new_id(), which follows from the position")
ENVIRONMENT = Outside("the environment", "put it into the command, or send a Broadcast and read it with ctx.shared")
FILES = Outside("files", "read it where the command is made, and put what is needed into the command")
NETWORK = Outside("the network", "emit an event, let a sink do it, and send a command with what came of it")
THREADS = Outside("threads or processes", "emit an event, let a sink do it, and send a command with what came of it")
IDENTITY = Outside("an address in memory", "use the entity's key, or a field")
HASHES = Outside("a hash, which differs from process to process", "use hashlib, or the value itself")
ORDER = Outside("the order of a set", "use sorted(...), or a dict with None as values")
VARIABLES = Outside("a variable of its module", "use a field of the entity, or a Shared object with ctx.shared")

_TIMES = "time monotonic perf_counter process_time thread_time clock_gettime"
_CLOCKS = [*_TIMES.split(), *(f"{name}_ns" for name in _TIMES.split()), "localtime", "ctime", "asctime", "sleep"]
_FUNCTIONS: dict[tuple[str, str], Outside] = {
    **{("time", name): CLOCK for name in _CLOCKS},
    ("builtins", "input"): FILES,
    ("_io", "open"): FILES,
    ("_uuid", "generate_time_safe"): NEW_IDS,
    ("_thread", "start_new_thread"): THREADS,
    ("_posixsubprocess", "fork_exec"): THREADS,
}
# Libraries use these for what comes to nothing, such as a repr that looks for itself: only the app's own calls count.
_BY_THE_APP_ITSELF: dict[tuple[str, str], Outside] = {
    ("builtins", "id"): IDENTITY,
    ("builtins", "hash"): HASHES,
    ("_thread", "get_ident"): THREADS,
    ("_thread", "get_native_id"): THREADS,
}
_OF_THE_SYSTEM = {
    "urandom": CHANCE,
    "getrandom": CHANCE,
    **dict.fromkeys(("getpid", "getppid", "uname", "getcwd", "getuid", "getlogin", "cpu_count", "times"), ENVIRONMENT),
    **dict.fromkeys(("fork", "system", "posix_spawn", "posix_spawnp", "kill", "execv", "execve"), THREADS),
}
_HARMLESS = {"fspath"}
_DATES = {"now", "utcnow", "today"}
_MEANINGS = {"uuid.": NEW_IDS, "urllib.": NETWORK, "http.": NETWORK, "socket.": NETWORK, "subprocess.": THREADS}
# The beginning of an audit event's name; the first that fits counts.
_EVENTS = (
    ("open", FILES),
    ("os.system", THREADS),
    ("os.fork", THREADS),
    ("os.posix_spawn", THREADS),
    ("os.exec", THREADS),
    ("os.kill", THREADS),
    ("os.putenv", ENVIRONMENT),
    ("os.unsetenv", ENVIRONMENT),
    ("os.", FILES),
    ("shutil.", FILES),
    ("tempfile.", FILES),
    ("glob.", FILES),
    ("pathlib.", FILES),
    ("fcntl.", FILES),
    ("mmap.", FILES),
    ("sqlite3.connect", FILES),
    ("builtins.input", FILES),
    ("socket.", NETWORK),
    ("urllib.", NETWORK),
    ("http.", NETWORK),
    ("smtplib.", NETWORK),
    ("ftplib.", NETWORK),
    ("subprocess.", THREADS),
    ("_thread.start_new_thread", THREADS),
    ("time.sleep", CLOCK),
)


def of_function(function: Any, *, by_the_app: bool) -> Outside | None:
    """What a function that is written in C touches; None if that is nothing outside."""
    owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
    if isinstance(owner, ModuleType):
        module = owner.__name__
        if module in ("posix", "nt"):
            return None if name in _HARMLESS else _OF_THE_SYSTEM.get(name, FILES)
        if module == "_socket":
            return NETWORK
        return _FUNCTIONS.get((module, name)) or (_BY_THE_APP_ITSELF.get((module, name)) if by_the_app else None)
    if isinstance(owner, type):
        return CLOCK if name in _DATES and issubclass(owner, date) else None
    return CHANCE if isinstance(owner, random.Random) else None


def name_of(function: Any) -> str:
    """A function in C, as it is called by whoever uses it."""
    owner = function.__self__
    if isinstance(owner, ModuleType):
        module = {"posix": "os", "nt": "os", "_io": "", "builtins": ""}.get(owner.__name__, owner.__name__.lstrip("_"))
        return f"{module}.{function.__name__}".lstrip(".")
    if isinstance(owner, type):
        return f"{owner.__module__}.{owner.__qualname__}.{function.__name__}"
    return f"{type(owner).__module__}.{function.__name__}"


def meant(outside: Outside, function: str) -> Outside:
    """What the app's own call is about: who makes a UUID wants an id, and who asks the web touches the environment
    only by the way."""
    return next((meaning for start, meaning in _MEANINGS.items() if function.startswith(start)), outside)


def of_event(event: str) -> Outside | None:
    """What an audit event of the interpreter is about."""
    return next((outside for start, outside in _EVENTS if event.startswith(start)), None)


def _environment() -> dict[CodeType, str]:
    """The methods of `os.environ`, which are written in Python."""
    methods = vars(type(os.environ)).items()
    return {method.__code__: f"os.environ.{name}" for name, method in methods if hasattr(method, "__code__")}


ENVIRON = _environment()
SEEDING = random.Random.__init__.__code__
