"""The oracle: compares everything that was said and kept in a run with the model of its log."""

from __future__ import annotations

import json

from engram.codec.codec import Commands
from engram.errors import Corrupt, EngramError
from engram.image.image import Image
from engram.log.partitioner import partition_of
from engram.model.effects import Message
from engram.model.entity import EVERYWHERE, Shared
from engram.shard.look import look_into
from engram.shard.replay import replay_until
from engram.shard.requests import Look, Replies
from engram.snapshots.base import Loaded
from engram.testing.simulator.clients import Call
from engram.testing.simulator.owners import open_store
from engram.testing.simulator.past import Past
from engram.testing.simulator.process import Process
from engram.testing.simulator.read_models import PlainRows, is_checked
from engram.testing.simulator.state import State
from engram.testing.simulator.world import ALL_ROWS, World
from engram.testing.simulator.wrong import Wrong, same


def check(world: World) -> None:
    """Raises `Wrong` when anything is not as the model has it."""
    pasts = [Past(world, partition) for partition in range(world.setup.partitions)]
    for past in pasts:
        _check_replies(world, past)
        same(world.log.all_events(past.partition), past.events, f"the events of partition {past.partition}")
        _check_messages(world, past, pasts)
    _check_clients(world, pasts)
    for past in pasts:
        _check_live(world, past)
        _check_snapshots(world, past)
    _check_shared(pasts)
    _check_invariants(world, pasts)


def _check_replies(world: World, past: Past) -> None:
    for owner, _, said in world.said:
        if isinstance(said, Replies) and said.partition == past.partition:
            outcomes = past.outcomes[said.offset]
            if said.indices is None:
                same(said.outcomes, outcomes, f"replies of {owner} to record {past.partition}:{said.offset}")
                same(owner, past.owner_at(said.offset), f"who handles record {past.partition}:{said.offset}")
            else:
                same(said.outcomes, [outcomes[i] for i in said.indices], f"what {owner} says of {said.offset}")


def _check_messages(world: World, past: Past, pasts: list[Past]) -> None:
    for other in pasts:
        sent = [
            (message.origin, message.key, message.body)
            for message in other.messages
            if _goes_to(past.partition, message, other, world)
        ]
        codec = past.model.codec
        came = [(tuple(c.origin), c.key, codec.encode_body(c.command)) for c in past.came.get(other.partition, ())]
        same(came, sent, f"the messages from partition {other.partition} to {past.partition}")


def _goes_to(partition: int, message: Message, sender: Past, world: World) -> bool:
    if message.everywhere is not None:
        return sender.partition != partition
    return partition_of(message.key, world.setup.partitions) == partition


def _check_clients(world: World, pasts: list[Past]) -> None:
    for client in world.clients:
        for call in client.calls:
            _check_call(call, pasts)


def _check_call(call: Call, pasts: list[Past]) -> None:
    envelope = call.envelope
    for place in call.places:
        past = pasts[place.partition]
        if place.offset >= len(past.records):
            raise Wrong(f"{envelope} was acknowledged at {place}, and the log ends before it")
        content = past.model.codec.decode_record(past.records[place.offset])
        if not isinstance(content, Commands):
            raise Wrong(f"{envelope} was acknowledged at {place}, and there is something else")
        header = content.header
        there = header.sessions[header.session[place.index]], header.sequence[place.index], header.keys[place.index]
        same(there, (envelope.session, envelope.sequence, envelope.key), f"what was acknowledged at {place}")
    if call.outcome is not None:
        known = [pasts[place.partition].outcomes[place.offset][place.index] for place in call.places]
        if call.outcome not in known:
            raise Wrong(f"{envelope} was told {call.outcome}, and the model has {known}")
    for past in pasts:
        if past.model.handled.get((envelope.session, envelope.sequence), 0) > 1:
            raise Wrong(f"{envelope} was handled twice")


def _check_live(world: World, past: Past) -> None:
    owner = world.owner_of(past.partition)
    assert owner is not None
    image = owner.shard.owned[past.partition].image
    same(image.digest(), past.model.digest(), f"the digest of partition {past.partition}")
    if image.read_models is None:
        return
    codec = past.model.codec
    for name in codec.app.read_models:
        if is_checked(codec, name):
            rows = PlainRows(past.model, codec, name)
            for place in sorted(rows.places | world.subject.keys):
                look = Look(0, past.partition, name, place, None, ALL_ROWS, None, 0)
                found = json.loads(look_into(image, look))
                same(found, rows.at(place), f"{name} at {place!r} in partition {past.partition}")


def _check_snapshots(world: World, past: Past) -> None:
    """Each that is there is whole, unless we have damaged it, and with the records after it gives the same."""
    process = Process("oracle", world.gateway_clock, lambda _: None, world.counts)
    app = world.subject.apps[world.version]
    store = open_store(world.disk, process, app.name, world.setup, world.new_mark)
    damaged = [path for path in world.disk.files(".damaged") if f"/partition-{past.partition:04}/" in path]
    if damaged and not world.flipped:
        raise Wrong(f"a snapshot that was published was not whole: {damaged}")
    images: list[Loaded | None] = []
    for manifest in store.manifests(past.partition):
        try:
            if manifest.offset >= past.boundary:
                found = store.read(manifest)
                images.append(found._replace(columns=list(found.columns)))
        except Corrupt as problem:
            if not world.flipped:
                raise Wrong(f"a snapshot that was published is not whole: {problem}") from problem
    if not past.boundary:
        images.append(None)
    expected = past.model.digest()
    for loaded in images:
        image = Image(past.partition, world.subject.codecs[app.version])
        what = "from zero" if loaded is None else f"the snapshot at {loaded.manifest.offset} and the records after it"
        try:
            if loaded is not None:
                image.load_encoded(loaded.columns, loaded.memory)
            replay_until(image, world.log, len(past.records), effects=lambda _: None, progress=lambda: None)
        except EngramError as problem:
            raise Wrong(f"partition {past.partition}, {what}: {problem!r}") from problem
        same(image.digest(), expected, f"the digest of partition {past.partition}, {what}")


def _check_shared(pasts: list[Past]) -> None:
    """What all partitions have is the same in all."""
    first, *others = pasts
    for name, cls in first.model.codec.app.entities.items():
        if issubclass(cls, Shared):
            for other in others:
                same(
                    other.model.states.get((name, EVERYWHERE)),
                    first.model.states.get((name, EVERYWHERE)),
                    f"{name} in partition {other.partition}",
                )


def _check_invariants(world: World, pasts: list[Past]) -> None:
    if not world.subject.invariants:
        return
    entities = {
        (cls, key): entity
        for past in pasts
        for cls in past.model.codec.app.entities.values()
        for key, entity in past.model.entities(cls)
    }
    for invariant in world.subject.invariants:
        try:
            invariant(State(entities))
        except AssertionError as problem:
            raise Wrong(f"{getattr(invariant, '__name__', invariant)} does not hold: {problem}") from problem
