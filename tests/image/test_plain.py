"""Plain records: commands that came around every gateway."""

from __future__ import annotations

import pytest
from engram.codec.codec import Codec
from engram.codec.record import Kind, PlainHeader, Record, encode_plain
from engram.image.image import Image

from tests.image.clockwork import app


def plain(body: bytes, offset: int = 0, **said: str) -> Record:
    header = PlainHeader(**{"name": "ring", "version": "1", "key": "a", **said})
    return Record(0, offset, Kind.PLAIN, 1000, encode_plain(header, body))


def test_a_plain_record_is_handled_like_any_command():
    """Its body may have line breaks, as people write JSON."""
    image = Image(0, Codec(app))
    handled = image.handle(plain(b'{\n "what": "hello"\n}'))

    assert not handled.failures
    assert image.entities["clockwork"]["a"].rang == ["hello at 00:00:01.000"]


@pytest.mark.parametrize(
    ("body", "said", "told"),
    [
        (b"not json", {}, "Ring version 1"),
        (b"{}", {}, "what: Field required"),
        (b"{}", {"name": ""}, "header `name`"),
        (b"{}", {"version": "one"}, "header `version` is 'one'"),
        (b"{}", {"name": "rung"}, "no command named 'rung'"),
        (b"{}", {"problem": "the key belongs elsewhere"}, "the key belongs elsewhere"),
    ],
)
def test_one_that_cannot_be_handled_is_set_aside_and_told(body: bytes, said: dict[str, str], told: str):
    """It is on the list of the quarantine and among the failures that a shard reports; the partition goes on."""
    image = Image(0, Codec(app))
    handled = image.handle(plain(body, **said))
    image.handle(plain(b'{"what": "next"}', offset=1))

    assert told in str(handled.failures[0])
    assert [told in row.error for row in image.quarantine.listed] == [True]
    assert image.offset == 2
