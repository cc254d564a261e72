"""The public test kit."""

from __future__ import annotations

import engram.testing


def test_the_kit_is_six_names():
    """`engram.testing` exports these names, and each of them is there."""
    assert sorted(engram.testing.__all__) == [
        "LogConformance",
        "SnapshotConformance",
        "State",
        "commands",
        "scenario",
        "simulate",
    ]
    assert all(callable(getattr(engram.testing, name)) for name in engram.testing.__all__)
