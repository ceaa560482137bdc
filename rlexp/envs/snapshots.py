"""Snapshots of envs: all that their next steps depend on, as arrays and plain values, where it can be told completely.

An env is a Python object, with others in it: wrappers, the envs of a vector env. A snapshot has the attributes of each
that are plain data, and those that have no state, a space or a function, by name. An env with anything else in it, such
as a physics engine or an emulator, has no snapshot. What an env keeps outside of its attributes, in the state of
Python's ``random``, say, is not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from itertools import pairwise
from logging import Logger
from types import FunctionType, ModuleType
from typing import Any, ClassVar, Final

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from rlexp.envs.frames import AreaMean

Array = NDArray[Any]

PLAIN: Final = (type(None), bool, int, float, str)
"""What JSON has, to the last digit."""
PLAIN_KINDS: Final = "biufcSUmM"
"""Kinds of arrays that are bytes without references to objects."""
MOST_OBJECTS, MOST_ARRAY_BYTES = 500_000, 32 * 2**20
"""Of all envs of a worker: what is larger holds a data set, which does not belong into every checkpoint."""
GENERATORS: Final = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")
"""NumPy's random streams."""

Told = Any
"""A value as a snapshot has it: itself where it is plain, else a dict whose ``kind`` says what it is."""


def take_snapshot(env: object) -> dict[str, Any] | None:
    """Return the snapshot of an env: arrays, and values that JSON can hold, in each other. None: it cannot be told."""
    taking = _Taking()
    try:
        told: dict[str, Any] = taking.tell(env)
    except _UntoldError:
        return None
    return None if _overlap(taking.arrays) else told


def restore_snapshot(env: object, snapshot: Mapping[str, Any]) -> bool:
    """Let ``env``, made as the one of the ``snapshot`` was and reset, go on as that one would have.

    Returns False, with nothing changed, where it is another kind of env. The arrays are its own from now on.
    """
    restoring = _Restoring()
    try:
        restoring.restore(snapshot, env)
    except _MisfitError:
        return False
    for change in restoring.changes:
        change()
    return True


class _UntoldError(Exception):
    """Something may have a state that is not known."""


class _MisfitError(Exception):
    """The env at hand is not as the one of the snapshot was."""


class _Taking:
    """Tells the values of one env; each object once, so that what two attributes share stays shared."""

    def __init__(self) -> None:
        self.arrays: list[Array] = []
        self._array_bytes = 0
        self._numbers: dict[int, int] = {}
        self._told: list[object] = []  # as long as they live, no other object has their id

    def tell(self, value: Any) -> Told:
        if type(value) in PLAIN:
            return value
        name = _stateless_name(value)
        if name is not None:
            return {"kind": "stateless", "name": name}
        number = self._numbers.setdefault(id(value), len(self._told))
        if number < len(self._told):
            return {"kind": "again", "number": number}
        self._told.append(value)
        if number >= MOST_OBJECTS:
            raise _UntoldError("too many objects")
        if isinstance(value, gym.Env | VectorEnv):
            return self._tell_env(value)
        if isinstance(value, Enum):
            return {"kind": "enum", "type": _type_name(value), "name": value.name}
        teller = self._TELLERS.get(type(value), _Taking._tell_array if isinstance(value, np.generic) else None)
        if teller is None:
            raise _UntoldError(_type_name(value))
        return teller(self, value)

    def _tell_env(self, env: Any) -> Told:
        if any(set(vars(kind).get("__slots__", ())) for kind in type(env).__mro__):
            raise _UntoldError(f"{_type_name(env)} has slots")
        attributes = [[name, self.tell(value)] for name, value in vars(env).items()]
        return {"kind": "env", "type": _type_name(env), "attributes": attributes}

    def _tell_array(self, value: Any) -> Told:
        array = np.asarray(value)
        if array.dtype.kind not in PLAIN_KINDS:
            raise _UntoldError(f"an array of {array.dtype}")
        if isinstance(value, np.ndarray):
            self.arrays.append(array)
            self._array_bytes += array.nbytes
        if self._array_bytes > MOST_ARRAY_BYTES:
            raise _UntoldError("too large arrays")
        by_column = array.flags.f_contiguous and not array.flags.c_contiguous
        return {
            "kind": "array" if isinstance(value, np.ndarray) else "number",
            "dtype": array.dtype.str,
            "shape": list(array.shape),
            "order": "F" if by_column else "C",
            "bytes": np.frombuffer(array.tobytes("F" if by_column else "C"), np.uint8),
        }

    def _tell_generator(self, value: np.random.Generator) -> Told:
        state = value.bit_generator.state
        if state["bit_generator"] not in GENERATORS:
            raise _UntoldError(state["bit_generator"])
        return {"kind": "generator", "state": state}

    def _tell_list(self, value: list[Any] | tuple[Any, ...]) -> Told:
        return {"kind": type(value).__name__, "items": [self.tell(item) for item in value]}

    def _tell_dict(self, value: dict[Any, Any]) -> Told:
        return {"kind": "dict", "items": [[self.tell(key), self.tell(item)] for key, item in value.items()]}

    _TELLERS: ClassVar[Mapping[type, Callable[[Any, Any], Told]]] = {
        np.ndarray: _tell_array,
        np.random.Generator: _tell_generator,
        list: _tell_list,
        tuple: _tell_list,
        dict: _tell_dict,
    }


