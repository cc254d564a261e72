"""The public test kit."""

from __future__ import annotations

import engram.testing


def test_the_kit_is_ten_names():
    """`engram.testing` exports these names, and each of them is there."""
    assert sorted(engram.testing.__all__) == [
        "LogConformance",
        "Model",
        "Scenario",
        "SnapshotConformance",
        "State",
        "commands",
        "machine",
        "queries",
        "scenario",
        "simulate",
    ]
    assert all(callable(getattr(engram.testing, name)) for name in engram.testing.__all__)
