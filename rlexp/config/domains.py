"""Domains: the values that a searched key can have, how one is drawn and moved, and the samplers that describe them.

Samplers are ``{loguniform: [1e-4, 1e-2]}``, or in Python's spelling; they are read into domains, or findings.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from types import MappingProxyType
from typing import Any, Protocol

from rlexp.config.keys.fields import whole
from rlexp.config.translation import node_of
from rlexp.config.yaml.nodes import KeyPath, Node, shown, written
from rlexp.text import is_known

TAILS = 4.0
"""Standard deviations from its mean beyond which ``randn`` draws anew: 1 in 16,000, and variants can be checked."""
SIGNIFICANT = 4
"""Digits of a drawn number that is not a multiple of anything."""
_DIGITS = 12
"""Decimals to which multiples of a quantum are rounded: 3 x 0.1 is 0.3."""

Number = int | float


class Domain(Protocol):
    """The possible values of a searched key; ``random`` draws from them, ``pbt`` moves within them."""

    def data(self) -> dict[str, Any]:
        """Return the domain in the form of a file: ``{"uniform": [0, 1]}``."""

    def holds(self, value: Any) -> bool:
        """Return whether a value can be drawn."""

    def draw(self, rng: Random) -> Any:
        """Return one value."""

    def moved(self, value: Any, factor: float, rng: Random) -> Any:
        """Return another value near ``value``, up or down at random; at an end, towards the inside.

        A number moves by ``factor - 1`` of the width of its range, at most by a half; in a logarithmic range it is
        multiplied or divided by ``factor`` if that is less. A value of a list is replaced by a neighbour.
        """


@dataclass(frozen=True)
class Listed:
    """``grid_search`` and ``choice``: one of some values, each as likely as the others."""

    sampler: str
    values: Sequence[Any]

    def data(self) -> dict[str, Any]:
        return {self.sampler: list(self.values)}

    def holds(self, value: Any) -> bool:
        return value in self.values

    def draw(self, rng: Random) -> Any:
        return self.values[rng.randrange(len(self.values))]

    def moved(self, value: Any, factor: float, rng: Random) -> Any:
        """Return the next or previous other value in the list; the same value only if there is no other."""
        index = self.values.index(value)
        above = [each for each in self.values[index:] if each != value][:1]
        below = [each for each in self.values[:index] if each != value][-1:]
        either = above + below
        return either[rng.randrange(len(either))] if either else value


@dataclass(frozen=True)
class Range:
    """A number between two others, both possible; uniform in itself or in its logarithm."""

    sampler: str
    arguments: tuple[Number, ...]
    """The arguments in the file."""
    low: Number
    high: Number
    is_log: bool = False
    step: Number | None = None
    """Values are multiples of it; None: any; whole numbers if it is whole."""

    def data(self) -> dict[str, Any]:
        return {self.sampler: list(self.arguments)}

    def holds(self, value: Any) -> bool:
        is_between = _is_number(value) and self.low <= value <= self.high
        return is_between and (self.step is None or self.limited(value) == value)

    def draw(self, rng: Random) -> Number:
        if self.step is None:
            if self.is_log:
                return self.limited(math.exp(rng.uniform(math.log(self.low), math.log(self.high))))
            return self.limited(rng.uniform(self.low, self.high))
        if self.is_log:  # whole numbers: a half on each side, so that both ends are as likely as their logarithms are
            return self.limited(math.exp(rng.uniform(math.log(self.low - 0.5), math.log(self.high + 0.5))))
        return self.limited(self.low + rng.randrange(round((self.high - self.low) / self.step) + 1) * self.step)

    def moved(self, value: Number, factor: float, rng: Random) -> Number:
        if self.is_log:
            low, high = math.log(self.low), math.log(self.high)
            distance = min(_share(factor) * (high - low), math.log(factor))
            return _moved(value, (low, high), distance, rng, math.log, lambda place: self.limited(math.exp(place)))
        distance = max(_share(factor) * (self.high - self.low), self.step or 0)
        return _moved(value, (self.low, self.high), distance, rng, float, self.limited)

    def limited(self, value: Number) -> Number:
        """Return the value of the range nearest to ``value``, with few enough digits to read and retype."""
        value = _short(value) if self.step is None else multiple(value, self.step)
        return min(max(value, self.low), self.high)


@dataclass(frozen=True)
class Normal:
    """``randn``: a normally distributed number, without the tails beyond TAILS standard deviations."""

    mean: Number
    deviation: Number

    def data(self) -> dict[str, Any]:
        return {"randn": [self.mean, self.deviation]}

    def holds(self, value: Any) -> bool:
        return _is_number(value) and self.ends[0] <= value <= self.ends[1]

    @property
    def ends(self) -> tuple[float, float]:
        """The lowest and the highest value that can be drawn."""
        return self.mean - TAILS * self.deviation, self.mean + TAILS * self.deviation

    def draw(self, rng: Random) -> float:
        while True:  # runs once except in 1 of 16,000 cases
            value = _short(rng.gauss(self.mean, self.deviation))
            if self.ends[0] <= value <= self.ends[1]:
                return value

    def moved(self, value: float, factor: float, rng: Random) -> float:
        """Return another value; the range's width is taken as two standard deviations on each side."""
        low, high = self.ends
        distance = _share(factor) * 4 * self.deviation
        return _moved(value, (low, high), distance, rng, float, lambda place: min(max(_short(place), low), high))


