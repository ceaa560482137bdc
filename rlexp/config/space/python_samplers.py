"""Samplers as Python has them: ``sample_from: "lambda spec: random.uniform(0, 1)"``, ``eval: tune.choice([1])``."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from rlexp.config.space.expressions import MAX_LENGTH
from rlexp.config.yaml.nodes import Node

KEYS = ("sample_from", "eval")
"""The keys of such a string."""

_MODULES = ("tune.", "ray.tune.", "np.random.", "numpy.random.", "random.")
_SAME = ("choice", "uniform", "loguniform", "quniform", "randint", "lograndint", "randn")
_NAMES: Mapping[str, str] = MappingProxyType({name: name for name in _SAME} | {"normal": "randn", "gauss": "randn"})


def sampler_call(node: Node) -> tuple[str, Any] | None:
    """Return the sampler's name and plain arguments if a node is ``{sample_from: text}`` of one call, else None."""
    entries = node.entries()
    key = next((key for key in KEYS if key in entries), None) if len(entries) == 1 else None
    text = entries[key].value if key else None
    if not isinstance(text, str) or len(text) > MAX_LENGTH:
        return None
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        body = tree.body if isinstance(tree, ast.Lambda) else tree
        if not isinstance(body, ast.Call) or body.keywords:
            return None
        module, _, name = ast.unparse(body.func).rpartition(".")
        arguments = [ast.literal_eval(argument) for argument in body.args]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    if f"{module}." not in _MODULES or name not in _NAMES:
        return None
    return _NAMES[name], _arguments(module, name, arguments)


def _arguments(module: str, name: str, arguments: list[Any]) -> Any:
    if name == "choice":
        return list(arguments[0]) if arguments and isinstance(arguments[0], list | tuple) else arguments
    if (module, name) == ("random", "randint") and len(arguments) == 2 and isinstance(arguments[1], int):
        return [arguments[0], arguments[1] + 1]  # Python's own has both ends, Tune's and NumPy's not the upper one
    return arguments
