"""The error tree and the public names: what is written down is what is there."""

import importlib
import inspect

import engram
import pytest
from engram import errors
from engram.errors import EngramError, Rejected


def drawn() -> dict[str, str]:
    """Each error of the tree in the docstring, with the one above it."""
    parents: dict[str, str] = {}
    above: list[str] = []
    for line in errors.__doc__.splitlines():
        name = line.lstrip(" │├└─").split(" ")[0]
        if not name or line.startswith("Everything"):
            continue
        depth = line.index(name) // 4
        above[depth:] = [name]
        parents[name] = above[depth - 1] if depth else "Exception"
    return parents


def test_the_tree_is_as_drawn():
    """Every error is in the drawing, under the class that it derives from, and nothing else is."""
    real = {
        name: cls.__bases__[0].__name__
        for name, cls in inspect.getmembers(errors, inspect.isclass)
        if issubclass(cls, Exception)
    }

    assert drawn() == real
    assert len(real) == 13


def test_errors_exports_the_tree():
    """`engram.errors.__all__` is the tree."""
    assert sorted(errors.__all__) == sorted(drawn())


def test_every_error_is_public():
    """What may be raised can be caught by a name of the top package."""
    for name in errors.__all__:
        assert getattr(engram, name) is getattr(errors, name)
        assert name in engram.__all__


def test_every_public_name_is_there():
    """`engram.__all__` is sorted, and each of its names can be had, the lazy ones included."""
    assert engram.__all__ == sorted(engram.__all__)
    for name in engram.__all__:
        assert getattr(engram, name) is not None


def test_there_is_no_other_public_name():
    """What the package holds without an underscore is a module of it, or is in `__all__`."""
    importlib.import_module("engram.serving.client")
    held = {name for name, value in vars(engram).items() if not name.startswith("_") and not inspect.ismodule(value)}

    assert held - {"TYPE_CHECKING", "Any"} | {"Client"} == set(engram.__all__)


def test_an_unknown_name():
    """A name that the package does not have is an `AttributeError`, as with any module."""
    with pytest.raises(AttributeError, match="module 'engram' has no attribute 'Clint'"):
        _ = engram.Clint


def test_a_rejection_says_its_code_and_text():
    """`code` is for programs, `text` for people; both are in the message."""
    rejected = Rejected("self_follow", "You cannot follow yourself.")

    assert (rejected.code, rejected.text) == ("self_follow", "You cannot follow yourself.")
    assert str(rejected) == "self_follow: You cannot follow yourself."
    assert str(Rejected("self_follow")) == "self_follow"
    assert isinstance(rejected, EngramError)
