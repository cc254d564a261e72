"""What the source of a handler says of how it uses what it is given."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any, NamedTuple

Uses = tuple[tuple[str, ast.expr_context], ...]


class Asked(ast.Load):
    """Loaded to ask whether something is in it, and for nothing else."""


def parameter_uses(function: Callable[..., Any], place: int | str) -> Uses | None:
    """The attributes of a function's parameter that it loads, stores or deletes, `self` being number 0.

    None when it uses the parameter in any other way, so that it goes where this cannot look, or when the source does
    not tell: it must be that of the running code, for files change. Looked up once per function and process; these are
    the only files that an image ever reads.
    """
    way = _way(function, place)
    return None if way is None or way.passed else way.uses


def object_uses(function: Callable[..., Any], place: int | str, cls: type[Any]) -> Uses | None:
    """The same for a parameter that is a `cls`, with all that becomes of it in functions that it is passed to by their
    names, and in its own methods and properties. See docs/decisions/0033-functions-are-followed.md."""
    return _followed(function, place, cls, ())


def _followed(function: Any, place: int | str, cls: type[Any], on_the_way: tuple[Any, ...]) -> Uses | None:
    way = None if function in on_the_way else _way(function, place)
    if way is None:
        return None
    on_the_way += (function,)
    uses: list[tuple[str, ast.expr_context]] = []
    nexts: list[tuple[Any, int | str]] = [(function.__globals__.get(name), there) for name, there in way.passed]
    for name, how in way.uses:
        method = _method(cls, name) if isinstance(how, ast.Load) else None
        if method is None:
            uses.append((name, how))
        else:
            nexts.append((method, 0))
    for called, there in nexts:
        found = _followed(called, there, cls, on_the_way) if isinstance(called, FunctionType) else None
        if found is None:
            return None
        uses += found
    return tuple(uses)


def _method(cls: type[Any], name: str) -> Any:
    found = inspect.getattr_static(cls, name, None)
    return found.fget if isinstance(found, property) else found if isinstance(found, FunctionType) else None


class _Way(NamedTuple):
    """What becomes of a parameter: its attributes that are used, and the functions that it is passed to, by their
    names, with their parameters, by number or name."""

    uses: Uses
    passed: tuple[tuple[str, int | str], ...]


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
    found, uses = _definition(handle), parameter_uses(handle, 1)
    if found is None or uses is None or any(isinstance(node, _LATER) for node in ast.walk(found)):
        return None
    last = found.body[-1]
    targets = last.targets if isinstance(last, ast.Assign) else [last.target] if isinstance(last, ast.AugAssign) else []
    stored = [name for name, how in uses if not isinstance(how, ast.Load)]
    if len(targets) != 1 or not isinstance(targets[0], ast.Attribute) or len(stored) != 1:
        return None
    if parameter_uses(handle, 2) != ():  # its context
        return None
    of, entity = targets[0].value, (found.args.posonlyargs + found.args.args)[1].arg
    return targets[0].attr if isinstance(of, ast.Name) and of.id == entity else None


_LATER = (ast.Return, ast.Yield, ast.YieldFrom, ast.Await, ast.Lambda, ast.AsyncFunctionDef)
_KNOWN: dict[tuple[Callable[..., Any], int | str], _Way | None] = {}
_LAST: dict[Callable[..., Any], str | None] = {}


def _definition(function: Callable[..., Any]) -> ast.FunctionDef | None:
    try:
        source = textwrap.dedent(inspect.getsource(function))
        definition = ast.parse(source).body[0]
        running = function.__code__
        if not isinstance(definition, ast.FunctionDef) or running.co_freevars:
            return None
        if not all(isinstance(each, ast.Name) and each.id == "property" for each in definition.decorator_list):
            return None
        module = compile(ast.Module([definition], []), "handle", "exec")
        compiled = next(c for c in module.co_consts if isinstance(c, CodeType) and c.co_name == running.co_name)
    except (OSError, TypeError, SyntaxError, IndexError, AttributeError, StopIteration):
        return None
    same = (compiled.co_code, compiled.co_names) == (running.co_code, running.co_names)
    return definition if same else None


def _way(function: Callable[..., Any], place: int | str) -> _Way | None:
    asked = function, place
    if asked not in _KNOWN:
        found = _definition(function)
        _KNOWN[asked] = None if found is None else _way_in(found, place)
    return _KNOWN[asked]


def _way_in(function: ast.FunctionDef, place: int | str) -> _Way | None:
    name = _name_of(function, place)
    uses, passed = [], []
    known = set()  # where the name stands
    asked = {node.comparators[0] for node in ast.walk(function) if isinstance(node, ast.Compare) and _asks(node)}
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == name:
            known.add(node.value)
            uses.append((node.attr, Asked() if node in asked else node.ctx))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            for there, argument in _arguments(node):
                if isinstance(argument, ast.Name) and argument.id == name:
                    known.add(argument)
                    passed.append((node.func.id, there))
    mentioned = {node for node in ast.walk(function) if isinstance(node, ast.Name) and node.id == name}
    local = any(_binds(node, called) for node in ast.walk(function) for called, _ in passed)
    return None if name is None or mentioned - known or local else _Way(tuple(uses), tuple(passed))


def _asks(comparison: ast.Compare) -> bool:
    return len(comparison.ops) == 1 and isinstance(comparison.ops[0], ast.In | ast.NotIn)


def _name_of(function: ast.FunctionDef, place: int | str) -> str | None:
    by_number = [each.arg for each in function.args.posonlyargs + function.args.args]
    if isinstance(place, int):
        return by_number[place] if place < len(by_number) else None
    by_name = [each.arg for each in function.args.args + function.args.kwonlyargs]
    return place if place in by_name else None


def _arguments(call: ast.Call) -> Iterator[tuple[int | str, ast.expr]]:
    """Those of which it is certain which parameters they are."""
    for number, argument in enumerate(call.args):
        if isinstance(argument, ast.Starred):
            break
        yield number, argument
    for keyword in call.keywords:
        if keyword.arg is not None:
            yield keyword.arg, keyword.value


def _binds(node: ast.AST, name: str) -> bool:
    """Whether it may give the name another meaning than that of the module."""
    if isinstance(node, ast.Name):
        return node.id == name and not isinstance(node.ctx, ast.Load)
    if isinstance(node, ast.Attribute | ast.keyword | ast.Constant):
        return False
    fields = [value for _, value in ast.iter_fields(node)]
    return name in fields or any(name in each for each in fields if isinstance(each, list))
