"""Samplers, ``{loguniform: [1e-4, 1e-2]}`` or in Python's spelling: read into domains, or findings about them."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from rlexp.config.space.domains import Domain, Listed, Normal, Number, Range, multiple
from rlexp.config.translation import node_of
from rlexp.config.yaml.nodes import KeyPath, Node, shown

GRID = "grid_search"
CHOICE = "choice"

FREE_FORM = "env_config"
"""A mapping with the user's own keys: in it ``{choice: 3}`` is not a sampler."""

EVAL = "eval"
MAX_LENGTH = 1000
"""Most characters of a value in Python's spelling."""

PYTHON_KEYS = ("sample_from", EVAL)
"""The keys of a sampler in Python's spelling: ``sample_from: "lambda spec: random.uniform(0, 1)"``."""

_MODULES = ("tune.", "ray.tune.", "np.random.", "numpy.random.", "random.")

_SAME_NAMES = (CHOICE, "uniform", "loguniform", "quniform", "randint", "lograndint", "randn")

_NAMES: Mapping[str, str] = MappingProxyType(
    {name: name for name in _SAME_NAMES} | {"normal": "randn", "gauss": "randn"}
)


class MalformedError(Exception):
    """A sampler with wrong arguments; its message follows the key, its hint is the next line."""

    def __init__(self, place_of: Node, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.node = place_of
        self.message = message
        self.hint = hint


@dataclass(frozen=True)
class Sampled:
    """The meaning of a sampler."""

    domain: Domain
    ends: tuple[Node, ...]
    """Values that decide whether all are valid: every value of a list, the ends of a range."""


def sampler_in(node: Node, path: KeyPath) -> tuple[str, Node] | None:
    """Return the sampler's name and its arguments if the node is one (``grid_search`` is not), else None."""
    if not path or path[-1] == FREE_FORM:
        return None
    call = _python_sampler(node)
    if call is not None:
        name, arguments = call
        return name, node_of(arguments, next(iter(node.entries().values())))
    entries = node.entries()
    found = next((name for name in SAMPLERS if name in entries), None) if len(entries) == 1 else None
    return None if found is None else (found, entries[found])


def _python_sampler(node: Node) -> tuple[str, Any] | None:
    """Return the sampler's name and plain arguments if a node is ``{sample_from: text}`` of one call, else None."""
    entries = node.entries()
    key = next((key for key in PYTHON_KEYS if key in entries), None) if len(entries) == 1 else None
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
    return _NAMES[name], _python_arguments(module, name, arguments)


def _python_arguments(module: str, name: str, arguments: list[Any]) -> Any:
    if name == CHOICE:
        return list(arguments[0]) if arguments and isinstance(arguments[0], list | tuple) else arguments
    if (module, name) == ("random", "randint") and len(arguments) == 2 and isinstance(arguments[1], int):
        return [arguments[0], arguments[1] + 1]  # Python's has both ends, NumPy's and Tune's exclude the upper
    return arguments


def read_sampler(name: str, arguments: Node) -> Sampled:
    """Return the meaning of ``{name: arguments}``; raises MalformedError."""
    return SAMPLERS[name](name, arguments)


def _choice(name: str, arguments: Node) -> Sampled:
    if not isinstance(arguments.value, tuple) or not arguments.value:
        raise MalformedError(arguments, f"{name} needs a list of values")
    return Sampled(Listed(name, arguments.plain()), arguments.value)


def _uniform(name: str, arguments: Node) -> Sampled:
    nodes, (low, high) = _numbers(name, arguments, "[low, high]", 2)
    return _range(name, nodes, Range(name, (low, high), low, high))


def _loguniform(name: str, arguments: Node) -> Sampled:
    nodes, (low, high) = _numbers(name, arguments, "[low, high]", 2)
    return _range(name, nodes, Range(name, (low, high), low, high, is_log=True))


def _quniform(name: str, arguments: Node) -> Sampled:
    nodes, (low, high, step) = _numbers(name, arguments, "[low, high, quantum]", 3)
    if step <= 0:
        raise MalformedError(nodes[2], f"{name} needs a quantum > 0, got {shown(step)}")
    step = _as_whole(step)
    first, last = multiple(math.ceil(low / step - 1e-9) * step, step), multiple(math.floor(high / step) * step, step)
    if low < high and first > last:
        raise MalformedError(nodes[0], f"{name}: there is no multiple of {step} between {low} and {high}")
    return _range(name, nodes, Range(name, (low, high, step), first, last, step=step))


def _randint(name: str, arguments: Node) -> Sampled:
    nodes, (low, high) = _numbers(name, arguments, "[low, high], without high", 2)
    for node, number in zip(nodes, (low, high), strict=True):
        if not float(number).is_integer():
            raise MalformedError(node, f"{name} needs whole numbers, got {shown(number)}")
    first, last = int(low), int(high) - 1
    if low < high and first == last:
        raise MalformedError(nodes[0], f"{name} has only one value, {first}: high is not included")
    return _range(name, nodes, Range(name, (int(low), int(high)), first, last, name == "lograndint", 1))


def _randn(name: str, arguments: Node) -> Sampled:
    nodes, (mean, deviation) = _numbers(name, arguments, "[mean, deviation]", 2)
    if deviation <= 0:
        raise MalformedError(nodes[1], f"{name} needs a deviation > 0, got {shown(deviation)}")
    domain = Normal(mean, deviation)
    return Sampled(domain, tuple(nodes[0].with_value(end) for end in domain.ends))


SAMPLERS: Mapping[str, Callable[[str, Node], Sampled]] = MappingProxyType(
    {
        CHOICE: _choice,
        "uniform": _uniform,
        "loguniform": _loguniform,
        "quniform": _quniform,
        "randint": _randint,
        "lograndint": _randint,
        "randn": _randn,
    }
)


def _range(name: str, nodes: tuple[Node, ...], domain: Range) -> Sampled:
    low, high, *_ = domain.arguments
    if low >= high:
        raise MalformedError(nodes[0], f"{name} needs low < high, got {shown(low)} and {shown(high)}")
    if domain.is_log and low <= 0:
        raise MalformedError(nodes[0], f"{name} needs low > 0, got {shown(low)}")
    return Sampled(domain, (nodes[0].with_value(domain.low), nodes[1].with_value(domain.high)))


def _numbers(name: str, arguments: Node, form: str, count: int) -> tuple[tuple[Node, ...], tuple[Number, ...]]:
    """Return the nodes and the numbers of a list of ``count`` finite numbers; raises MalformedError."""
    nodes = arguments.value
    if not isinstance(nodes, tuple) or len(nodes) != count:
        raise MalformedError(arguments, f"{name} needs {form}, got {shown(arguments.plain())}")
    numbers: list[Number] = []
    for node in nodes:
        number = node.value
        if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
            raise MalformedError(node, f"{name} needs numbers, {form}, got {shown(node.plain())}")
        numbers.append(number)
    return nodes, tuple(numbers)


def _as_whole(number: Number) -> Number:
    return int(number) if float(number).is_integer() else number
