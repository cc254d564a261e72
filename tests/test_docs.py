"""The docs cannot lie: their Python runs, their links lead somewhere, every command is described."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import typer.main
from engram.cli.main import app as cli

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#]+)\)")


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_the_python_of_a_page_runs(page, monkeypatch):
    """All Python blocks of a page run, one after the other, in one module."""
    module = ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    for block in FENCE.findall(page.read_text()):
        exec(compile(block, named(page), "exec", dont_inherit=True), vars(module))


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_the_links_of_a_page_lead_somewhere(page):
    """Every relative link names a file that is there."""
    links = [link for link in LINK.findall(page.read_text()) if "://" not in link]

    assert [link for link in links if not (page.parent / link).exists()] == []


def test_every_make_target_of_the_readme_exists():
    """What the README tells to type is there."""
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))

    assert set(re.findall(r"make ([a-z]+)", (ROOT / "README.md").read_text())) <= targets


def test_every_command_is_in_the_reference():
    """The generated page has every command of the command line."""
    page = (ROOT / "docs" / "reference" / "cli.md").read_text()

    assert [name for name in typer.main.get_command(cli).commands if f"## engram {name}" not in page] == []


def test_the_tests_that_the_guarantees_name_exist():
    """A guarantee points to tests that are there."""
    page = (ROOT / "docs" / "explanation" / "guarantees.md").read_text()

    assert [path for path in re.findall(r"`(tests/[^`]+)`", page) if not (ROOT / path).exists()] == []
