"""Ways to be non-deterministic, each as a handler of its own. docs/reference/determinism.md is made from these."""

from __future__ import annotations

import os
import random
import secrets
import socket
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from time import time_ns
from typing import Any

from engram import App, Command, Context, Entity, Event
from engram.codec.codec import Codec
from engram.codec.record import Envelope, Kind, Record, encode_commands
from engram.image.image import Image
from engram.shard.determinism.guard import DeterminismGuard
from engram.shard.determinism.inspection import mentioned
from engram.shard.determinism.outside import Touch
from engram.testing import scenario
from pydantic import Field

MEMBERS = {"ada", "bob", "cleo"}
LAST = 0
DICE = random.Random(5)


@dataclass(slots=True, kw_only=True)
class Note(Entity, name="note"):
    texts: list[str] = field(default_factory=list)

    def stamp(self) -> None:
        self.texts.append(str(time.time()))


class Way(Command[Note, None]):
    """Base of all ways: each keeps something in its note that the next replay would not find again."""

    def handle(self, note: Note, ctx: Context) -> None:
        note.texts.append(str(self.touch(note, ctx)))

    def touch(self, note: Note, ctx: Context) -> object:
        raise NotImplementedError


class Happened(Event, name="happened"):
    id: str = Field(default_factory=lambda: str(uuid.uuid4()))


class ReadsTheTime(Way, name="reads_the_time"):
    def touch(self, note: Note, ctx: Context) -> object:
        return time.time()


class MeasuresTime(Way, name="measures_time"):
    def touch(self, note: Note, ctx: Context) -> object:
        return time.perf_counter()


class ImportsTheTime(Way, name="imports_the_time"):
    def touch(self, note: Note, ctx: Context) -> object:
        return time_ns()


class AsksForNow(Way, name="asks_for_now"):
    def touch(self, note: Note, ctx: Context) -> object:
        return datetime.now(UTC)


class AsksForToday(Way, name="asks_for_today"):
    def touch(self, note: Note, ctx: Context) -> object:
        return date.today()  # noqa: DTZ011 - that is the mistake


class Sleeps(Way, name="sleeps"):
    def touch(self, note: Note, ctx: Context) -> object:
        return time.sleep(0)


class HasItsEntityStamp(Way, name="has_its_entity_stamp"):
    def touch(self, note: Note, ctx: Context) -> object:
        return note.stamp()


class RollsDice(Way, name="rolls_dice"):
    def touch(self, note: Note, ctx: Context) -> object:
        return random.random()


class Chooses(Way, name="chooses"):
    def touch(self, note: Note, ctx: Context) -> object:
        return random.choice(sorted(MEMBERS))


class MakesADice(Way, name="makes_a_dice"):
    def touch(self, note: Note, ctx: Context) -> object:
        return random.Random().getrandbits(8)


class SharesDice(Way, name="shares_dice"):
    def touch(self, note: Note, ctx: Context) -> object:
        return DICE.randrange(6)


class DrawsASecret(Way, name="draws_a_secret"):
    def touch(self, note: Note, ctx: Context) -> object:
        return secrets.token_hex(4)


class DrawsBytes(Way, name="draws_bytes"):
    def touch(self, note: Note, ctx: Context) -> object:
        return os.urandom(4)


class MakesAUuid(Way, name="makes_a_uuid"):
    def touch(self, note: Note, ctx: Context) -> object:
        return uuid.uuid4()


class MakesAnOldUuid(Way, name="makes_an_old_uuid"):
    def touch(self, note: Note, ctx: Context) -> object:
        return uuid.uuid1()


class EmitsAUuid(Way, name="emits_a_uuid"):
    def touch(self, note: Note, ctx: Context) -> object:
        return ctx.emit(Happened())


class ReadsTheEnvironment(Way, name="reads_the_environment"):
    def touch(self, note: Note, ctx: Context) -> object:
        return os.environ["PATH"]


class GetsFromTheEnvironment(Way, name="gets_from_the_environment"):
    def touch(self, note: Note, ctx: Context) -> object:
        return os.getenv("HOME", "")


class AsksWhoItIs(Way, name="asks_who_it_is"):
    def touch(self, note: Note, ctx: Context) -> object:
        return os.getpid()


class ReadsAFile(Way, name="reads_a_file"):
    def touch(self, note: Note, ctx: Context) -> object:
        return Path(__file__).read_text()[:3]


class LooksForAFile(Way, name="looks_for_a_file"):
    def touch(self, note: Note, ctx: Context) -> object:
        return Path(__file__).exists()


class ListsAFolder(Way, name="lists_a_folder"):
    def touch(self, note: Note, ctx: Context) -> object:
        return len(os.listdir())  # noqa: PTH208 - as one finds it


class OpensASocket(Way, name="opens_a_socket"):
    def touch(self, note: Note, ctx: Context) -> object:
        return socket.socket().close()


class AsksTheWeb(Way, name="asks_the_web"):
    def touch(self, note: Note, ctx: Context) -> object:
        try:
            return urllib.request.urlopen("http://127.0.0.1:9/").status
        except OSError:
            return 0


class StartsAThread(Way, name="starts_a_thread"):
    def touch(self, note: Note, ctx: Context) -> object:
        thread = threading.Thread(target=str)
        thread.start()
        return thread.join()


class StartsAProcess(Way, name="starts_a_process"):
    def touch(self, note: Note, ctx: Context) -> object:
        return subprocess.run([sys.executable, "-c", ""], check=False).returncode


class TakesAnAddress(Way, name="takes_an_address"):
    def touch(self, note: Note, ctx: Context) -> object:
        return id(note)


class TakesAHash(Way, name="takes_a_hash"):
    def touch(self, note: Note, ctx: Context) -> object:
        return hash(note.key)


class WalksASet(Way, name="walks_a_set"):
    def touch(self, note: Note, ctx: Context) -> object:
        return [member.upper() for member in MEMBERS]


class ListsASet(Way, name="lists_a_set"):
    def touch(self, note: Note, ctx: Context) -> object:
        both = MEMBERS & {*note.texts, "ada"}
        return list(both)


class PopsFromASet(Way, name="pops_from_a_set"):
    def touch(self, note: Note, ctx: Context) -> object:
        left = set(note.texts) | {"a", "b"}
        return left.pop()


class CountsInItsModule(Way, name="counts_in_its_module"):
    def touch(self, note: Note, ctx: Context) -> object:
        global LAST  # noqa: PLW0603 - that is the mistake
        LAST += 1
        return LAST


WAYS: list[type[Way]] = Way.__subclasses__()


def app_of(way: type[Command[Any, Any]]) -> App:
    return App("notes", commands=[way], events=[Happened])


def told(way: type[Way]) -> str:
    """What its author is told by the test kit."""
    try:
        scenario(app_of(way)).when("n1", way()).handled()
    except AssertionError as problem:
        return str(problem)
    return ""


def told_while_it_runs(way: type[Way]) -> str:
    """What `engram run --guard` says of it when it is handled."""
    touches: list[Touch] = []
    app = app_of(way)
    guard = DeterminismGuard(app, lambda _, touch: touches.append(touch), closely=False)
    image = Image(0, Codec(app), around=guard.around)
    envelope = Envelope(way.__engram__.name or "", 1, "n1", b"{}", "s", 1)
    image.handle(Record(0, 0, Kind.COMMANDS, 0, encode_commands([envelope], "test")))
    return "; ".join(map(str, touches))


def found_before(way: type[Way]) -> str:
    """What `engram run --guard` says of it before anything runs."""
    return "; ".join(str(touch) for _, touch in mentioned(app_of(way)))
