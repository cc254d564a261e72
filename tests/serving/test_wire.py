"""Requests and responses on the wire: what is sent arrives, and anything else is `Corrupt`."""

from __future__ import annotations

import json
from typing import Any

import pytest
from engram import Corrupt, Principal
from engram.image.outcome import Outcome, Verdict
from engram.serving.wire import decode_request, decode_response, encode_request, encode_response
from engram.shard.requests import (
    Answer,
    Arrived,
    Ask,
    AskEffects,
    AskQuarantine,
    Await,
    Changed,
    Look,
    PartitionStatus,
    Refusal,
    Replies,
    Report,
    Reported,
    Request,
    Response,
    ShardStatus,
    Stop,
    Stuck,
    Subscribe,
    SubscribeRows,
    TakeSnapshot,
)
from hypothesis import given
from hypothesis import strategies as st

numbers = st.integers(0, 2**53)
texts = st.text()
places = st.tuples(numbers, st.integers(-10_000, 1000), numbers)
# Bodies are JSON as pydantic and json.dumps write it: without line breaks.
bodies = st.recursive(st.none() | st.integers() | texts, st.lists, max_leaves=3).map(
    lambda value: json.dumps(value).encode()
)
outcomes = st.lists(st.builds(Outcome, st.sampled_from(Verdict), bodies), min_size=1, max_size=5)

principals = st.builds(
    Principal,
    name=texts,
    roles=st.frozensets(texts, max_size=3),
    claims=st.dictionaries(texts, texts | numbers | st.lists(texts, max_size=2), max_size=3),
)

requests: st.SearchStrategy[Request] = st.one_of(
    st.builds(
        Ask,
        id=numbers,
        partition=numbers,
        key=texts,
        query=texts,
        version=numbers | st.just("1 price=2"),
        body=bodies,
        at_least=st.none() | st.tuples(numbers, numbers),
        timeout_ms=numbers,
        principal=st.none() | principals,
    ),
    st.builds(
        SubscribeRows,
        id=numbers,
        partition=numbers,
        model=texts,
        place=texts,
        limit=numbers,
        lease_ms=numbers,
        after=st.none() | numbers,
        base=st.booleans(),
    ),
    st.builds(
        Await, partition=numbers, offset=numbers, commands=st.lists(st.tuples(numbers, texts, numbers), max_size=5)
    ),
    st.builds(
        AskQuarantine,
        id=numbers,
        partition=numbers,
        place=st.none() | st.tuples(numbers, st.integers(-10_000, 1000)),
        limit=numbers,
        at_least=st.none() | st.tuples(numbers, numbers),
        timeout_ms=numbers,
    ),
    st.builds(
        Look,
        id=numbers,
        partition=numbers,
        model=texts,
        place=texts,
        after=st.none() | st.tuples(st.integers() | st.floats(allow_nan=False, allow_infinity=False), texts, texts),
        limit=numbers,
        at_least=st.none() | st.tuples(numbers, numbers),
        timeout_ms=numbers,
    ),
    st.builds(
        AskEffects,
        id=numbers,
        partition=numbers,
        command=st.none() | st.tuples(numbers, numbers),
        roots=st.lists(texts, max_size=3),
        arrived=st.lists(st.builds(Arrived, numbers, places, places), max_size=3),
        timeout_ms=numbers,
    ),
    st.builds(
        Subscribe,
        id=numbers,
        partition=numbers,
        key=texts,
        query=texts,
        version=numbers,
        body=bodies,
        principal=st.none() | principals,
        lease_ms=numbers,
        after=st.none() | numbers,
    ),
    st.builds(Report, id=numbers, digests=st.booleans()),
    st.builds(TakeSnapshot, id=numbers, partition=numbers, savepoint=texts, timeout_ms=numbers),
    st.builds(Stop, clean=st.booleans(), savepoint=texts),
)
stuck = st.builds(Stuck, position=texts, command=texts, key=texts, seconds=st.floats(0, 10**6), stack=texts)
partitions = st.builds(
    PartitionStatus,
    partition=numbers,
    state=texts,
    offset=numbers,
    problem=texts,
    digest=texts,
    stuck=st.none() | stuck,
)
statuses = st.builds(
    ShardStatus, shard=numbers, owner=texts, pid=numbers, address=texts, partitions=st.lists(partitions, max_size=3)
)


