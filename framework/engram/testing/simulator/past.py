"""What the model says of one partition, record by record, from the first to the last."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from engram.codec.record import Epoch, Kind, Record
from engram.image.outcome import Outcome
from engram.model.app import entity_of
from engram.model.effects import Message, OutEvent
from engram.shard.requests import Answer, Ask, Look
from engram.testing.simulator.model import Came, Model, versions_of
from engram.testing.simulator.read_models import PlainRows
from engram.testing.simulator.world import World
from engram.testing.simulator.wrong import same


class _Answered(NamedTuple):
    request: Ask | Look
    answer: Answer
    version: int


class Past:
    """The records of a partition, what came of each, and who had the partition then. Answers that were given on the way
    are compared where they were given: a wrong one raises `Wrong`."""

    def __init__(self, world: World, partition: int) -> None:
        self.partition = partition
        self.records = world.log.all_records(partition)
        self.model = Model(partition, world.subject)
        self.outcomes: dict[int, list[Outcome]] = {}
        self.messages: list[Message] = []
        self.events: list[OutEvent] = []
        self.came: dict[int, list[Came]] = {}
        self.boundary = 0  # records from this one on were handled by the version of today
        self._owners: list[tuple[int, str]] = []  # with the offsets of their epochs
        self._answers = _answers(world, partition)
        self._play(world.subject.apps[0].version)
        if world.version:
            self._use(world.subject.apps[world.version].version, len(self.records))

    def owner_at(self, offset: int) -> str:
        """Who has the partition when the record is handled."""
        return next((name for at, name in reversed(self._owners) if at < offset), "nobody")

    def _play(self, version: int) -> None:
        versions = versions_of(self.records, version)
        epoch, after = -1, 0
        self._check_answers(-1)
        for record in self.records:
            if record.kind is Kind.EPOCH:
                word = Epoch.model_validate_json(record.payload)
                if word.counts_after(epoch):
                    epoch = record.offset
                    self._owners.append((epoch, word.owner if word.ends is None else "nobody"))
            else:
                self._use(versions[record.offset], after)
                after = record.offset + 1
            self._handle(record)
            self._check_answers(record.offset)

    def _use(self, version: int, after: int) -> None:
        if self.model.codec.app.version != version:
            self.boundary = after
            self.model.use(version)

    def _handle(self, record: Record) -> None:
        done = self.model.handle(record)
        self.outcomes[record.offset] = done.outcomes
        self.messages += done.messages
        self.events += done.events
        for came in done.came:
            self.came.setdefault(came.origin_partition, []).append(came)

    def _check_answers(self, offset: int) -> None:
        before = self.model.codec.app.version
        for request, answer, version in self._answers.get(offset, ()):
            self.model.use(version)
            same(json.loads(answer.body), self._answer(request), f"the answer at {offset} to {request}")
            if request.at_least is not None and answer.offset < request.at_least[0]:
                same(answer.offset, f"at least {request.at_least[0]}", f"where the answer to {request} was given")
        self.model.use(before)

    def _answer(self, request: Ask | Look) -> Any:
        codec = self.model.codec
        if isinstance(request, Look):
            return PlainRows(self.model, codec, request.model).at(request.place)
        query = codec.decode_query(request.query, request.version, request.body)
        of = entity_of(type(query))
        entity = self.model.entity(of, request.key) or of(key=request.key)
        return json.loads(codec.result_encoder(type(query))(query.answer(entity)))


def _answers(world: World, partition: int) -> dict[int, list[_Answered]]:
    found: dict[int, list[_Answered]] = {}
    for said in world.said:
        answer = said.response
        if isinstance(answer, Answer) and answer.partition == partition and answer.id in world.asked:
            answered = _Answered(world.asked[answer.id], answer, said.version)
            found.setdefault(answer.offset, []).append(answered)
    return found
