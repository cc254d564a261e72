"""A history of the club: commands, shards that come and go, and questions, each answer compared with plain Python."""

from __future__ import annotations

import itertools
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from engram import Command, Position, Query, Token
from engram.codec.codec import Codec
from engram.errors import Fenced
from engram.image.found import Found, merge_rows, merge_totals
from engram.shard.look import rows_in, subtotal_in
from engram.shard.requests import Answer, Ask, Look, Refusal, TakeSnapshot

from tests.read_models import club
from tests.read_models.club import Card, Member, Plain, Show, Standing
from tests.shard.network import Network, Owner

PARTITIONS = 4
MODELS = ["marked", "players", "best", "points", "bios"]
CODEC = Codec(club.app)
ALL = 10_000
TIMEOUT_MS = 1000
_REST_SECONDS = 60.0

# What an answer must include: anything; what was seen; what was written; all that is logged; what is not logged yet.
Bound = Literal["none", "seen", "written", "logged", "beyond"]
BOUNDS: list[Bound] = ["none", "seen", "written", "logged", "beyond"]


@dataclass
class Scatter:
    """One look at all partitions, and what has come of it."""

    limit: int
    answers: dict[int, Answer] = field(default_factory=dict)
    failed: bool = False


@dataclass
class Asked:
    """A question that has no answer yet: who was asked, and when it is given up."""

    request: Ask | Look
    owner: Owner
    deadline: int
    query: Query[Any, Any] | None = None
    scatter: Scatter | None = None