class _Restoring:
    """Makes the values of one snapshot, and collects what is to be changed once all of it fits."""

    def __init__(self) -> None:
        self.changes: list[Callable[[], None]] = []
        self._restored: list[Any] = []

    def restore(self, told: Told, current: Any) -> Any:
        """Return the value that was told; ``current`` is what the env at hand has in its place."""
        if not isinstance(told, Mapping):
            return told
        kind = told["kind"]
        if kind == "stateless":
            return _checked(current, _stateless_name(current) == told["name"])
        if kind == "again":
            return self._restored[told["number"]]
        number = len(self._restored)
        self._restored.append(current)  # an env is changed in place, and may have itself among its attributes
        self._restored[number] = self._RESTORERS[kind](self, told, current)
        return self._restored[number]

    def _restore_env(self, told: Mapping[str, Any], current: Any) -> Any:
        is_env = isinstance(current, gym.Env | VectorEnv) and _type_name(current) == told["type"]
        has = vars(_checked(current, is_env))
        attributes = {name: self.restore(value, has.get(name)) for name, value in told["attributes"]}
        self.changes.append(lambda: has.update(attributes))
        return _checked(current, has.keys() <= attributes.keys())

    def _restore_enum(self, told: Mapping[str, Any], current: Any) -> Any:
        is_same = isinstance(current, Enum) and _type_name(current) == told["type"]
        return type(_checked(current, is_same))[told["name"]]

    def _restore_array(self, told: Mapping[str, Any], current: Any) -> Any:
        dtype = np.dtype(told["dtype"])
        _checked(current, dtype.kind in PLAIN_KINDS)
        array = told["bytes"].view(dtype).reshape(told["shape"], order=told["order"])
        return array if told["kind"] == "array" else array[()]

    def _restore_generator(self, told: Mapping[str, Any], current: Any) -> Any:
        state = told["state"]
        _checked(current, state["bit_generator"] in GENERATORS)
        stream = getattr(np.random, state["bit_generator"])(0)
        stream.state = state
        return np.random.Generator(stream)

    def _restore_list(self, told: Mapping[str, Any], current: Any) -> Any:
        has = current if isinstance(current, list | tuple) and len(current) == len(told["items"]) else None
        items = [self.restore(item, has[place] if has else None) for place, item in enumerate(told["items"])]
        return tuple(items) if told["kind"] == "tuple" else items

    def _restore_dict(self, told: Mapping[str, Any], current: Any) -> Any:
        has = current if isinstance(current, dict) else {}
        made: dict[Any, Any] = {}
        for told_key, item in told["items"]:
            key = self.restore(told_key, None)
            made[key] = self.restore(item, has.get(key))
        return made

    _RESTORERS: ClassVar[Mapping[str, Callable[[Any, Mapping[str, Any], Any], Any]]] = {
        "env": _restore_env,
        "enum": _restore_enum,
        "array": _restore_array,
        "number": _restore_array,
        "generator": _restore_generator,
        "list": _restore_list,
        "tuple": _restore_list,
        "dict": _restore_dict,
    }


def _stateless_name(value: Any) -> str | None:
    """Return what tells a thing without state from others of its kind; None where it may have some."""
    if isinstance(value, type | FunctionType):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, gym.Space | np.dtype):
        return repr(value)
    if isinstance(value, ModuleType):
        return value.__name__
    if isinstance(value, EnvSpec):
        return value.id
    return _type_name(value) if isinstance(value, Logger | AreaMean) else None


def _type_name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _checked(current: Any, fits: bool) -> Any:
    if not fits:
        raise _MisfitError
    return current


def _overlap(arrays: Iterable[Array]) -> bool:
    """Return whether two of the arrays share memory: restored, each would have its own."""
    bounds = sorted(_bounds(array) for array in arrays if array.size)
    return any(first[1] > second[0] for first, second in pairwise(bounds))


def _bounds(array: Array) -> tuple[int, int]:
    """Return the address of an array's first byte, and the one behind its last."""
    spans = [stride * (length - 1) for stride, length in zip(array.strides, array.shape, strict=True)]
    start = array.__array_interface__["data"][0]
    return start + sum(min(span, 0) for span in spans), start + sum(max(span, 0) for span in spans) + array.itemsize
