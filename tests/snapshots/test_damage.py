"""Two thousand damages to snapshots: each is detected or harmless; never a wrong image, never a start that fails."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.snapshots.mutations import MUTATIONS, Story

EACH = 134


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    told = Story(tmp_path_factory.mktemp("story"))
    yield told
    told.close()


def test_there_are_two_thousand():
    """As many as were asked for, of all kinds."""
    assert EACH * len(MUTATIONS) >= 2000


@pytest.mark.parametrize("kind", MUTATIONS)
def test_damage_is_detected_or_harmless(story: Story, kind: str):
    """What is loaded is what was published, at its offset; a second start finds the same; and work can go on: the next
    snapshot is written and loaded."""
    detected = 0
    for seed in range(EACH):
        damage = story.damage(Random(f"{kind} {seed}"), kind)
        detected += damage.detected
        if seed % 20 == 0:
            story.go_on()

    assert detected > EACH / 5, "most of the damage is done to what is loaded"


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), kinds=st.lists(st.sampled_from(sorted(MUTATIONS)), min_size=2, max_size=5))
def test_damages_together_are_detected_or_harmless(story: Story, seed: int, kinds: list[str]):
    """Several at once, of any kinds."""
    story.damage(Random(seed), *kinds)
    story.go_on()