class History:
    """Shards are stepped by hand, so that partitions are at different positions, and questions wait.

    Every answer must be that of the sequential model at the answer's position, and not older than was asked for; every
    refusal must have a reason. What is wrong raises `AssertionError`. `done` counts what has happened.
    """

    def __init__(self, shards: int, every: int) -> None:
        self.done: Counter[str] = Counter()
        self.network = Network(PARTITIONS, app=club.app)
        self._past = [_Past() for _ in range(PARTITIONS)]
        self._written = self._seen = Token(club.app.name, PARTITIONS)
        self._ids = itertools.count(1)
        self._open: dict[int, Asked] = {}
        self._old: list[Owner] = []  # who do not know yet that they have a successor
        self._every = every
        self._shards: list[Owner] = []
        self._start(shards)

    # Commands and shards

    def send(self, sent: list[tuple[str, Command[Any, Any]]]) -> None:
        positions = self.network.send_all([self.network.envelope(key, command) for key, command in sent])
        for (key, command), position in zip(sent, positions, strict=True):
            self._past[position.partition].handle(position.offset, key, command)
        self._written |= Token.of(club.app.name, PARTITIONS, positions)
        self.done["commands"] += len(sent)

    def step(self, number: int, turns: int) -> None:
        for _ in range(turns):
            self._turn(self._shards[number % len(self._shards)])

    def step_the_old(self) -> None:
        for owner in list(self._old):
            self._turn(owner)

    def crash(self, number: int) -> None:
        """Nothing is flushed or snapshotted; whoever waits asks the successor."""
        self._end(self._shards[number % len(self._shards)])
        self.done["crashes"] += 1

    def take_over(self, number: int) -> None:
        """The first owner goes on, and has not heard of the second."""
        place = number % len(self._shards)
        self._old.append(self._shards[place])
        self._shards[place] = self._successor(place)
        self.done["takeovers"] += 1

    def restart(self, count: int, every: int, *, clean: bool) -> None:
        """With another number of shards, after a clean stop or a crash of all."""
        gone = [*self._shards, *self._old]
        for owner in self._shards:
            if clean:
                owner.stop()
                self._collect(owner)
            else:
                owner.kill()
        for owner in self._old:
            owner.kill()
        self._old, self._every = [], every
        self.done["rescales" if count != len(self._shards) else "restarts"] += 1
        self._start(count)
        self._ask_again(gone)

    def snapshot(self, partition: int) -> None:
        self._owner_of(partition).request(TakeSnapshot(next(self._ids), partition, "", TIMEOUT_MS))

    def wait(self, milliseconds: int) -> None:
        self.network.clock.now += milliseconds

    # Questions

    def ask(self, key: str, query: Query[Any, Any], bound: Bound, *, old: bool = False) -> None:
        """`old`: of an owner that may not be one any more."""
        partition = self.network.home(key)
        name, version, body = query.__engram__.name or "", query.__engram__.version, query.model_dump_json().encode()
        request = Ask(0, partition, key, name, version, body, self._bound(partition, bound), TIMEOUT_MS)
        self._put(Asked(request, self._owner_of(partition, old=old), 0, query=query))

    def look(self, model: str, place: str, limit: int, bound: Bound, *, old: bool = False) -> None:
        """Looks at all partitions, page by page where there are pages."""
        scatter = Scatter(limit if model not in ("points", "bios") else ALL)
        for partition in range(PARTITIONS):
            at_least = self._bound(partition, bound)
            request = Look(0, partition, model, place, None, scatter.limit + 1, at_least, TIMEOUT_MS)
            self._put(Asked(request, self._owner_of(partition, old=old), 0, scatter=scatter))

    def come_to_rest(self) -> None:
        """Everything that is logged gets handled, and every question its answer or the reason why there is none."""
        deadline = time.monotonic() + _REST_SECONDS
        for _ in range(2):
            while not all(owner.at_rest and not _building(owner) for owner in self._shards) or self._requests():
                assert time.monotonic() < deadline, "the shards do not come to rest"
                self.step_the_old()
                for number in range(len(self._shards)):
                    self.step(number, 1)
            self.wait(2 * TIMEOUT_MS)
            for number in range(len(self._shards)):
                self.step(number, 1)
            self.step_the_old()
        while any(asked.owner in self._shards for asked in self._open.values()):
            assert time.monotonic() < deadline, f"nobody answers {self._open}"
            for number in range(len(self._shards)):
                self.step(number, 1)
        assert not self._open, "every question has an answer"

    def close(self) -> None:
        self.done["snapshots"] += sum(len(self.network.snapshots(p)) for p in range(PARTITIONS))
        self.network.close()

    # Shards, as Spark has them

    def _turn(self, owner: Owner) -> None:
        try:
            owner.step()
        except Fenced:
            self._end(owner)
            self.done["fenced"] += 1
        else:
            self._collect(owner)

    def _end(self, owner: Owner) -> None:
        """It is no more: another is started if it was the one of its place, and whoever waits asks that one."""
        owner.kill()
        if owner in self._old:
            self._old.remove(owner)
        else:
            place = self._shards.index(owner)
            self._shards[place] = self._successor(place)
        self._ask_again([owner])

    # What is said

    def _collect(self, owner: Owner) -> None:
        said, owner.line.sent[:] = [response for _, response in owner.line.sent], []
        for response in said:
            asked = self._open.pop(response.id, None) if isinstance(response, Answer | Refusal) else None
            if isinstance(response, Answer) and asked is not None:
                self._answered(asked, response)
            elif isinstance(response, Refusal) and asked is not None:
                self._refused(asked, response)

    def _answered(self, asked: Asked, answer: Answer) -> None:
        request = asked.request
        assert answer.partition == request.partition
        assert answer.offset < self.network.log.end(answer.partition), "an answer includes what is logged, no more"
        if request.at_least is not None:
            assert answer.offset >= request.at_least[0], f"{answer} is older than {request.at_least} of {request}"
            self.done["answers that had to include something"] += 1
        self._seen |= Token.of(club.app.name, PARTITIONS, [Position(answer.partition, answer.offset, answer.index)])
        members = self._past[answer.partition].at(answer.offset)
        if isinstance(request, Ask):
            _check_query(asked.query, members.get(request.key, Member(key=request.key)), answer.body)
            self.done["queries"] += 1
        elif isinstance(request, Look):
            assert asked.scatter is not None
            _check_look(request, members, answer.body)
            self.done["looks at one partition"] += 1
            asked.scatter.answers[answer.partition] = answer
            if len(asked.scatter.answers) == PARTITIONS:
                self._scattered(asked.scatter, request)

    def _scattered(self, scatter: Scatter, look: Look) -> None:
        """All partitions have answered, each at its own position: so must the model."""
        answers = scatter.answers.values()
        members = {key: member for a in answers for key, member in self._past[a.partition].at(a.offset).items()}
        self.done["lookups"] += 1
        self.done[f"lookups in {look.model}"] += 1
        if look.model == "points":
            assert merge_totals(subtotal_in(a.body) for a in answers) == club.totals(members, look.place)
            return
        rows, cursor = merge_rows((rows_in(answer.body) for answer in answers), scatter.limit)
        if look.model == "bios":
            assert {CODEC.rows["bios"].row(row.text) for row in rows} == club.found(members, look.place)
            return
        wanted = _after(_rows(look.model, members, look.place), look.after)
        assert rows == wanted[: scatter.limit]
        assert (cursor is not None) == (len(wanted) > scatter.limit), "there is a next page if there is more"
        if cursor is not None:
            following = Scatter(scatter.limit)
            for partition in range(PARTITIONS):
                request = Look(0, partition, look.model, look.place, cursor, look.limit, None, TIMEOUT_MS)
                self._put(Asked(request, self._owner_of(partition), 0, scatter=following))
            self.done["further pages"] += 1

    def _refused(self, asked: Asked, refusal: Refusal) -> None:
        request = asked.request
        if refusal.kind == "moved":
            self._put(replace(asked, owner=self._owner_of(request.partition)))
            self.done["asked again"] += 1
        elif refusal.kind == "rejected":
            assert isinstance(request, Ask)
            assert isinstance(asked.query, Standing)
            game = asked.query.game
            assert (refusal.code, refusal.text) == ("no_player", f"{request.key} does not play {game}.")
            # It does not say where it was: not before what was asked for.
            seen = self._past[request.partition].since(request.at_least[0] if request.at_least else -1)
            assert any(request.key not in members or game not in members[request.key].points for members in seen)
            self.done["rejected queries"] += 1
        elif refusal.kind == "behind":
            assert request.at_least is not None
            assert refusal.at is not None
            assert refusal.at < request.at_least[0], "it is not behind"
            assert self.network.clock.now >= asked.deadline, "it gave up too early"
            self.done["refused: not there in time"] += 1
        else:
            assert (refusal.kind, "is being built" in refusal.text) == ("building", True), refusal
            self.done["refused: being built"] += 1

    # Helpers

    def _bound(self, partition: int, bound: Bound) -> tuple[int, int] | None:
        end = self.network.log.end(partition)
        match bound:
            case "none":
                return None
            case "logged":
                return end - 1, 0
            case "beyond":
                return end, 0
        token = Token.parse(str(self._seen if bound == "seen" else self._written | self._seen))
        offset = token.offset(partition)
        return None if offset is None else (offset, 0)

    def _put(self, asked: Asked) -> None:
        number = next(self._ids)
        request = asked.request
        request = request._replace(id=number) if isinstance(request, Ask) else replace(request, id=number)
        deadline = self.network.clock.now + TIMEOUT_MS
        self._open[number] = replace(asked, request=request, deadline=deadline)
        asked.owner.request(request)

    def _ask_again(self, gone: Iterable[Owner]) -> None:
        owners = list(gone)
        for number, asked in list(self._open.items()):
            if asked.owner in owners:
                del self._open[number]
                self._put(replace(asked, owner=self._owner_of(asked.request.partition)))
                self.done["asked again"] += 1

    def _requests(self) -> bool:
        return any(owner.line.requests for owner in [*self._shards, *self._old])

    def _owner_of(self, partition: int, *, old: bool = False) -> Owner:
        owners = [*(self._old if old else []), *self._shards]
        return next(owner for owner in owners if partition in owner.shard.owned)

    def _successor(self, place: int) -> Owner:
        partitions = list(self._shards[place].shard.owned)
        return self.network.start(partitions, number=place, snapshot_every=self._every)

    def _start(self, count: int) -> None:
        self._shards = [
            self.network.start(range(number, PARTITIONS, count), number=number, snapshot_every=self._every)
            for number in range(count)
        ]


