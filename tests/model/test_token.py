"""Tokens: they merge, they come back from their text, and one that is not whole is noticed."""

from __future__ import annotations

import pytest
from engram import Foreign, Misuse, Position, Token
from engram.model.sealed import seal
from hypothesis import given, settings
from hypothesis import strategies as st

PARTITIONS = 8
offsets = st.dictionaries(st.integers(0, PARTITIONS - 1), st.integers(0, 10**15 - 1))
tokens = st.builds(Token, st.just("social"), st.just(PARTITIONS), offsets)
characters = st.characters(min_codepoint=33, max_codepoint=126)


@given(tokens, tokens, tokens)
def test_merging_is_a_semilattice(a: Token, b: Token, c: Token):
    """In which order tokens are merged, and how often, makes no difference."""
    assert a | b == b | a
    assert (a | b) | c == a | (b | c)
    assert a | a == a


@given(tokens, tokens)
def test_a_merged_token_covers_both_and_nothing_more(a: Token, b: Token):
    """Of each partition the later record is asked for."""
    for partition in range(PARTITIONS):
        known = [offset for offset in (a.offset(partition), b.offset(partition)) if offset is not None]
        assert (a | b).offset(partition) == max(known, default=None)


@given(tokens)
def test_text_and_back(token: Token):
    """A token is read back from its text, which a header, a URL and a cookie take as it is."""
    text = str(token)

    assert Token.parse(text) == token
    assert hash(Token.parse(text)) == hash(token)
    assert set(text) <= set("abcdefghijklmnopqrstuvwxyz0123456789_.:~")


def test_the_text():
    """App and partitions, a record of each partition that is known, and a checksum."""
    token = Token.of("social", 4, [Position(2, 7, 0), Position(0, 12, 3), Position(2, 5, 9)])

    assert str(token) == "social.4~0:12_2:7~ff80ae71"
    assert repr(token) == "Token.parse('social.4~0:12_2:7~ff80ae71')"


@settings(max_examples=300)
@given(tokens, st.data())
def test_any_change_of_one_character_is_noticed(token: Token, data: st.DataObject):
    """Replaced, left out or put in: the text is refused, unless it is the same as before."""
    text = str(token)
    place = data.draw(st.integers(0, len(text) - 1))
    new = data.draw(characters)
    kept = data.draw(st.integers(0, 1))
    changed = text[:place] + data.draw(st.sampled_from(["", new])) + text[place + kept :]
    if changed != text:
        with pytest.raises(Foreign, match="is not a token"):
            Token.parse(changed)


@given(st.text())
def test_any_text_is_a_token_or_refused(text: str):
    """Whatever comes from outside, nothing but `Foreign` is raised."""
    for given_out in (text, seal(text), seal(f"social.8~{text}")):
        try:
            token = Token.parse(given_out)
        except Foreign:
            continue
        assert str(token) == given_out


@pytest.mark.parametrize(
    "content",
    ["social.8~8:1", "social.8~1:1_0:1", "social.8~0:1_0:2", "social.8~01:1", "social.8~0:", "social.08~0:1", "x.8~0"],
)
def test_a_right_checksum_is_not_enough(content: str):
    """A text that no token is written as is refused, whoever has worked its checksum out."""
    with pytest.raises(Foreign, match="is not a token"):
        Token.parse(seal(content))


@pytest.mark.parametrize(("app", "partitions"), [("bakery", 4), ("social", 8)])
def test_a_token_of_another_app(app: str, partitions: int):
    """It is refused with both names and numbers, and merges with nothing of ours."""
    ours, other = Token("social", 4), Token(app, partitions, {1: 1})

    with pytest.raises(Foreign, match=f"of app {app} with {partitions} partitions; this is social with 4"):
        other.check("social", 4)
    with pytest.raises(Misuse, match="does not merge"):
        _ = ours | other
    ours.check("social", 4)
