"""The bytes of a fixed run of the social network, as a line of JSON: the same from every Python and hash seed.

`python -m tests.testing.same_bytes`. Needs no Spark, Kafka or HTTP.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from datetime import timedelta
from random import Random

from engram import Command
from engram.testing import scenario

from sample_apps.social import app
from sample_apps.social.commands import Follow, Like, Publish, Register, Unfollow

USERS = [f"user{n}" for n in range(12)]
STEPS = 300


def run() -> dict[str, object]:
    """What the run comes to: a digest of each partition, and the sums of all bytes in log, states and events."""
    s = scenario(app)
    dice = Random(11)
    for user in USERS:
        s.when(user, Register(name=user.upper()))
    posts: list[tuple[str, str]] = []
    for _ in range(STEPS):
        user, whom = dice.choice(USERS), dice.choice(USERS)
        choices: list[Command] = [Follow(whom=whom), Unfollow(whom=whom), Publish(text=f"to {whom} {dice.random()}")]
        command = dice.choice(choices)
        then = s.when(user, command).handled()
        if isinstance(command, Publish):
            posts.append((user, str(then.reply)))
        elif posts:
            author, post = dice.choice(posts)
            s.when(user, Like(author=author, post=post)).handled()
        s.pass_time(timedelta(seconds=dice.randrange(90)))
    s.check()
    log = s._log
    records = [record for p in range(log.partitions) for record in log.read(p, 0, limit=1_000_000)]
    events = [event for p in range(log.partitions) for event in log.events(p, after=(-1, 0, 0), limit=1_000_000)]
    return {
        "digests": [checked.image.digest() for checked in s._images],
        "log": _sum(repr((r.partition, r.offset, r.time)).encode() + r.payload for r in records),
        "events": _sum(repr(event).encode() for event in events),
    }


def _sum(parts: object) -> str:
    total = hashlib.sha256()
    for part in parts:
        total.update(part)
    return total.hexdigest()


if __name__ == "__main__":
    sys.stdout.write(json.dumps({"python": platform.python_version(), **run()}) + "\n")
