"""What app authors and adapter authors test with.

`scenario`, `machine`, `commands`, `queries` and `simulate` are for tests of an app, `Model`, `Scenario` and `State` are
what they speak of. `LogConformance` and `SnapshotConformance` are the contracts of logs and snapshot stores, as tests
that every adapter's own inherit. `engram.testing.history` records and checks what clients of a running app see. Install
`engram[testing]`.
"""

from engram.testing.logs import LogConformance
from engram.testing.machine import machine
from engram.testing.model import Model
from engram.testing.scenario import Scenario, scenario
from engram.testing.simulator.simulate import simulate
from engram.testing.simulator.state import State
from engram.testing.stores import SnapshotConformance
from engram.testing.strategies import commands, queries

__all__ = [
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
