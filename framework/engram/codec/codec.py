"""The codec: between an app's types and bytes, with versions on everything and upcasting on every read."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any, NamedTuple

import msgspec
import pydantic_core
from pydantic import TypeAdapter, ValidationError

from engram.codec.outgoing import outgoing
from engram.codec.readable import state_reads_back
from engram.codec.record import BatchHeader, CommandsHeader, Epoch, Kind, MessagesHeader, PlainHeader, Record
from engram.codec.rows import RowCodec
from engram.codec.slim import line_decoder, slim_form, whole
from engram.codec.values import result_adapter, strict_encoder
from engram.errors import Corrupt
from engram.model.app import App
from engram.model.command import Command
from engram.model.context import Outgoing
from engram.model.entity import Entity
from engram.model.event import Event
from engram.model.nested import written_version
from engram.model.query import Query
from engram.model.version import Version, read_version

# The session of all plain records of a partition: their offsets number them.
_PLAIN_SESSION = "plain"


Lines = dict[tuple[str, Version], Callable[[bytes], list[Command[Any, Any]]]]


class Commands(NamedTuple):
    """A decoded `COMMANDS` or `PLAIN` record."""

    header: CommandsHeader
    commands: list[Command[Any, Any]]


class Messages(NamedTuple):
    """A decoded `MESSAGES` record."""

    header: MessagesHeader
    commands: list[Command[Any, Any]]


class Codec:
    """Encodes and decodes what an app declares. Pure; one instance serves a whole process.

    Decoding raises `Corrupt` for an unknown name, for a version newer than the app's, and for bytes that do
    not fit the type. Old versions are brought up by the app's upcasters first, those of named values in it too.
    """

    def __init__(self, app: App) -> None:
        self.app = app
        self._entities = {name: _Type(app, cls) for name, cls in app.entities.items()}
        self._commands = {name: _Type(app, cls) for name, cls in app.commands.items()}
        self._queries = {name: _Type(app, cls) for name, cls in app.queries.items()}
        self._events = {name: _Type(app, cls) for name, cls in app.events.items()}
        # Exact (name, version) pairs that need no upcasting: a whole line of bodies in one parse.
        self._lines: dict[tuple[str, Version], Callable[[bytes], list[Command[Any, Any]]]] = {
            (name, t.version): TypeAdapter(list[t.cls]).validator.validate_json  # type: ignore[name-defined]  # a type at run time
            for name, t in self._commands.items()
        }
        # Command types that have a slim form, which is what handlers get from the log.
        self.slim = {cls: slim for cls in app.commands.values() if (slim := slim_form(cls)) is not None}
        self._slim_lines = self._lines | {
            (name, t.version): line_decoder(self.slim[t.cls], self._lines[name, t.version])
            for name, t in self._commands.items()
            if t.cls in self.slim
        }
        types = (self._entities, self._commands, self._queries, self._events)
        self._versions: dict[type[Any], Version] = {t.cls: t.version for each in types for t in each.values()}
        self._versions |= {slim: self._versions[cls] for cls, slim in self.slim.items()}
        # Entity types of which every state is certain to be read back; of the others somebody must try.
        self.certain_states = {name for name, cls in app.entities.items() if state_reads_back(cls)}
        asked: list[type[Any]] = [*app.commands.values(), *app.queries.values()]
        self.rows = {name: RowCodec(app, cls) for name, cls in app.read_models.items()}
        self._results = {cls: result_adapter(cls) for cls in asked}
        self._encoders = {cls: strict_encoder(adapter) for cls, adapter in self._results.items()}

    def version_of(self, cls: type[Any]) -> Version:
        """The version that objects of an entity, command, query or event are written with."""
        return self._versions[cls]

    # State

    def encode_entity(self, entity: Entity) -> bytes:
        """The entity's state as a JSON object, its key included."""
        return self._entities[entity.__engram__.name or ""].encode(entity)

    def quick_encoder(self, cls: type[Entity]) -> Callable[[Any], bytes]:
        """The same at a third of the cost, within `strictly()`: pydantic's own way to refuse is slow."""
        return self._entities[cls.__engram__.name or ""].encode_quickly

    def decode_entity(self, name: str, version: Version, state: bytes) -> Entity:
        return self._type("entity", self._entities, name).decode(version, state)  # type: ignore[no-any-return]

    def check_entity(self, name: str, version: Version) -> None:
        """Raises `Corrupt` for an entity type that the app does not have, or a version that it cannot bring up."""
        self.app.check_version(self._type("entity", self._entities, name).cls, version)

    # Boundaries

    def encode_body(self, boundary: Command[Any, Any] | Query[Any, Any] | Event) -> bytes:
        """The fields of a command, in either form, a query or an event as a JSON object."""
        found = whole(boundary) if isinstance(boundary, msgspec.Struct) else boundary
        return found.__pydantic_serializer__.to_json(found)

    def encode_command(self, command: Command[Any, Any]) -> bytes:
        """The fields of a command that goes into the log. Raises `Corrupt` for one that would not be read back there:
        its record would stop the partition."""
        outgoing = self.outgoing_commands[type(command)]
        try:
            return outgoing.encode(command)
        except ValueError as problem:
            raise Corrupt(f"{type(command).__name__} version {outgoing.version}: {_short(problem)}") from problem

    def decode_command(self, name: str, version: Version, body: bytes) -> Command[Any, Any]:
        return self._type("command", self._commands, name).decode(version, body)  # type: ignore[no-any-return]

    def decode_query(self, name: str, version: Version, body: bytes) -> Query[Any, Any]:
        return self._type("query", self._queries, name).decode(version, body)  # type: ignore[no-any-return]

    def decode_event(self, name: str, version: Version, body: bytes) -> Event:
        return self._type("event", self._events, name).decode(version, body)  # type: ignore[no-any-return]

    @cached_property
    def outgoing_commands(self) -> dict[type[Any], Outgoing]:
        """How commands are encoded that go into the log: what a handler sends or schedules, and what clients send."""
        return {cls: outgoing(cls, self._versions[cls]) for cls in self.app.commands.values()}

    @cached_property
    def outgoing_events(self) -> dict[type[Any], Outgoing]:
        return {cls: outgoing(cls, self._versions[cls]) for cls in self.app.events.values()}

    def result_encoder(self, cls: type[Any]) -> Callable[[Any], bytes]:
        """From a reply or answer of this command or query type to JSON. It raises pydantic's error when a
        value is not of the declared type."""
        return self._encoders[cls]

    def decode_result(self, cls: type[Any], data: bytes) -> Any:
        return self._results[cls].validate_json(data)

    # Records

    def decode_record(self, record: Record, *, slim: bool = False) -> Commands | Messages | Epoch:
        """The content of a record that has one; `Corrupt` says the partition and offset.

        With `slim`, commands may be in their slim forms, which is enough to handle them.
        """
        known = self._slim_lines if slim else self._lines
        try:
            if record.kind is Kind.EPOCH:
                return Epoch.model_validate_json(record.payload)
            head, *lines = record.payload.split(b"\n")
            if record.kind is Kind.COMMANDS:
                header = CommandsHeader.read(head)
                _check_columns(header, header.session, header.sequence)
                if not all(0 <= number < len(header.sessions) for number in set(header.session)):
                    raise Corrupt(f"a command of a session that is not among its {len(header.sessions)}")
                return Commands(header, self._bodies(header, lines, known))
            if record.kind is Kind.PLAIN:
                return self._plain(record)
            messages = MessagesHeader.read(head)
            _check_columns(messages, messages.offsets, messages.indices, messages.numbers)
            if not messages.which:
                raise Corrupt("it has no messages")
            return Messages(messages, self._bodies(messages, lines, known))
        except (Corrupt, ValidationError, ValueError, IndexError) as problem:
            where = f"Record {record.offset} of partition {record.partition}"
            raise Corrupt(f"{where} cannot be decoded: {_short(problem)}") from problem

    def _plain(self, record: Record) -> Commands:
        head, _, body = record.payload.partition(b"\n")
        plain = PlainHeader.read(head)
        if plain.problem:
            raise Corrupt(plain.problem)
        if not plain.name:
            raise Corrupt("it has no header `name`: write the command's name there")
        try:
            version = read_version(plain.version)
        except ValueError:
            raise Corrupt(
                f"its header `version` is {plain.version!r}: write the command's version there, a number"
            ) from None
        if plain.key is None:
            raise Corrupt("it has no key, or one that is not UTF-8: write the entity's key there")
        header = CommandsHeader(
            types=[(plain.name, version)],
            which=[0],
            keys=[plain.key],
            writer="",
            sessions=[_PLAIN_SESSION],
            session=[0],
            sequence=[record.offset],
            idempotency={} if plain.id is None else {0: plain.id},
        )
        return Commands(header, [self.decode_command(plain.name, version, body)])

    def _bodies(self, header: BatchHeader, lines: list[bytes], known: Lines) -> list[Command[Any, Any]]:
        if len(lines) != len(header.types):
            raise Corrupt(f"{len(lines)} lines of bodies for {len(header.types)} types")
        groups = [
            self._line(name, version, line, known) for (name, version), line in zip(header.types, lines, strict=True)
        ]
        if sum(map(len, groups)) != len(header.which):
            raise Corrupt(f"{sum(map(len, groups))} bodies for {len(header.which)} commands")
        if len(groups) == 1:
            return groups[0]
        take: list[Callable[[], Command[Any, Any]]] = [iter(group).__next__ for group in groups]
        try:
            return [take[number]() for number in header.which]
        except StopIteration:
            raise Corrupt("more commands of a type than bodies in its line") from None

    def _line(self, name: str, version: Version, line: bytes, known: Lines) -> list[Command[Any, Any]]:
        decode = known.get((name, version))
        if decode is not None:
            return decode(line)
        kind = self._type("command", self._commands, name)
        bodies = pydantic_core.from_json(line)
        if not isinstance(bodies, list):
            raise Corrupt(f"the bodies of {name} are not in an array")
        return [kind.upcast(version, body) for body in bodies]

    def _type(self, what: str, types: dict[str, _Type], name: str) -> _Type:
        try:
            return types[name]
        except KeyError:
            known = ", ".join(sorted(types)) or "none"
            raise Corrupt(f"app {self.app.name} has no {what} named {name!r} (it has: {known})") from None


