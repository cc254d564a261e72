"""Runs benchmarks by name: `python -m bench hotpath`, or all of them."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

# A benchmark is a module that measures; the others are what they share.
_NAMES = sorted(p.stem for p in Path(__file__).parent.glob("*.py") if "\ndef measure(" in p.read_text())