class _Past:
    """The members of one partition after each record of commands."""

    def __init__(self) -> None:
        self._now = Plain()
        self._offsets: list[int] = [-1]
        self._versions: list[Mapping[str, Member]] = [{}]

    def handle(self, offset: int, key: str, command: Command[Any, Any]) -> None:
        self._now.handle(key, command)
        if offset != self._offsets[-1]:
            self._offsets.append(offset)
            self._versions.append({})
        self._versions[-1] = self._now.copy().members

    def at(self, offset: int) -> Mapping[str, Member]:
        return self._versions[bisect_right(self._offsets, offset) - 1]

    def since(self, offset: int) -> list[Mapping[str, Member]]:
        return self._versions[bisect_right(self._offsets, offset) - 1 :]


def _building(owner: Owner) -> bool:
    return any(owned.building for owned in owner.shard.owned.values())


def _check_query(query: Query[Any, Any] | None, member: Member, body: bytes) -> None:
    if isinstance(query, Show):
        assert Card.model_validate_json(body) == club.card(member)
    else:
        assert isinstance(query, Standing)
        assert int(body) == member.points[query.game]


def _check_look(look: Look, members: Mapping[str, Member], body: bytes) -> None:
    if look.model == "points":
        assert merge_totals([subtotal_in(body)]) == club.totals(members, look.place)
        return
    rows = rows_in(body)
    if look.model == "bios":
        assert {CODEC.rows["bios"].row(row.text) for row in rows} == club.found(members, look.place)
        assert rows == sorted(rows), "the most relevant first"
    else:
        assert rows == _after(_rows(look.model, members, look.place), look.after)[: look.limit]


def _rows(model: str, members: Mapping[str, Member], place: str) -> list[Found]:
    """All rows at a place of a lookup or a ranking, in their order."""
    match model:
        case "marked":
            found = [(0, key, key) for key in club.marked(members, place)]
        case "players":
            found = [(0, player.who, player) for player in club.players(members, place)]
        case _:
            found = [(-points, key, key) for points, key in club.best(members, place)]
    return [Found(order, owner, CODEC.rows[model].placed((place, row))[1]) for order, owner, row in found]


def _after(rows: list[Found], after: tuple[float, str, str] | None) -> list[Found]:
    return [row for row in rows if after is None or row > after]
