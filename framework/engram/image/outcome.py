"""Outcomes: what became of a command, encoded once and kept for whoever asks again."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import NamedTuple

from engram.errors import Quarantined, Rejected


class Verdict(StrEnum):
    """The ways a command can end."""

    REPLY = "reply"
    REJECTED = "rejected"
    QUARANTINED = "quarantined"


class Outcome(NamedTuple):
    """`body` is JSON: the reply, or `{"code", "text"}` of a rejection, or `{"error"}` of a quarantine."""

    verdict: Verdict
    body: bytes

    @property
    def error(self) -> Rejected | Quarantined | None:
        """The exception that the sender sees; None for a reply."""
        if self.verdict is Verdict.REPLY:
            return None
        content = json.loads(self.body)
        if self.verdict is Verdict.REJECTED:
            return Rejected(content["code"], content["text"])
        return Quarantined(content["error"])


DONE = Outcome(Verdict.REPLY, b"null")


def rejection(problem: Rejected) -> Outcome:
    body = json.dumps({"code": str(problem.code), "text": str(problem.text)})
    return Outcome(Verdict.REJECTED, body.encode())


def quarantine(problem: BaseException) -> Outcome:
    # Only the type: a message may hold an address or a path, and differ on the next replay.
    return Outcome(Verdict.QUARANTINED, json.dumps({"error": type(problem).__name__}).encode())
