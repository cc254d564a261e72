"""What the source of a handler says of how it uses what it is given."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from types import CodeType
from typing import Any

Uses = tuple[tuple[str, ast.expr_context], ...]


def parameter_uses(function: Callable[..., Any], number: int) -> Uses | None:
    """The attributes of a function's parameter that it loads, stores or deletes, `self` being number 0.

    None when it uses the parameter in any other way, so that it goes where this cannot look, or when the source does
    not tell: it must be that of the running code, for files change. Looked up once per function and process; these are
    the only files that an image ever reads.
    """
    asked = function, number
    if asked not in _KNOWN:
        found = _definition(function)
        _KNOWN[asked] = None if found is None else _uses(found, number)
    return _KNOWN[asked]


def assigned_last(handle: Callable[..., Any]) -> str | None:
    """The field of its entity that a handler assigns as the last thing it does, if it assigns no other and does nothing
    after it: whatever it raises, it has not assigned it.

    None when that is not certain: also for one that uses its context, or replies: effects and replies are looked
    at once it has returned. Looked up once per handler and process.
    """
    if handle not in _LAST:
        _LAST[handle] = _assigned_last(handle)
    return _LAST[handle]


def _assigned_last(handle: Callable[..., Any]) -> str | None:
    found = _definition(handle)
    uses = None if found is None else _uses(found, 1)
    if found is None or uses is None or any(isinstance(node, _LATER) for node in ast.walk(found)):
        return None
    last = found.body[-1]
    targets = last.targets if isinstance(last, ast.Assign) else [last.target] if isinstance(last, ast.AugAssign) else []
    stored = [name for name, how in uses if not isinstance(how, ast.Load)]
    if len(targets) != 1 or not isinstance(targets[0], ast.Attribute) or len(stored) != 1 or _uses(found, 2) != ():
        return None
    of, entity = targets[0].value, (found.args.posonlyargs + found.args.args)[1].arg
    return targets[0].attr if isinstance(of, ast.Name) and of.id == entity else None


_LATER = (ast.Return, ast.Yield, ast.YieldFrom, ast.Await, ast.Lambda, ast.AsyncFunctionDef)
_KNOWN: dict[tuple[Callable[..., Any], int], Uses | None] = {}
_LAST: dict[Callable[..., Any], str | None] = {}


def _definition(function: Callable[..., Any]) -> ast.FunctionDef | None:
    try:
        source = textwrap.dedent(inspect.getsource(function))
        definition = ast.parse(source).body[0]
        running = function.__code__
        if not isinstance(definition, ast.FunctionDef) or definition.decorator_list or running.co_freevars:
            return None
        module = compile(ast.Module([definition], []), "handle", "exec")
        compiled = next(c for c in module.co_consts if isinstance(c, CodeType) and c.co_name == running.co_name)
    except (OSError, TypeError, SyntaxError, IndexError, AttributeError, StopIteration):
        return None
    same = (compiled.co_code, compiled.co_names) == (running.co_code, running.co_names)
    return definition if same else None


def _uses(function: ast.FunctionDef, number: int) -> Uses | None:
    parameters = function.args.posonlyargs + function.args.args
    if number >= len(parameters):
        return None
    name = parameters[number].arg
    uses = []
    by_attribute = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == name:
            by_attribute.add(node.value)
            uses.append((node.attr, node.ctx))
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and node.id == name and node not in by_attribute:
            return None
    return tuple(uses)
