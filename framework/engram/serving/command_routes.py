"""Commands over HTTP: one in a request, or many."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from engram.errors import EngramError, Unsettled
from engram.image.outcome import Outcome, Verdict
from engram.model.command import Command
from engram.model.position import Position
from engram.serving.batch import BatchReader
from engram.serving.bounds import Bounds
from engram.serving.commands import Given, Handled
from engram.serving.guard import Endpoint, Guard
from engram.serving.parameters import (
    json_response,
    read_body,
    read_command_id,
    read_idempotency_key,
    read_parameters,
    read_seconds,
    read_wait,
)
from engram.serving.problems import Problem, error_content, of_error, written
from engram.serving.service import Service


def one_command(service: Service, guard: Guard, cls: type[Command[Any, Any]]) -> Endpoint:
    """A route of each command: its fields are the body, and its reply or problem is the response."""
    bounds = Bounds(service.log)

    async def endpoint(request: Request) -> Response:
        parameters = read_parameters(request, {"key", "wait", "timeout"})
        wait, seconds = read_wait(parameters, "reply", "log", "effects"), read_seconds(parameters)
        command = cls.__pydantic_validator__.validate_json(await read_body(request, guard.body_bytes) or b"{}")
        key = service.checked_key(parameters.get("key", ""), command)
        principal = request.state.principal
        guard.check(principal, command, key)
        command_id, idempotency_key = read_command_id(request, principal), read_idempotency_key(request, principal)
        if wait == "log":
            position = await service.submit(key, command, command_id=command_id, idempotency_key=idempotency_key)
            response = json_response(202, b'{"position":"%s"}' % position.written(), position)
            return bounds.carry(request, response, bounds.of(position))
        began = time.monotonic()
        position, outcome = await service.send(
            key, command, command_id=command_id, idempotency_key=idempotency_key, seconds=seconds
        )
        token = bounds.of(position)
        if outcome.verdict is not Verdict.REPLY:
            response = _refused(outcome, position)
        elif wait == "effects":
            try:
                token = bounds.of(*await service.settle(position, seconds=seconds - (time.monotonic() - began)))
                content = outcome.body, position.written(), str(token).encode()
                response = json_response(200, b'{"reply":%s,"position":"%s","token":"%s"}' % content, position)
            except Unsettled as problem:
                response = of_error(problem, position=str(position), reply=json.loads(outcome.body))
        else:
            response = json_response(200, _replied(outcome, position), position)
        return bounds.carry(request, response, token)

    return endpoint


def many_commands(service: Service, guard: Guard) -> Endpoint:
    """The route of the app for many commands in one request: each has its reply, or its problem, in its place."""
    bounds = Bounds(service.log)
    reader = BatchReader(service.app, service.commands.checked_key)

    async def endpoint(request: Request) -> Response:
        parameters = read_parameters(request, {"wait", "timeout"})
        wait, seconds = read_wait(parameters, "reply", "log"), read_seconds(parameters)
        entries = reader.split(await read_body(request, guard.body_bytes))
        guard.charge(request, len(entries))
        read = reader.read(entries, request, guard)
        given = [entry for entry in read if isinstance(entry, Given)]
        found: Sequence[Handled | Position | EngramError]
        if wait == "log":
            found = await service.commands.submit(given)
        else:
            found = await service.commands.send(given, seconds=seconds)
        results = iter(found)
        contents = [_content(next(results) if isinstance(entry, Given) else entry) for entry in read]
        response = json_response(202 if wait == "log" else 200, b'{"replies":[%s]}' % b",".join(contents))
        positions = [each.position if isinstance(each, Handled) else each for each in found]
        return bounds.carry(request, response, bounds.of(*(p for p in positions if isinstance(p, Position))))

    return endpoint


def _content(result: Handled | Position | EngramError | Problem) -> bytes:
    if isinstance(result, Handled) and result.outcome.verdict is Verdict.REPLY:  # by far the most common
        return _replied(result.outcome, result.position)
    match result:
        case Handled(position, outcome):
            assert outcome.error is not None
            return b'{"problem":%s}' % written(error_content(outcome.error, position=str(position)))
        case Position():
            return b'{"position":"%s"}' % result.written()
        case EngramError():
            return b'{"problem":%s}' % written(error_content(result))
        case _:
            return b'{"problem":%s}' % written(result)


def _replied(outcome: Outcome, position: Position) -> bytes:
    return b'{"reply":%s,"position":"%s"}' % (outcome.body, position.written())


def _refused(outcome: Outcome, position: Position) -> Response:
    assert outcome.error is not None
    response = of_error(outcome.error, position=str(position))
    response.headers["Engram-Position"] = str(position)
    return response
