"""What is simulated: an app, what clients send and ask, and what must hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from engram.codec.codec import Codec
from engram.codec.record import Envelope
from engram.model.app import App
from engram.model.command import Command
from engram.model.query import Query
from engram.model.read_model import Search
from engram.testing.simulator.state import State

Invariant = Callable[[State], object]


class Question(NamedTuple):
    """A query of an entity, or a look into a read model: then `query` is None, and `key` the place there."""

    key: str
    query: Query[Any, Any] | None
    model: str = ""


@dataclass(frozen=True)
class Subject:
    """`apps` are the versions of one app, in their order. `commands` has what clients choose from, with the keys. An
    invariant is called with the `State` of everything at rest, and raises what is wrong."""

    apps: Sequence[App]
    commands: Sequence[tuple[str, Command[Any, Any]]]
    invariants: Sequence[Invariant] = ()
    reference: str = field(default="", compare=False)  # where it is found, for programs that are printed

    def only(self, commands: Sequence[tuple[str, str, str]]) -> Subject:
        """The same with these commands: key, name, and JSON."""
        codec = self.codecs[self.apps[0].version]
        versions = {name: codec.version_of(cls) for name, cls in self.apps[0].commands.items()}
        made = [(key, codec.decode_command(name, versions[name], body.encode())) for key, name, body in commands]
        return replace(self, commands=made)

    @cached_property
    def codecs(self) -> dict[int, Codec]:
        """By the app's version; made once, which takes a while."""
        return {app.version: Codec(app) for app in self.apps}

    @cached_property
    def keys(self) -> set[str]:
        """Those that commands are for."""
        return {key for key, _ in self.commands}

    @cached_property
    def questions(self) -> list[Question]:
        """Queries that need no argument, and looks at the keys that commands are for."""
        app = self.apps[0]
        keys = sorted(self.keys)
        simple = [cls for cls in app.queries.values() if not any(f.is_required() for f in cls.model_fields.values())]
        return [
            *(Question(key, cls()) for cls in simple for key in keys),
            *(
                Question(key, None, name)
                for name, model in app.read_models.items()
                if not issubclass(model, Search)
                for key in keys
            ),
        ]

    def envelope(self, number: int, session: str, sequence: int, idempotency_key: str | None) -> Envelope:
        key, command = self.commands[number % len(self.commands)]
        name, version = command.__engram__.name or "", self.codecs[self.apps[0].version].version_of(type(command))
        return Envelope(
            name, version, key, self._bodies[number % len(self.commands)], session, sequence, idempotency_key
        )

    @cached_property
    def _bodies(self) -> list[bytes]:
        return [command.model_dump_json().encode() for _, command in self.commands]
