"""The types of keys: strict (no bool or text for a number), finite, with their range.

The models use no other types, so that ``key_table`` can describe what a key expects.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import inf, isfinite
from typing import Annotated, Any, Final, Literal, Self, TypeVar, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    model_validator,
)
from pydantic_core import PydanticCustomError

LARGEST_COUNT = 10**15
"""Far above any step count that will be reached, and exact in a float and in JSON."""

LARGEST_NUMBER = 1e38
"""A number above it is infinite in float32, with which the learners compute."""

UNSAID_LIMITS = (LARGEST_COUNT, LARGEST_NUMBER)
"""Limits that no reference names, as nobody needs more."""

RULE = "rule"
"""Type of the pydantic error whose message is a sentence that follows the key."""

CONFLICT = "conflict"
"""Type of the pydantic error with the conflicts of a group in its context."""

_LAYER: Final = "[channels, kernel, stride]"
_POINT: Final = "[timestep, value]"
_ACTOR_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")

AUTO: Final = "auto"
"""The word for a fragment length that follows from other keys."""

Padding = Literal["same", "valid"]
"""Whether a convolution pads with zeros, so that a stride s leaves ``ceil(side / s)`` pixels, or not."""

ConvFilter = tuple[int, tuple[int, int], int] | tuple[int, tuple[int, int], int, Padding]
"""Channels, kernel (height, width) and stride of a convolution, and its padding if its place implies another."""


def whole(value: Any) -> Any:
    """Return 3.0 and 1e6 as whole numbers, any other value (3.7, True, text) unchanged."""
    return int(value) if isinstance(value, float) and isfinite(value) and value.is_integer() else value


def plain_data(value: Any) -> Any:
    """Refuse NaN and infinity at any depth of free-form data, as JSON cannot hold them."""
    for leaf in leaves_of_data(value):
        if isinstance(leaf, float) and not isfinite(leaf):
            raise PydanticCustomError("finite_number", "must be a finite number")
    return value


def leaves_of_data(value: Any) -> Iterator[Any]:
    """Yield the values in lists and mappings, at any depth."""
    if not isinstance(value, dict | list):
        yield value
        return
    for child in value.values() if isinstance(value, dict) else value:
        yield from leaves_of_data(child)


Whole = Annotated[int, BeforeValidator(whole), Field(le=LARGEST_COUNT)]
Count = Annotated[Whole, Field(ge=1)]
CountOrZero = Annotated[Whole, Field(ge=0)]
Positive = Annotated[float, Field(gt=0, le=LARGEST_NUMBER)]
UpToADay = Annotated[float, Field(gt=0, le=24 * 3600)]
PositiveOrZero = Annotated[float, Field(ge=0, le=LARGEST_NUMBER)]
Fraction = Annotated[float, Field(ge=0, le=1)]
PositiveFraction = Annotated[float, Field(gt=0, le=1)]
LayerSizes = Annotated[tuple[Count, ...], Field(strict=False)]
FreeForm = Annotated[dict[str, Any], AfterValidator(plain_data)]


@dataclass(frozen=True)
class Expects:
    """What a key expects, in words, if its type does not tell; it follows the type in ``Annotated``."""

    words: str


class _ItemError(ValueError):
    """Raised for one item of a list, with what it must be."""

    def __init__(self, number: int, words: str) -> None:
        super().__init__(words)
        self.number = number
        self.words = words


def _judged(words: str, read: Callable[[Any], Any]) -> tuple[PlainValidator, PlainSerializer, Expects]:
    """Return the metadata of a key whose value ``read`` checks and normalises, or refuses with a ValueError."""

    def judge(value: Any) -> Any:
        try:
            return read(value)
        except _ItemError as error:
            raise PydanticCustomError(RULE, "must be {words}", {"words": error.words, "item": error.number}) from error
        except (TypeError, ValueError) as error:
            raise PydanticCustomError(RULE, "must be {words}", {"words": words}) from error

    return PlainValidator(judge), PlainSerializer(lambda value: value), Expects(words)


def _each(words: str, read: Callable[[int, Any], Any], items: Any) -> Iterator[Any]:
    """Yield what ``read`` makes of the number and the value of each item of a list; raises ValueError."""
    if not isinstance(items, list | tuple):
        raise ValueError(items)
    for number, item in enumerate(items):
        try:
            yield read(number, item)
        except (TypeError, ValueError) as error:
            raise _ItemError(number, words) from error


def rule(holds: Callable[[Any], object], sentence: str) -> AfterValidator:
    """Return the metadata of a key that refuses a value with a sentence, which follows the key, unless it ``holds``."""

    def judge(value: Any) -> Any:
        if not holds(value):
            raise PydanticCustomError(RULE, "{sentence}", {"sentence": sentence})
        return value

    return AfterValidator(judge)


def _number(value: Any, at_least: float = -inf) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or value < at_least:
        raise ValueError(value)
    return float(value)


def _count(value: Any, at_least: int = 1) -> int:
    number = _number(value, at_least)
    if not number.is_integer() or number > LARGEST_COUNT:
        raise ValueError(value)
    return int(number)


def _read_clip_rewards(value: Any) -> bool | float | tuple[float, float] | None:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, list | tuple):
        low, high = (_number(bound) for bound in value)
        if low >= high:
            raise ValueError(value)
        return low, high
    if _number(value) <= 0:
        raise ValueError(value)
    return float(value)


def _read_actor_ids(value: Any) -> tuple[str, ...]:
    ids = tuple(value) if isinstance(value, list | tuple) else ()
    if len(ids) != len(value) or not all(isinstance(name, str) and _ACTOR_ID.fullmatch(name) for name in ids):
        raise ValueError(value)
    return ids


def _or(*words: str | None, at_least: int = 1) -> Callable[[Any], int | str | None]:
    """Return a reader of whole numbers from ``at_least`` on, and of ``words``."""
    return lambda value: value if value in words else _count(value, at_least)


def _read_conv_filters(value: Any) -> tuple[ConvFilter, ...] | None:
    if not value:
        return None
    return tuple(_each(_LAYER, lambda number, layer: _read_conv_filter(number == len(value) - 1, *layer), value))


def _read_conv_filter(is_last: bool, channels: Any, kernel: Any, stride: Any, padding: Any = None) -> ConvFilter:
    height, width = kernel if isinstance(kernel, list | tuple) else (kernel, kernel)
    down, right = stride if isinstance(stride, list | tuple) else (stride, stride)
    if _count(down) != _count(right):
        raise ValueError(stride)
    of_its_place = "valid" if is_last else "same"
    if padding not in (None, "same", "valid"):
        raise ValueError(padding)
    layer = _count(channels), (_count(height), _count(width)), _count(down)
    return layer if padding in (None, of_its_place) else (*layer, padding)


def _read_schedule(value: Any) -> tuple[tuple[int, float], ...] | None:
    if value is None:
        return None
    points = tuple(_each(_POINT, lambda _, point: _read_point(*point), value))
    if not points:
        raise ValueError(value)
    for number, ((earlier, _), (later, _)) in enumerate(pairwise(points), 1):
        if later <= earlier:
            raise _ItemError(number, "at a later timestep than the item before it")
    return points


def _read_point(step: Any, value: Any) -> tuple[int, float]:
    number = _number(value, at_least=0)
    if number > LARGEST_NUMBER:
        raise ValueError(value)
    return _count(step, at_least=0), number


ClipRewards = Annotated[
    bool | float | tuple[float, float] | None,
    *_judged("true, false, null, a number > 0 or a pair [low, high]", _read_clip_rewards),
]
FragmentLength = Annotated[
    int | Literal["auto"],
    *_judged("a whole number >= 1 or auto", _or(AUTO)),
]
CountOrAuto = Annotated[
    int | Literal["auto"],
    *_judged("a whole number >= 0 or auto", _or(AUTO, at_least=0)),
]
KeptCheckpoints = Annotated[
    int | Literal["auto"] | None,
    *_judged("a whole number >= 1, auto or null", _or(AUTO, None)),
]
NumberOrAuto = Annotated[
    float | Literal["auto"] | None,
    *_judged("a number, auto or null", lambda value: value if value in (AUTO, None) else _number(value)),
]
ConvFilters = Annotated[
    tuple[ConvFilter, ...] | None,
    *_judged(f"a list of {_LAYER}, or null", _read_conv_filters),
]
ActorIds = Annotated[
    tuple[str, ...],
    *_judged("a list of ids of actors (letters, digits, - and _)", _read_actor_ids),
]
Schedule = Annotated[
    tuple[tuple[int, float], ...] | None,
    *_judged(f"a list of {_POINT} with ascending timesteps, or null", _read_schedule),
]


RLEXP_ONLY: Final = "no release of RLlib has this key"
"""Marks a key with which a file belongs to none of them."""


@dataclass(frozen=True)
class Conflict:
    """Keys of one group that do not fit together."""

    keys: tuple[str, ...]
    """The keys concerned, the one to blame first."""
    message: str
    hint: str | None = None


class KeyGroup(BaseModel):
    """A mapping with known keys: unknown ones are refused; values are not converted and cannot be changed."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        validate_default=False,
        # Building validators takes most of the time of an import, and a command reads few of the models.
        defer_build=True,
    )

    def conflicts(self) -> Iterator[Conflict]:
        """Yield conflicts between keys that are valid one by one; a subclass adds to its parent's."""
        yield from ()

    def stated(self, key: str) -> str:
        """Return a key with its value for a conflict's message, with a note if it is the default."""
        origin = "" if key in self.model_fields_set else " (its default)"
        return f"{key} is {getattr(self, key)}{origin}"

    @model_validator(mode="after")
    def _refuse_conflicts(self) -> Self:
        found = tuple(self.conflicts())
        if found:
            raise PydanticCustomError(CONFLICT, "keys do not fit together", {"conflicts": found})
        return self


GroupT = TypeVar("GroupT", bound=KeyGroup)


def defaults_of(group: type[GroupT]) -> GroupT:
    """Return a group with all its defaults, which have no conflicts; unlike ``group()``, it builds no validator."""
    return cast(GroupT, group.model_construct())
