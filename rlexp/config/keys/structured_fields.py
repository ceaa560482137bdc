"""The types of keys that take more than one shape: clipped rewards, convolutions, schedules."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from math import isfinite
from typing import Annotated, Any

from pydantic import PlainSerializer, PlainValidator
from pydantic_core import PydanticCustomError

from rlexp.config.keys.fields import LARGEST_COUNT, RULE, Expects

ConvFilter = tuple[int, tuple[int, int], int]
"""Channels, kernel (height, width) and stride of a convolution."""


def _judged(words: str, read: Callable[[Any], Any]) -> tuple[PlainValidator, PlainSerializer, Expects]:
    """Return the metadata of a key whose value ``read`` checks and normalises, or refuses with a ValueError."""

    def judge(value: Any) -> Any:
        try:
            return read(value)
        except (TypeError, ValueError) as error:
            raise PydanticCustomError(RULE, "must be {words}", {"words": words}) from error

    return PlainValidator(judge), PlainSerializer(_as_it_is), Expects(words)


def _as_it_is(value: Any) -> Any:
    return value


def _number(value: Any, at_least: float = -math.inf) -> float:
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


def _read_conv_filters(value: Any) -> tuple[ConvFilter, ...] | None:
    return tuple(_read_conv_filter(*layer) for layer in value) if value else None


def _read_conv_filter(channels: Any, kernel: Any, stride: Any) -> ConvFilter:
    height, width = kernel if isinstance(kernel, list | tuple) else (kernel, kernel)
    down, right = stride if isinstance(stride, list | tuple) else (stride, stride)
    if _count(down) != _count(right):
        raise ValueError(stride)
    return _count(channels), (_count(height), _count(width)), _count(down)


def _read_schedule(value: Any) -> tuple[tuple[int, float], ...] | None:
    if value is None:
        return None
    points = tuple((_count(step, at_least=0), _number(number, at_least=0)) for step, number in value)
    if not points or any(later <= earlier for (earlier, _), (later, _) in pairwise(points)):
        raise ValueError(value)
    return points


ClipRewards = Annotated[
    bool | float | tuple[float, float] | None,
    *_judged("true, false, null, a number > 0 or a pair [low, high]", _read_clip_rewards),
]
ConvFilters = Annotated[
    tuple[ConvFilter, ...] | None,
    *_judged("a list of [channels, kernel, stride], or null", _read_conv_filters),
]
Schedule = Annotated[
    tuple[tuple[int, float], ...] | None,
    *_judged("a list of [timestep, value] with ascending timesteps, or null", _read_schedule),
]
