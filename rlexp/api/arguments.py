"""Checks the arguments of the public functions: a wrong type is a UsageError that names the argument."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar

from rlexp.errors import ConfigError, RlexpError, UsageError
from rlexp.schedules import LARGEST_SEED

P = ParamSpec("P")
R = TypeVar("R")
_LONGEST_SHOWN: Final = 60
_RANGES: Final[Mapping[str, tuple[int, int]]] = {"seed": (0, LARGEST_SEED), "allow_failures": (0, 10**15)}
"""The ranges of whole numbers, by the argument's name; others begin at 1."""


def checked_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Return ``function`` with its arguments checked by the annotations of its parameters, before it loads anything."""
    signature = inspect.signature(function)

    @wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            given = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{function.__name__}() {error}") from None
        with _hints_noted():
            for name, value in given.arguments.items():
                parameter = signature.parameters[name]
                if parameter.kind is parameter.VAR_POSITIONAL:
                    values = (_checked(f"{name}[{number}]", each, parameter) for number, each in enumerate(value))
                    given.arguments[name] = tuple(values)
                else:
                    given.arguments[name] = _checked(name, value, parameter)
            return function(*given.args, **given.kwargs)

    return checked


@contextmanager
def _hints_noted() -> Iterator[None]:
    """Add the hint of an error to what a traceback shows of it; a ConfigError's text has the hints itself."""
    try:
        yield
    except RlexpError as error:
        if error.hint is not None and not isinstance(error, ConfigError):
            error.add_note(f"hint: {error.hint}")
        raise


def _checked(name: str, value: object, parameter: inspect.Parameter) -> Any:
    """Return a value as its annotation has it: a whole number of NumPy becomes Python's, a list becomes a tuple."""
    kind, _, none = parameter.annotation.rpartition(" | None")
    if kind and not none:
        return None if value is None else CHECKS[kind](name, value, " or None")
    return CHECKS[parameter.annotation](name, value, "")


def _text(name: str, value: object, or_none: str) -> object:
    if isinstance(value, str) and "\0" not in value:
        return value
    raise _wrong(name, f"a string{or_none}", value)


def _path(name: str, value: object, or_none: str) -> object:
    if isinstance(value, str | Path) and "\0" not in str(value):
        return value
    raise _wrong(name, f"a path (a string or pathlib.Path){or_none}", value)


def _flag(name: str, value: object, or_none: str) -> object:
    if isinstance(value, bool):
        return value
    raise _wrong(name, f"True or False{or_none}", value)


def _whole(name: str, value: object, or_none: str) -> object:
    least, most = _RANGES.get(name, (1, 10**15))
    try:
        number = operator.index(value) if not isinstance(value, bool) else least - 1  # type: ignore[arg-type]
    except TypeError:
        number = least - 1
    if least <= number <= most:
        return number
    raise _wrong(name, f"a whole number from {least} to {most}{or_none}", value)


def _texts(name: str, value: object, or_none: str) -> object:
    if isinstance(value, str):
        raise UsageError(f"{name} must be a list of strings, got the string {value!r}", f"write {name}=[{value!r}]")
    if isinstance(value, bytes | Mapping) or not isinstance(value, Iterable):
        raise _wrong(name, f"a list of strings{or_none}", value)
    return tuple(_text(f"{name}[{number}]", each, "") for number, each in enumerate(value))


def _name_or_class(name: str, value: object, or_none: str) -> object:
    return value if isinstance(value, type) else _text(name, value, or_none)


def _mapping(name: str, value: object, or_none: str) -> object:
    if isinstance(value, Mapping):
        return value
    raise _wrong(name, f"a dict{or_none}", value)


def _experiments(name: str, value: object, or_none: str) -> object:
    if isinstance(value, Mapping):
        return value
    hint = 'for example rlexp.run("experiment.yaml")'
    if isinstance(value, str | Path):
        return _path(name, value, or_none)
    if isinstance(value, bytes) or not isinstance(value, Iterable) or not (files := list(value)):
        raise _wrong(name, f"a file, a list of files or a dict{or_none}", value, hint)
    return [_path(f"{name}[{number}]", each, "") for number, each in enumerate(files)]


CHECKS: Final[Mapping[str, Callable[[str, object, str], Any]]] = {
    "str": _text,
    "str | Path": _path,
    "str | type": _name_or_class,
    "Mapping[str, Any]": _mapping,
    "bool": _flag,
    "int": _whole,
    "Sequence[str]": _texts,
    "Experiments": _experiments,
}
"""The checks by annotation without ``| None``; each takes the argument's name, its value, and what else it may be."""


def _wrong(name: str, expected: str, value: object, hint: str | None = None) -> UsageError:
    return UsageError(f"{name} must be {expected}, got {_shown(value)}", hint)


def _shown(value: object) -> str:
    if value is None:
        return "None"
    kind = type(value).__name__
    if not isinstance(value, str | bytes | int | float | list | tuple):
        return f"an object of {kind}"
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**_LONGEST_SHOWN else "a longer number"
    return f"{kind} {text if len(text) <= _LONGEST_SHOWN else f'{text[: _LONGEST_SHOWN - 1]}…'}"
