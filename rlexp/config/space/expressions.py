"""Arithmetic in experiment files, ``eval: 4 + spec.config.num_workers``: our own reading of it, never Python's.

What is allowed is listed here: numbers, strings, lists, comparisons, ``a if b else c``, a few functions and keys of the
experiment. An expression is short and its numbers are bounded, so none can take long.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

EVAL = "eval"
"""The key of an expression, which stands in place of a value."""
MAX_LENGTH = 1000
"""Characters of an expression."""
LARGEST = 1e15
"""Bound of every number on the way: far above any step count."""


class ExpressionError(Exception):
    """An expression that is not understood; the message ends a sentence that starts with its key."""


Lookup = Callable[[tuple[str, ...]], Any]
"""Returns the value of ``spec.a.b``, given ``("a", "b")``; raises ExpressionError."""

_BINARY: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_UNARY: Mapping[type, Callable[[Any], Any]] = {ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Not: operator.not_}
_COMPARISONS: Mapping[type, Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "int": int,
    "float": float,
    "bool": bool,
    "round": round,
    "abs": abs,
    "min": min,
    "max": max,
    "math.ceil": math.ceil,
    "math.floor": math.floor,
    "math.sqrt": math.sqrt,
    "math.log": math.log,
    "math.exp": math.exp,
}


def evaluated(text: str, lookup: Lookup) -> Any:
    """Return the value of an expression, written bare or as ``lambda spec: ...``; raises ExpressionError."""
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"is longer than {MAX_LENGTH} characters")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        if isinstance(tree, ast.Lambda) and [argument.arg for argument in tree.args.args] == ["spec"]:
            tree = tree.body
        return _value(tree, lookup)
    except SyntaxError as error:
        raise ExpressionError(f"is not valid: {error.msg}") from error
    except (ArithmeticError, TypeError, ValueError, RecursionError, MemoryError) as error:
        raise ExpressionError(f"cannot be computed: {error}") from error


def _value(node: ast.expr, lookup: Lookup) -> Any:
    if isinstance(node, ast.Constant):
        return _bounded(node.value)
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(item, lookup) for item in node.elts]
    if isinstance(node, ast.Attribute):
        return lookup(_path(node))
    if isinstance(node, ast.IfExp):
        return _value(node.body if _value(node.test, lookup) else node.orelse, lookup)
    if isinstance(node, ast.Compare):
        return _comparison(node, lookup)
    if isinstance(node, ast.Call):
        return _call(node, lookup)
    return _operation(node, lookup)


def _operation(node: ast.expr, lookup: Lookup) -> Any:
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        left, right = _value(node.left, lookup), _value(node.right, lookup)
        if not isinstance(left, int | float) or not isinstance(right, int | float):
            raise ExpressionError("computes with a value that is not a number")
        if isinstance(node.op, ast.Pow) and abs(right) > math.log(LARGEST, 2):
            raise ExpressionError("has too large an exponent")
        return _bounded(_BINARY[type(node.op)](left, right))
    if isinstance(node, ast.UnaryOp) and type(node.op) in _UNARY:
        return _UNARY[type(node.op)](_value(node.operand, lookup))
    if isinstance(node, ast.BoolOp):
        values = [_value(item, lookup) for item in node.values]
        return all(values) if isinstance(node.op, ast.And) else any(values)
    raise ExpressionError(f"contains {ast.unparse(node)[:40]}, which is not allowed")


def _comparison(node: ast.Compare, lookup: Lookup) -> bool:
    values = [_value(item, lookup) for item in (node.left, *node.comparators)]
    if not all(type(kind) in _COMPARISONS for kind in node.ops):
        raise ExpressionError("contains a comparison that is not allowed")
    pairs = zip(node.ops, values, values[1:], strict=False)
    return all(_COMPARISONS[type(kind)](left, right) for kind, left, right in pairs)


def _call(node: ast.Call, lookup: Lookup) -> Any:
    name = ast.unparse(node.func)
    if name.startswith(("random.", "np.random.", "numpy.random.")):
        raise ExpressionError(f"is random ({name})")
    if name not in _FUNCTIONS or node.keywords:
        raise ExpressionError(f"calls {name[:40]}, which is not allowed")
    return _bounded(_FUNCTIONS[name](*(_value(argument, lookup) for argument in node.args)))


def _path(node: ast.expr) -> tuple[str, ...]:
    """Return ``("a", "b")`` for ``spec.a.b``."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.insert(0, node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id != "spec":
        raise ExpressionError(f"uses {ast.unparse(node)[:40]}, but only spec is known")
    return tuple(names)


def _bounded(value: Any) -> Any:
    if isinstance(value, complex) or (isinstance(value, int | float) and not abs(value) <= LARGEST):
        raise ExpressionError(f"gives a number above {LARGEST:g}")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ExpressionError("contains a value that is not allowed")
