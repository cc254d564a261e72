"""A deterministic simulation: production's code in one process, on virtual time, under faults that a seed draws.

`simulate` is for app authors. See docs/how-to/simulate-your-app.md, and docs/decisions/0020-the-simulator.md for how it
is made: `steps` and `draws` are what happens, `world` is where, `run` does it, `model` and `oracle` say what is right.
"""
