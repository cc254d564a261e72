"""Rules that hold for everybody, changed while the network runs: every partition has them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Annotated

from engram import Broadcast, Context, Query, Rejected, Shared, allow
from pydantic import Field

Word = Annotated[str, Field(min_length=1, max_length=80, pattern=r"^\w+$")]


@dataclass(slots=True, kw_only=True)
class Rules(Shared, name="rules"):
    banned: dict[str, None] = field(default_factory=dict)  # words, as `words_of` gives them
    celebrity_from: int = 1000  # so many followers make a celebrity


def words_of(text: str) -> list[str]:
    """The words of a text, without regard to upper and lower case."""
    return re.findall(r"\w+", text.casefold())


class BanWord(Broadcast[Rules, None], name="ban_word", authorize=allow.operator):
    """From now on nobody publishes a post with this word."""

    word: Word

    def handle(self, rules: Rules, ctx: Context) -> None:
        rules.banned[self.word.casefold()] = None


class AllowWord(Broadcast[Rules, None], name="allow_word", authorize=allow.operator):
    """The word may be used again."""

    word: Word

    def handle(self, rules: Rules, ctx: Context) -> None:
        if self.word.casefold() not in rules.banned:
            raise Rejected("not_banned", f"The word {self.word} is not banned.")
        del rules.banned[self.word.casefold()]


class SetCelebrityFrom(Broadcast[Rules, None], name="set_celebrity_from", authorize=allow.operator):
    """How many followers make a celebrity, from the next post on. Who is one stays one."""

    followers: Annotated[int, Field(ge=1)]

    def handle(self, rules: Rules, ctx: Context) -> None:
        rules.celebrity_from = self.followers


class BannedWords(Query[Rules, list[str]], name="banned_words", authorize=allow.anyone):
    """The words that nobody may use, in the order in which they were banned."""

    def answer(self, rules: Rules) -> list[str]:
        return list(rules.banned)
