"""What a log has of clients' commands, read independently of any shard."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from engram.codec.codec import Codec, Commands
from engram.codec.record import CommandsHeader, Kind
from engram.log.base import Log
from engram.log.scan import scan
from engram.model.app import App
from engram.model.command import Command
from engram.model.position import Position
from engram.testing.history.operation import CommandId

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Logged(NamedTuple):
    """A command as the log has it, where it has it first: that is where it takes effect."""

    position: Position
    key: str
    command: Command[Any, Any]
    now: datetime
    times: int  # how often it is there: more than once if nobody knew whether the first append had succeeded


def commands_in(log: Log, app: App) -> dict[CommandId, Logged]:
    """All commands of clients in a log, by session and sequence. Time never goes back within a partition."""
    codec = Codec(app)
    found: dict[CommandId, Logged] = {}
    for partition in range(log.partitions):
        time = 0
        for record in scan(log, partition):
            time = max(time, record.time) if record.kind.is_work else time
            if record.kind is not Kind.COMMANDS:
                continue
            content = codec.decode_record(record)
            assert isinstance(content, Commands)
            assert isinstance(content.header, CommandsHeader)
            header = content.header
            columns = zip(content.commands, header.keys, header.session, header.sequence, strict=True)
            for index, (command, key, session, sequence) in enumerate(columns):
                id_ = header.sessions[session], sequence
                position = Position(partition, record.offset, index)
                first = found.get(id_) or Logged(position, key, command, _EPOCH + timedelta(milliseconds=time), 0)
                found[id_] = first._replace(times=first.times + 1)
    return found
