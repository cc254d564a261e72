"""What a function's code shows and running it does not: where the order of a set decides, and assigned variables.

Sets of texts iterate in an order that differs from process to process. Within one process nothing shows it, so it
cannot be noticed while a handler runs.
"""

from __future__ import annotations

import ast
import dis
import inspect
import textwrap
from functools import cache
from types import CodeType
from typing import Any

_SETS = ("set", "frozenset")
_OPERATORS = (ast.BitOr, ast.BitAnd, ast.Sub, ast.BitXor)
_COMBINED = {"union", "intersection", "difference", "symmetric_difference", "copy"}
# What comes out of these does not depend on the order of what goes in; of min and max with a key it does.
_ORDERLESS = {"sorted", "len", "sum", "min", "max", "any", "all", "set", "frozenset", "bool", "isinstance"}
_ORDERLY = {"list", "tuple", "enumerate", "iter", "zip", "map", "filter", "dict", "str", "repr", "deque", "print"}
_ORDERLY_METHODS = {"join", "extend", "fromkeys", "writelines"}

_known: dict[CodeType, list[tuple[int, str]]] = {}


def lines_in_order(code: CodeType, names: dict[str, Any]) -> list[tuple[int, str]]:
    """The lines of a function, and what they do, in which the order of a set decides. `names` are its module's.

    Nothing for a function without source, and for what is within another function, which is looked at with that.
    """
    if code not in _known:
        _known[code] = [] if code.co_name.startswith("<") else _read(code, names)
    return _known[code]


@cache
def assigned_variables(code: CodeType) -> list[tuple[int, str]]:
    """The variables of its module that a function assigns, with the lines."""
    steps = [step for step in dis.get_instructions(code) if step.opname == "STORE_GLOBAL"]
    return [(step.positions.lineno or 0 if step.positions else 0, step.argval) for step in steps]


def _read(code: CodeType, names: dict[str, Any]) -> list[tuple[int, str]]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(code)))
    except (OSError, TypeError, SyntaxError):
        return []
    reader = _Reader(tree, names)
    found = {(node.lineno + code.co_firstlineno - 1, ast.unparse(node)) for node in reader.orderly()}
    return sorted(found)


class _Reader:
    def __init__(self, tree: ast.Module, names: dict[str, Any]) -> None:
        self._nodes = list(ast.walk(tree))
        self._names = names
        self._sets: set[str] = set()
        self._others: set[str] = set()
        for _ in range(2):  # a second time for names that are assigned from names
            for node in self._nodes:
                self._learn(node)
        self._quiet = {id(inner) for node in self._nodes for inner in self._within_orderless(node)}

    def orderly(self) -> list[ast.expr]:
        """The expressions that take a set's order."""
        return [taken for node in self._nodes if id(node) not in self._quiet for taken in self._taken(node)]

    def _learn(self, node: ast.AST) -> None:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    (self._sets if self._is_set(node.value) else self._others).add(target.id)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            (self._sets if _says_set(node.annotation) else self._others).add(node.target.id)
        elif isinstance(node, ast.arg):
            (self._sets if node.annotation is not None and _says_set(node.annotation) else self._others).add(node.arg)

    def _is_set(self, node: ast.expr) -> bool:  # noqa: PLR0911 - one return for each kind of expression
        match node:
            case ast.Set() | ast.SetComp() | ast.Call(func=ast.Name(id="set" | "frozenset")):
                return True
            case ast.Call(func=ast.Attribute(value=value, attr=name)):
                return name in _COMBINED and self._is_set(value)
            case ast.BinOp(left=left, op=operator, right=right):
                sides = [self._is_set(side) or _is_keys(side) for side in (left, right)]
                return isinstance(operator, _OPERATORS) and any(sides)
            case ast.IfExp(body=one, orelse=other):
                return self._is_set(one) or self._is_set(other)
            case ast.NamedExpr(value=value):
                return self._is_set(value)
            case ast.Name(id=name):
                outer = name not in self._others and isinstance(self._names.get(name), (set, frozenset))
                return name in self._sets or outer
        return False

    def _within_orderless(self, node: ast.AST) -> list[ast.AST]:
        """What may take a set as it comes, because nothing of its order is left afterwards."""
        if isinstance(node, ast.SetComp):
            return list(node.generators)
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _ORDERLESS):
            return []
        if node.func.id in ("min", "max") and node.keywords:
            return []
        quiet: list[ast.AST] = []
        for argument in node.args:
            quiet.append(argument)
            if isinstance(argument, ast.GeneratorExp | ast.ListComp):
                quiet += argument.generators
        return quiet

    def _taken(self, node: ast.AST) -> list[ast.expr]:  # noqa: PLR0911 - one return for each way
        match node:
            case ast.For(iter=taken) | ast.comprehension(iter=taken):
                return [taken] if self._is_set(taken) else []
            case ast.Call(func=ast.Attribute(value=value, attr="pop"), args=[]):
                return [node] if self._is_set(value) else []
            case ast.Call(func=ast.Name(id=name), args=arguments) if name in _ORDERLY or name in ("min", "max"):
                if name in _ORDERLY or node.keywords:
                    return [node] if any(map(self._is_set, arguments)) else []
                return []
            case ast.Call(func=ast.Attribute(attr=name), args=arguments) if name in _ORDERLY_METHODS:
                return [node] if any(map(self._is_set, arguments)) else []
            case ast.Starred(value=value) | ast.FormattedValue(value=value):
                return [value] if self._is_set(value) else []
            case ast.Assign(targets=[ast.Tuple() | ast.List()], value=value):
                return [value] if self._is_set(value) else []
        return []


def _says_set(annotation: ast.expr) -> bool:
    text = annotation.value if isinstance(annotation, ast.Constant) else ast.unparse(annotation)
    return str(text).partition("[")[0] in _SETS


def _is_keys(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("keys", "items")
