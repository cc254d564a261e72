"""Records: the forms of their payloads, byte by byte."""

import json

import pytest
from engram.codec.record import (
    CommandsHeader,
    Envelope,
    Epoch,
    Kind,
    Origin,
    Record,
    encode_commands,
    encode_epoch,
    encode_messages,
)
from engram.model.effects import Message


def test_a_batch_of_commands_is_lines_of_json():
    """First a header with a column per field, then one line per command type and version, with all its bodies."""
    payload = encode_commands(
        [
            Envelope("follow", 1, "ada", b'{"whom":"bob"}', "s1", 7),
            Envelope("publish", 2, "bob", b'{"text":"x"}', "s2", 1, "once"),
            Envelope("follow", 1, "cleo", b'{"whom":"ada"}', "s1", 8),
        ],
        "gateway",
    )

    header, *lines = payload.split(b"\n")
    assert json.loads(header) == {
        "types": [["follow", 1], ["publish", 2]],
        "which": [0, 1, 0],
        "keys": ["ada", "bob", "cleo"],
        "writer": "gateway",
        "sessions": ["s1", "s2"],
        "session": [0, 1, 0],
        "sequence": [7, 1, 8],
        "idempotency": {"1": "once"},
    }
    assert lines == [b'[{"whom":"bob"},{"whom":"ada"}]', b'[{"text":"x"}]']


def test_versions_of_one_name_have_lines_of_their_own():
    """Bodies of different versions are never in one line: each line is decoded as a whole."""
    payload = encode_commands([Envelope("a", 1, "k", b"{}", "s", 1), Envelope("a", 2, "k", b"{}", "s", 2)], "w")

    assert payload.count(b"\n") == 2
    assert b'"types":[["a",1],["a",2]],"which":[0,1]' in payload


def test_a_batch_of_messages_has_their_origins():
    """Messages come from one partition, and each says which command sent it."""
    payload = encode_messages(
        [Message("like", 1, "ada", b"{}", Origin(5, 0, 0)), Message("like", 1, "bob", b"{}", Origin(5, 0, 1))], 3
    )

    assert payload.split(b"\n") == [
        b'{"types":[["like",1]],"which":[0,0],"keys":["ada","bob"],"origin_partition":3,"offsets":[5,5],"indices":[0,0],"numbers":[0,1]}',
        b"[{},{}]",
    ]


def test_an_epoch_is_one_object():
    """An epoch record is one JSON object."""
    assert encode_epoch(Epoch(owner="o", app_version=2)) == b'{"owner":"o","app_version":2,"address":""}'
    assert encode_epoch(Epoch(owner="o", app_version=2, seen=7)) == (
        b'{"owner":"o","app_version":2,"address":"","seen":7}'
    )


def test_an_epoch_counts_if_its_owner_had_seen_the_last_one():
    """The last one's record is before where the log ended when the owner began; of old records nobody knows."""
    word = Epoch(owner="o", app_version=1, seen=7)
    assert [word.counts_after(epoch) for epoch in (-1, 6, 7, 8)] == [True, True, False, False]
    assert Epoch(owner="o", app_version=1).counts_after(8)


def test_headers_are_strict():
    """A number as text, or a field that nobody knows, is not put right silently."""
    good = {"types": [], "which": [], "keys": [], "writer": "w", "sessions": [], "session": [], "sequence": []}
    assert CommandsHeader.read(json.dumps(good).encode()) == CommandsHeader(**good)

    with pytest.raises(ValueError, match=r"Expected `int`, got `str` - at `\$.sequence"):
        CommandsHeader.read(json.dumps({**good, "sequence": ["1"]}).encode())
    with pytest.raises(ValueError, match="contains unknown field `more`"):
        CommandsHeader.read(json.dumps({**good, "more": 1}).encode())


def test_origins_are_ordered_as_they_were_sent():
    """A later command's messages, and later messages of a command, have greater origins: a watermark is enough."""
    sent = [Origin(1, 0, 0), Origin(1, 0, 1), Origin(1, 1, 0), Origin(2, 0, 0)]

    assert sorted([sent[2], sent[0], sent[3], sent[1]]) == sent


def test_the_kinds_are_words_in_the_log():
    """A record's kind is a word that a log can store and give back."""
    assert [Kind(word) for word in ("commands", "messages", "epoch")] == [Kind.COMMANDS, Kind.MESSAGES, Kind.EPOCH]
    assert Record(0, 1, Kind("epoch"), 2, b"").kind is Kind.EPOCH
