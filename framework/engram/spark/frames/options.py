"""What `.option(...)` says of where an app's data is."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from engram.codec.codec import Codec
from engram.errors import Misuse
from engram.log.base import Log
from engram.log.open import absolute_url, folder_beside, open_log
from engram.model.app import App
from engram.shard.reference import resolve_app
from engram.snapshots.open import absolute_store, open_store
from engram.snapshots.parted import PartedSnapshots

WHERE = ("app", "log", "snapshots")


@dataclass(frozen=True, slots=True)
class Where:
    """An app, and where its log and its snapshots are. `reference` is MODULE:APP, or only the app's name, without which
    its classes are not known."""

    reference: str
    log_url: str = ""
    snapshots_url: str = ""

    @classmethod
    def of(cls, options: Mapping[str, str], form: str, more: Collection[str] = ()) -> Where:
        """Raises `Misuse` for options that are missing, or that nobody knows."""
        known = (*WHERE, *more)
        unknown = sorted(name for name in options if name.lower() not in {each.lower() for each in known})
        if unknown:
            raise Misuse(f"{form} has no option {', '.join(unknown)}: it knows {', '.join(known)}.")
        reference = options.get("app", "")
        if not reference:
            raise Misuse(f"{form} needs the option app: MODULE:APP, or the app's name.")
        log, snapshots = options.get("log", ""), options.get("snapshots", "")
        if not log and not snapshots:
            raise Misuse(f"{form} needs the option log, or snapshots: the URL of where they are.")
        return cls(reference, absolute_url(log) if log else "", absolute_store(snapshots) if snapshots else "")

    @property
    def app(self) -> App | None:
        """None if only its name is known."""
        return resolve_app(self.reference) if ":" in self.reference else None

    @property
    def name(self) -> str:
        return self.reference if self.app is None else self.app.name

    def codec(self, what: str) -> Codec:
        """Raises `Misuse` when the app's classes are not known, and `what` needs them."""
        if self.app is None:
            raise Misuse(f"{what} needs the app's classes: write the option app as MODULE:APP, not {self.reference}.")
        return Codec(self.app)

    def open_log(self, what: str) -> Log:
        if not self.log_url:
            raise Misuse(f"{what} needs the option log: sqlite:PATH or kafka://HOST:PORT/TOPIC.")
        return open_log(self.log_url, self.name)

    def open_store(self) -> PartedSnapshots:
        """Raises `Misuse` when there is none."""
        url = self.snapshots_url or absolute_store(f"{folder_beside(self.log_url)}-snapshots")
        return open_store(url, self.name, create=False)

    def store_if_any(self) -> PartedSnapshots | None:
        """None when there is none, and none was named."""
        try:
            return self.open_store()
        except Misuse:
            if self.snapshots_url:
                raise
            return None


def number_of(options: Mapping[str, str], name: str, form: str, default: int) -> int:
    """An option that is a number of records. Raises `Misuse` for one that is none."""
    text = options.get(name, str(default))
    if not text.isdecimal() or (int(text) == 0 and name in options):
        raise Misuse(f"The option {name} of {form} is a number from 1 on, not {text!r}.")
    return int(text)