class _Type:
    """One named, versioned type."""

    def __init__(self, app: App, cls: type[Any]) -> None:
        self.cls = cls
        self.version = written_version(cls)
        self._app = app
        adapter = TypeAdapter(cls)
        # Refusing a value of the wrong type here is better than a snapshot that cannot be read back.
        self.encode = partial(adapter.serializer.to_json, warnings="error")
        self.encode_quickly: Callable[[Any], bytes] = adapter.serializer.to_json
        self._validate = adapter.validator.validate_json

    def decode(self, version: Version, data: bytes) -> Any:
        if version == self.version:
            try:
                return self._validate(data)
            except ValidationError as problem:
                raise Corrupt(f"{self.cls.__name__} version {version}: {_short(problem)}") from problem
        try:
            old = pydantic_core.from_json(data)
        except ValueError as problem:
            raise Corrupt(f"{self.cls.__name__} version {version}: {problem}") from problem
        return self.upcast(version, old)

    def upcast(self, version: Version, old: Any) -> Any:
        try:
            new = json.dumps(self._app.upcast(self.cls, version, old)).encode()
        except Corrupt:
            raise
        except Exception as problem:
            name = self.cls.__name__
            raise Corrupt(f"the upcasters of {name} from version {version} failed: {problem!r}") from problem
        return self.decode(self.version, new)


@contextmanager
def strictly() -> Iterator[None]:
    """A value of the wrong type that is met while encoding is an error, as it always should be."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Pydantic serializer warnings", category=UserWarning)
        yield


def _check_columns(header: BatchHeader, *columns: Sized) -> None:
    lengths = {len(header.which), len(header.keys), *map(len, columns)}
    if len(lengths) > 1:
        raise Corrupt(f"its columns differ in length: {sorted(lengths)}")


def _short(problem: Exception) -> str:
    if isinstance(problem, ValidationError):
        first: Iterable[Any] = problem.errors(include_url=False)[:3]
        return "; ".join(_lines(first))
    return str(problem)


def _lines(errors: Iterable[Any]) -> Iterator[str]:
    for error in errors:
        yield f"{'.'.join(map(str, error['loc'])) or 'value'}: {error['msg']}"