def _share(factor: float) -> float:
    """Return the share of its range by which a number moves: at most a half, so that one side has room."""
    return min(factor - 1, 0.5)


def _moved(
    value: Number,
    ends: tuple[float, float],
    distance: float,
    rng: Random,
    place_of: Callable[[Number], float],
    value_at: Callable[[float], Number],
) -> Number:
    """Return another value, ``distance`` away in the units of ``ends``, or farther if rounding brings it back."""
    place, sign = place_of(value), 1 if rng.random() < 0.5 else -1
    while distance <= ends[1] - ends[0]:
        inside = [at for at in (place + sign * distance, place - sign * distance) if ends[0] <= at <= ends[1]]
        target = value_at(inside[0]) if inside else value
        if target != value:
            return target
        distance *= 2
    return value_at(max(ends, key=lambda end: abs(end - place)))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _short(value: Number) -> float:
    return float(f"{value:.{SIGNIFICANT}g}")


def multiple(value: Number, step: Number) -> Number:
    """Return the multiple of ``step`` nearest to ``value``; a whole number if ``step`` is one."""
    times = round(value / step)
    return times * step if isinstance(step, int) else round(times * step, _DIGITS)


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

_OTHER_NAMES: Mapping[str, str] = MappingProxyType({"normal": "randn", "gauss": "randn"})


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
    return python_call(text) if isinstance(text, str) else None


def python_call(text: str) -> tuple[str, Any] | None:
    """Return the name and plain arguments of a sampler whose call is written in Python; None for any other text."""
    if len(text) > MAX_LENGTH:
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
    name = _OTHER_NAMES.get(name, name)
    if f"{module}." not in _MODULES or name not in SAMPLERS:
        return None
    return name, _python_arguments(module, name, arguments)


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
    return _range(name, nodes, Range(name, (low, high), low, high, is_log=name == "loguniform"))


def _quniform(name: str, arguments: Node) -> Sampled:
    nodes, (low, high, step) = _numbers(name, arguments, "[low, high, quantum]", 3)
    if step <= 0:
        raise MalformedError(nodes[2], f"{name} needs a quantum > 0, got {shown(step)}")
    if not is_known(low / step) or not is_known(high / step):
        raise MalformedError(nodes[2], f"{name} needs a larger quantum, got {shown(step)}")
    step = whole(step)
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
        "loguniform": _uniform,
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
        got = written(arguments.plain()) if isinstance(nodes, tuple) else shown(arguments.plain())
        raise MalformedError(arguments, f"{name} needs {form}, got {got}")
    numbers: list[Number] = []
    for node in nodes:
        number = node.value
        if not is_known(number):
            raise MalformedError(node, f"{name} needs numbers, {form}, got {shown(node.plain())}")
        numbers.append(number)
    return nodes, tuple(numbers)
