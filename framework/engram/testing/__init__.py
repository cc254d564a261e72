"""What app authors and adapter authors test with.

`scenario`, `commands` and `simulate` are for tests of an app; `LogConformance` and `SnapshotConformance` are the
contracts of logs and snapshot stores, as tests that every adapter's own inherit. Install `engram[testing]`.
"""

from engram.testing.logs import LogConformance
from engram.testing.scenario import scenario
from engram.testing.simulator.simulate import simulate
from engram.testing.simulator.state import State
from engram.testing.stores import SnapshotConformance
from engram.testing.strategies import commands

__all__ = ["LogConformance", "SnapshotConformance", "State", "commands", "scenario", "simulate"]
