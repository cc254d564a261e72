"""A real image's contents, for the tests of this folder."""

from __future__ import annotations

from engram.codec.codec import Codec
from engram.codec.record import Envelope, Kind, Record, encode_commands
from engram.image.image import Image
from engram.snapshots.base import Contents

from sample_apps.social import app


def social_contents(offset: int) -> Contents:
    """The contents of an image that has handled `offset` records: one user registered per record."""
    image = Image(0, Codec(app))
    for number in range(offset):
        envelope = Envelope("register", 1, f"user-{number}", b'{"name":"Somebody"}', "session", number)
        image.handle(Record(0, number, Kind.COMMANDS, 1_700_000_000_000, encode_commands([envelope], "writer")))
    freeze = image.begin_freeze()
    while freeze.advance(100):
        pass
    return Contents(freeze.columns, freeze.memory, image.count())
