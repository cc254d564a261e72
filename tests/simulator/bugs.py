"""Bugs that somebody could make, planted: each replaces one method of production's code, and must be found.

Here alone: production knows nothing of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from engram.image.contents import Copied, Memory
from engram.image.dedupe import Dedupe
from engram.image.freeze import Freeze
from engram.image.home import Home
from engram.image.image import Image
from engram.image.timers import Timers
from engram.image.undo import UndoLog
from engram.log.group import _Lane
from engram.model.entity import Shared
from engram.model.position import Position
from engram.shard import outbox as outboxes
from engram.shard.flusher import Flusher
from engram.shard.outbox import Outbox
from engram.shard.owned import Owned
from engram.snapshots import parted
from engram.snapshots.files import FileStorage
from engram.snapshots.parted import PartedSnapshots
from engram.testing.simulator.disk import DiskLine

Patch = pytest.MonkeyPatch


@dataclass(frozen=True)
class Bug:
    """What was done wrong, and how."""

    told: str
    plant: Callable[[Patch], None]

    def __str__(self) -> str:
        return self.plant.__name__


BUGS: list[Bug] = []


def bug(told: str) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    def listed(plant: Callable[[Patch], None]) -> Callable[[Patch], None]:
        BUGS.append(Bug(told, plant))
        return plant

    return listed


# The store


@bug("a file of a snapshot gets its name before it is synced")
def skip_an_fsync(patch: Patch) -> None:
    patch.setattr(DiskLine, "sync", lambda *_: None)


@bug("a folder that was made is not synced into the one above it")
def skip_the_sync_of_a_folder(patch: Patch) -> None:
    patch.setattr(FileStorage, "_sync_above", lambda *_: None)


@bug("the manifest is written before the parts that it names")
def publish_the_manifest_early(patch: Patch) -> None:
    def early(self: Any, writing: Any, contents: Any, partition: int, created: int) -> Any:
        storage, waiting = self._storage, {}
        write, read, size = storage.write, storage.read, storage.size
        patch.setattr(storage, "write", waiting.__setitem__)
        patch.setattr(storage, "read", lambda path: waiting[path] if path in waiting else read(path))
        patch.setattr(storage, "size", lambda path: len(waiting[path]) if path in waiting else size(path))
        try:
            manifest = of_old(self, writing, contents, partition, created)
        finally:
            patch.setattr(storage, "write", write)
            patch.setattr(storage, "read", read)
            patch.setattr(storage, "size", size)
        write(f"{writing._folder}/{manifest.name}.json", manifest.encode())
        for path, data in waiting.items():
            write(path, data)
        return manifest

    of_old = PartedSnapshots._write
    patch.setattr(PartedSnapshots, "_write", early)


@bug("retention removes folders that newer snapshots go on from")
def retire_too_much(patch: Patch) -> None:
    of_old = parted.superfluous

    def superfluous(names: Any, manifests: Any, verified: Any, *, keep: int) -> list[str]:
        alone = {name: m.model_copy(update={"parts": m.parts[-2:]}) for name, m in manifests.items()}
        return of_old(names, alone, verified, keep=keep)

    patch.setattr(parted, "superfluous", superfluous)


# Snapshots and recovery


@bug("the session that was active last is not in the snapshot")
def forget_a_dedupe_entry(patch: Patch) -> None:
    of_old = Copied.memory

    def memory(self: Copied) -> Memory:
        return of_old(self._replace(sessions=dict(list(self.sessions.items())[:-1])))

    patch.setattr(Copied, "memory", memory)


@bug("a timer does not come back from a snapshot")
def lose_a_timer(patch: Patch) -> None:
    of_old = Image._load_memory

    def load(self: Image, memory: Memory) -> None:
        of_old(self, memory)
        self.timers = Timers(memory.timers[1:])

    patch.setattr(Image, "_load_memory", load)


@bug("what is shared is not in snapshots")
def leave_shared_rules_out(patch: Patch) -> None:
    of_old = Freeze.__init__

    def freeze(self: Freeze, copied: Copied, homes: Any, *, whole: bool) -> None:
        all_homes: list[Home] = list(homes)
        of_old(self, copied, all_homes, whole=whole)
        for home in all_homes:
            if issubclass(home.cls, Shared):
                part: Any = self._parts[home]
                part.columns = part.columns._replace(keys=[], states=[], rows=[])

    patch.setattr(Freeze, "__init__", freeze)


@bug("a snapshot is published before what its commands sent is in the log")
def send_too_late(patch: Patch) -> None:
    patch.setattr(Flusher, "wait", lambda *_: None)


@bug("after a start the watermark of one origin counts for all")
def reuse_a_watermark(patch: Patch) -> None:
    of_old = Image._load_memory

    def load(self: Image, memory: Memory) -> None:
        of_old(self, memory)
        if self.origins:
            self.origins = dict.fromkeys(self.origins, max(self.origins.values()))

    patch.setattr(Image, "_load_memory", load)


@bug("an entity that changes during a freeze is encoded as it is then")
def freeze_a_moment_late(patch: Patch) -> None:
    patch.setattr(Freeze, "before_changes", lambda *_: None)


@bug("what was dirty when a snapshot failed is not in the next one")
def forget_what_was_dirty(patch: Patch) -> None:
    patch.setattr(Freeze, "give_back", lambda *_: None)


# The log, and who may


@bug("an owner goes on after it has read of a newer one")
def drop_the_epoch_check(patch: Patch) -> None:
    patch.setattr(Owned, "check_epoch", lambda *_: None)


@bug("commands are acknowledged before they are appended")
def acknowledge_too_early(patch: Patch) -> None:
    def commit(self: Any, taken: list[Any]) -> None:
        ends = {partition: self._log._log.end(partition) for partition, _, _ in taken}
        counted: dict[int, int] = {}
        settled = []
        for partition, _, ticket in sorted(taken, key=lambda item: item[0]):
            settled.append((ticket, Position(partition, ends[partition], counted.get(partition, 0))))
            counted[partition] = counted.get(partition, 0) + 1
        self._on_settled(settled)
        on_settled, self._on_settled = self._on_settled, lambda _: None
        of_old(self, taken)
        self._on_settled = on_settled

    of_old = _Lane._commit
    patch.setattr(_Lane, "_commit", commit)


@bug("effects that come while an append is under way are taken for sent")
def lose_effects(patch: Patch) -> None:
    of_old = Outbox.sent

    def sent(self: Outbox) -> None:
        of_old(self)
        self.drop()

    patch.setattr(Outbox, "sent", sent)


@bug("an append that failed is not tried again")
def give_effects_up(patch: Patch) -> None:
    of_old = outboxes.append_taken

    def append(taken: Any, log: Any) -> None:
        try:
            of_old(taken, log)
        except Exception:
            for outbox in taken:
                outbox.sent()
            raise

    patch.setattr("engram.shard.flusher.append_taken", append)


@bug("a command that was handled before is handled again")
def handle_twice(patch: Patch) -> None:
    patch.setattr("engram.image.image.all_new", lambda *_: True)


@bug("an idempotency key is forgotten")
def forget_a_key(patch: Patch) -> None:
    patch.setattr(Dedupe, "recall_key", lambda *_: None)


@bug("messages that came before are handled again")
def take_messages_twice(patch: Patch) -> None:
    of_old = Image._handle_messages

    def handle(self: Image, batch: Any, handled: Any) -> None:
        self.origins.pop(batch.header.origin_partition, None)
        of_old(self, batch, handled)

    patch.setattr(Image, "_handle_messages", handle)


# Handling


@bug("the first change of a handler that raises is not taken back")
def undo_too_little(patch: Patch) -> None:
    of_old = UndoLog.roll_back

    def roll_back(self: UndoLog) -> None:
        del self[:1]
        of_old(self)

    patch.setattr(UndoLog, "roll_back", roll_back)


@bug("a read model is not told of entities that messages have changed")
def leave_rows_behind(patch: Patch) -> None:
    of_old = Image._handle_messages

    def handle(self: Image, batch: Any, handled: Any) -> None:
        models, self.read_models = self.read_models, None
        of_old(self, batch, handled)
        self.read_models = models

    patch.setattr(Image, "_handle_messages", handle)


@bug("time goes back with a clock that does")
def let_time_go_back(patch: Patch) -> None:
    of_old = Image._work

    def work(self: Image, record: Any, content: Any, handled: Any) -> None:
        self.time = record.time
        of_old(self, record, content, handled)

    patch.setattr(Image, "_work", work)