@st.composite
def some_replies(draw: st.DrawFn) -> Replies:
    found = draw(outcomes)
    indices = draw(st.none() | st.lists(numbers, min_size=len(found), max_size=len(found)))
    return Replies(draw(numbers), draw(numbers), found, indices)


responses: st.SearchStrategy[Response] = st.one_of(
    st.builds(Answer, id=numbers, partition=numbers, offset=numbers, index=numbers, body=bodies),
    st.builds(
        Changed,
        id=numbers,
        partition=numbers,
        offset=numbers,
        index=numbers,
        kind=texts,
        body=bodies,
        since=st.none() | numbers,
    ),
    st.builds(Refusal, id=numbers, kind=texts, text=texts, code=texts, at=st.none() | numbers),
    some_replies(),
    st.builds(Reported, id=numbers, status=statuses),
)

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
tags = st.sampled_from(
    [
        b"ask",
        b"quarantine",
        b"effects",
        b"subscribe",
        b"rows",
        b"changed",
        b"await",
        b"report",
        b"take",
        b"stop",
        b"answer",
        b"refusal",
        b"replies",
        b"reported",
    ]
)
frames = st.one_of(
    st.lists(st.binary(), max_size=4),
    st.tuples(tags | st.binary(), anything.map(lambda value: json.dumps(value).encode()), st.binary()).map(list),
    st.tuples(tags, st.binary()).map(list),
)


@given(requests)
def test_a_request_arrives_as_it_was_sent(request: Request):
    """Decoding an encoded request gives an equal one."""
    assert decode_request(encode_request(request)) == request


@given(responses)
def test_a_response_arrives_as_it_was_sent(response: Response):
    """Decoding an encoded response gives an equal one."""
    assert decode_response(encode_response(response)) == response


@given(frames)
def test_garbage_is_corrupt(sent: list[bytes]):
    """Whatever bytes come, they are decoded to what is encoded to the same again, or `Corrupt`."""
    for decode, encode in ((decode_request, encode_request), (decode_response, encode_response)):
        try:
            decoded: Any = decode(sent)
        except Corrupt:
            continue
        assert decode(encode(decoded)) == decoded


@given(requests, st.data())
def test_a_request_that_lost_a_frame_or_a_field_is_corrupt(request: Request, data: st.DataObject):
    """Fewer frames, or a header with fewer or more fields, are not taken for something else."""
    tag, head, *rest = encode_request(request)
    if isinstance(request, Ask):
        shorter = st.integers(0, len(head) - 1).map(lambda size: [tag, head[:size], *rest])
        other = bytes([head[0] + 1]) + head[1:]
        spoilt = data.draw(shorter | st.sampled_from([[tag, head], [tag, head + b"1", *rest], [tag, other, *rest]]))
        with pytest.raises(Corrupt):
            decode_request(spoilt)
        return
    values = json.loads(head)
    spoilt = data.draw(
        st.sampled_from([[], [tag], [tag, json.dumps(values[:-1]).encode(), *rest], [tag, b"[" + head, *rest]])
        | st.just([tag, json.dumps([*values, 1]).encode(), *rest])
    )
    with pytest.raises(Corrupt):
        decode_request(spoilt)


@pytest.mark.parametrize("tag", [b"", b"nonsense", b"answer"])
def test_an_unknown_tag_is_corrupt(tag: bytes):
    """What is no request is refused by its name."""
    with pytest.raises(Corrupt, match="Not a request"):
        decode_request([tag, b"[]", b""])


@pytest.mark.parametrize(
    "head",
    [
        b'["1",0,"k","q",1,100,null,null]',  # an id that is a text
        b'[1,0,7,"q",1,100,null,null]',  # a key that is a number
        b'[1,0,"k","q",1,100,[1],null]',  # a record that is a list
        b'[1,0,"k","q",1,null,null,null]',  # no lease
        b"{}",
        b"null",
    ],
)
def test_fields_of_the_wrong_type_are_corrupt(head: bytes):
    """A shard never meets a request whose fields are not what they are declared to be."""
    with pytest.raises(Corrupt):
        decode_request([b"subscribe", head, b"{}"])
