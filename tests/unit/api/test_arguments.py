"""Arguments of the public functions: a wrong type is a UsageError that names the argument, and nothing is loaded."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlexp
from rlexp.api.arguments import CHECKS
from rlexp.errors import UsageError

FUNCTIONS = [getattr(rlexp, name) for name in rlexp.__all__ if not name.startswith("_")]
ANYTHING: list[Any] = [
    None,
    5,
    -1,
    0.5,
    True,
    "\0",
    b"x",
    [5],
    [None],
    {5: 5},
    {},
    Path("/nowhere"),
    "x",
    object(),
    10**400,
]
ALLOWED: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "str | Path": (str, Path),
    "bool": (bool,),
    "int": (),
    "Sequence[str]": (),
    "Experiments": (str, Path, dict),
}
"""What of ANYTHING an annotation allows, apart from None, a NUL, and 5 for a number."""


def parameters() -> Iterator[tuple[Any, str]]:
    for function in FUNCTIONS:
        yield from ((function, name) for name in inspect.signature(function).parameters)


def wrong_values(annotation: str) -> Iterator[Any]:
    kind = annotation.removesuffix(" | None")
    for value in ANYTHING:
        is_none = value is None and annotation.endswith(" | None")
        is_number = kind == "int" and value == 5
        is_empty_list = kind == "Sequence[str]" and value == []
        is_allowed = isinstance(value, ALLOWED[kind]) and value != "\0"
        if not (is_none or is_number or is_empty_list or is_allowed):
            yield value


@pytest.mark.parametrize(("function", "name"), list(parameters()), ids=lambda part: getattr(part, "__name__", part))
def test_wrong_type_names_the_argument(function: Any, name: str) -> None:
    parameter = inspect.signature(function).parameters[name]
    first = next(iter(inspect.signature(function).parameters))
    is_list = parameter.kind is parameter.VAR_POSITIONAL
    for value in wrong_values(parameter.annotation):
        given, named = ((value,), {}) if is_list else ((), {first: "nowhere", name: value})
        with pytest.raises(UsageError, match=rf"^{name}(\[0\])? must be .*, got ") as caught:
            function(*given, **named)
        assert len(caught.value.message) < 250


def test_every_annotation_has_a_check() -> None:
    found = {inspect.signature(f).parameters[name].annotation.removesuffix(" | None") for f, name in parameters()}
    assert found == set(CHECKS) == set(ALLOWED)


def test_numbers_of_numpy_are_those_of_python() -> None:
    (loaded,) = rlexp.load({"a": {"run": "DQN", "env": "CartPole-v1"}}, seed=np.int64(3), overrides=iter(["lr=1e-3"]))  # type: ignore[arg-type]
    assert (loaded.config.seed, type(loaded.config.seed), loaded.config.lr) == (3, int, 1e-3)


@pytest.mark.parametrize("seed", [-1, 2**32, 1.5, "1", True])
def test_seed_is_one_that_every_library_takes(seed: Any) -> None:
    with pytest.raises(UsageError, match="seed must be a whole number from 0 to 4294967295 or None, got "):
        rlexp.load_policy("nowhere", seed=seed)


def test_help_shows_the_arguments() -> None:
    assert list(inspect.signature(rlexp.run).parameters)[:3] == ["experiments", "out", "name"]
    assert str(rlexp.run.__doc__).startswith("Train every trial")
