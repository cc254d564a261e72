"""The headers of what is said most often, a query and its answer, in fixed places instead of JSON.

Reading and writing JSON took a third of what a query costs. The first byte is the version of the form: a shard and
whoever asks it may be of different Engrams, and must not take one thing for another.
"""

from __future__ import annotations

import json
import struct
from typing import Any

from pydantic import TypeAdapter

from engram.errors import Corrupt
from engram.model.principal import Principal
from engram.model.version import Version
from engram.shard.requests import Answer, Ask

# Of the headers, and of the lines that they travel on: raise it when either changes its form.
LINE_VERSION = 1

Who = tuple[str, list[str], dict[str, Any]]
_WHO = TypeAdapter(Who)

# Version of the form, id, partition, timeout, offset and index asked for (below 0 for none), the query's version if
# that is a number, and how many bytes follow of: key, query, version if that is a text, principal.
_ASK = struct.Struct("<BQQQqqQIIII")
# Version of the form, id, partition, offset, index.
_ANSWER = struct.Struct("<BQQqq")


def write_ask(ask: Ask) -> bytes:
    key, query = ask.key.encode(), ask.query.encode()
    number, version = (ask.version, b"") if isinstance(ask.version, int) else (0, ask.version.encode())
    who = b"" if ask.principal is None else json.dumps(who_of(ask.principal)).encode()
    offset, index = (-1, 0) if ask.at_least is None else ask.at_least
    sizes = len(key), len(query), len(version), len(who)
    fixed = _ASK.pack(LINE_VERSION, ask.id, ask.partition, ask.timeout_ms, offset, index, number, *sizes)
    return b"".join((fixed, key, query, version, who))


def read_ask(head: bytes, body: bytes) -> Ask:
    """Raises `Corrupt`, `ValueError` or `struct.error` for anything that `write_ask` does not make."""
    form, id_, partition, timeout_ms, offset, index, number, of_key, of_query, of_version, of_who = _ASK.unpack_from(
        head
    )
    _check_form(form)
    query_at = _ASK.size + of_key
    version_at = query_at + of_query
    who_at = version_at + of_version
    if len(head) != who_at + of_who:
        raise Corrupt(f"a header of {len(head)} bytes that should have {who_at + of_who}")
    key, query = head[_ASK.size : query_at].decode(), head[query_at:version_at].decode()
    version: Version = head[version_at:who_at].decode() if of_version else number
    who = principal_of(_WHO.validate_json(head[who_at:], strict=True)) if of_who else None
    return Ask(id_, partition, key, query, version, body, None if offset < 0 else (offset, index), timeout_ms, who)


def write_answer(answer: Answer) -> bytes:
    return _ANSWER.pack(LINE_VERSION, answer.id, answer.partition, answer.offset, answer.index)


def read_answer(head: bytes, body: bytes) -> Answer:
    """Raises as `read_ask` does."""
    form, id_, partition, offset, index = _ANSWER.unpack(head)
    _check_form(form)
    return Answer(id_, partition, offset, index, body)


def who_of(principal: Principal) -> list[Any]:
    return [principal.name, sorted(principal.roles), principal.claims]


def principal_of(who: Who) -> Principal:
    return Principal(who[0], frozenset(who[1]), who[2])


def _check_form(form: int) -> None:
    if form != LINE_VERSION:
        raise Corrupt(f"it is of version {form} of the line, and this is {LINE_VERSION}: use the same Engram on both")
