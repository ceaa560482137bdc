"""Snapshots of envs: all state on which their next steps depend, as arrays and values for JSON.

An env is a Python object that contains others: wrappers, the envs of a vector env. A snapshot has the plain data among
their attributes; attributes without state, such as a space or a function, are stored by name. An env with any other
attribute, such as a physics engine or an emulator, has no snapshot. State outside of attributes, such as Python's
``random``, is not seen.
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

from rlexp.envs.registry import is_parallel_env
from rlexp.envs.spaces import ActionBounds
from rlexp.envs.wrappers import AreaMean
from rlexp.sample_batch import Array

PLAIN: Final = (type(None), bool, int, float, str)
"""Types that JSON holds exactly."""
PLAIN_KINDS: Final = "biufcSUmM"
"""Kinds of arrays without references to objects."""
MOST_OBJECTS, MOST_ARRAY_BYTES = 500_000, 32 * 2**20
"""Limits for all envs of a worker: larger ones hold a data set, which does not belong into every checkpoint."""
GENERATORS: Final = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")
"""NumPy's random streams."""

Encoded = Any
"""A value in a snapshot: itself if it is plain, else a dict whose ``kind`` names its kind."""


def take_snapshot(env: object) -> dict[str, Any] | None:
    """Return an env's snapshot: nested arrays and values for JSON; None if not all of it is plain data."""
    encoder = _Encoder()
    try:
        encoded: dict[str, Any] = encoder.encode(env)
    except _NotPlainError:
        return None
    return None if _overlap(encoder.arrays) else encoded


def restore_snapshot(env: object, snapshot: Mapping[str, Any]) -> bool:
    """Give ``env``, which was made like the snapshot's env and reset, the state of the ``snapshot``.

    Returns False, with nothing changed, if it is another kind of env. It then owns the arrays.
    """
    restorer = _Restorer()
    try:
        restorer.restore(snapshot, env)
    except _MisfitError:
        return False
    for change in restorer.changes:
        change()
    return True


class _NotPlainError(Exception):
    """Raised for a value that may have state that is not plain data."""


class _MisfitError(Exception):
    """Raised if an env differs from the snapshot's."""


class _Encoder:
    """Encodes the values of one env; each object once, so that shared objects stay shared."""

    def __init__(self) -> None:
        self.arrays: list[Array] = []
        self._array_bytes = 0
        self._numbers: dict[int, int] = {}
        self._objects: list[object] = []  # while they live, no other object has their id

    def encode(self, value: Any) -> Encoded:
        if type(value) in PLAIN:
            return value
        name = _stateless_name(value)
        if name is not None:
            return {"kind": "stateless", "name": name}
        number = self._numbers.setdefault(id(value), len(self._objects))
        if number < len(self._objects):
            return {"kind": "again", "number": number}
        self._objects.append(value)
        if number >= MOST_OBJECTS:
            raise _NotPlainError("too many objects")
        if _is_env(value):
            return self._encode_env(value)
        if isinstance(value, Enum):
            return {"kind": "enum", "type": _type_name(value), "name": value.name}
        encode = self._ENCODERS.get(type(value), _Encoder._encode_array if isinstance(value, np.generic) else None)
        if encode is None:
            raise _NotPlainError(_type_name(value))
        return encode(self, value)

    def _encode_env(self, env: Any) -> Encoded:
        if any(set(vars(kind).get("__slots__", ())) for kind in type(env).__mro__):
            raise _NotPlainError(f"{_type_name(env)} has slots")
        attributes = [[name, self.encode(value)] for name, value in vars(env).items()]
        return {"kind": "env", "type": _type_name(env), "attributes": attributes}

    def _encode_array(self, value: Any) -> Encoded:
        array = np.asarray(value)
        if array.dtype.kind not in PLAIN_KINDS:
            raise _NotPlainError(f"an array of {array.dtype}")
        if isinstance(value, np.ndarray):
            self.arrays.append(array)
            self._array_bytes += array.nbytes
        if self._array_bytes > MOST_ARRAY_BYTES:
            raise _NotPlainError("too large arrays")
        by_column = array.flags.f_contiguous and not array.flags.c_contiguous
        return {
            "kind": "array" if isinstance(value, np.ndarray) else "number",
            "dtype": array.dtype.str,
            "shape": list(array.shape),
            "order": "F" if by_column else "C",
            "bytes": np.frombuffer(array.tobytes("F" if by_column else "C"), np.uint8),
        }

    def _encode_generator(self, value: np.random.Generator) -> Encoded:
        state = value.bit_generator.state
        if state["bit_generator"] not in GENERATORS:
            raise _NotPlainError(state["bit_generator"])
        return {"kind": "generator", "state": state}

    def _encode_list(self, value: list[Any] | tuple[Any, ...]) -> Encoded:
        return {"kind": type(value).__name__, "items": [self.encode(item) for item in value]}

    def _encode_dict(self, value: dict[Any, Any]) -> Encoded:
        return {"kind": "dict", "items": [[self.encode(key), self.encode(item)] for key, item in value.items()]}

    _ENCODERS: ClassVar[Mapping[type, Callable[[Any, Any], Encoded]]] = {
        np.ndarray: _encode_array,
        np.random.Generator: _encode_generator,
        list: _encode_list,
        tuple: _encode_list,
        dict: _encode_dict,
    }


class _Restorer:
    """Decodes one snapshot, and collects the changes to make after all of it fits."""

    def __init__(self) -> None:
        self.changes: list[Callable[[], None]] = []
        self._restored: list[Any] = []

    def restore(self, encoded: Encoded, current: Any) -> Any:
        """Return the encoded value; ``current`` is the present env's value in its place."""
        if not isinstance(encoded, Mapping):
            return encoded
        kind = encoded["kind"]
        if kind == "stateless":
            return _checked(current, _stateless_name(current) == encoded["name"])
        if kind == "again":
            return self._restored[encoded["number"]]
        number = len(self._restored)
        self._restored.append(current)  # an env is changed in place, and may have itself among its attributes
        self._restored[number] = self._RESTORERS[kind](self, encoded, current)
        return self._restored[number]

    def _restore_env(self, encoded: Mapping[str, Any], current: Any) -> Any:
        is_env = _is_env(current) and _type_name(current) == encoded["type"]
        has = vars(_checked(current, is_env))
        attributes = {name: self.restore(value, has.get(name)) for name, value in encoded["attributes"]}
        self.changes.append(lambda: has.update(attributes))
        return _checked(current, has.keys() <= attributes.keys())

    def _restore_enum(self, encoded: Mapping[str, Any], current: Any) -> Any:
        is_same = isinstance(current, Enum) and _type_name(current) == encoded["type"]
        return type(_checked(current, is_same))[encoded["name"]]

    def _restore_array(self, encoded: Mapping[str, Any], current: Any) -> Any:
        dtype = np.dtype(encoded["dtype"])
        _checked(current, dtype.kind in PLAIN_KINDS)
        array = encoded["bytes"].view(dtype).reshape(encoded["shape"], order=encoded["order"])
        return array if encoded["kind"] == "array" else array[()]

    def _restore_generator(self, encoded: Mapping[str, Any], current: Any) -> Any:
        state = encoded["state"]
        _checked(current, state["bit_generator"] in GENERATORS)
        stream = getattr(np.random, state["bit_generator"])(0)
        stream.state = state
        return np.random.Generator(stream)

    def _restore_list(self, encoded: Mapping[str, Any], current: Any) -> Any:
        has = current if isinstance(current, list | tuple) and len(current) == len(encoded["items"]) else None
        items = [self.restore(item, has[place] if has else None) for place, item in enumerate(encoded["items"])]
        return tuple(items) if encoded["kind"] == "tuple" else items

    def _restore_dict(self, encoded: Mapping[str, Any], current: Any) -> Any:
        has = current if isinstance(current, dict) else {}
        made: dict[Any, Any] = {}
        for encoded_key, item in encoded["items"]:
            key = self.restore(encoded_key, None)
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


def _is_env(value: object) -> bool:
    return isinstance(value, gym.Env | VectorEnv) or is_parallel_env(type(value))


def _stateless_name(value: Any) -> str | None:
    """Return a name for a value without state, such as a function; None if it may have state."""
    if isinstance(value, type | FunctionType):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, gym.Space | np.dtype):
        return repr(value)
    if isinstance(value, ModuleType):
        return value.__name__
    if isinstance(value, EnvSpec):
        return value.id
    return _type_name(value) if isinstance(value, Logger | AreaMean | ActionBounds) else None


def _type_name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _checked(current: Any, fits: bool) -> Any:
    if not fits:
        raise _MisfitError
    return current


def _overlap(arrays: Iterable[Array]) -> bool:
    """Return whether two of the arrays share memory, as each would have its own after a restore."""
    bounds = sorted(_bounds(array) for array in arrays if array.size)
    return any(first[1] > second[0] for first, second in pairwise(bounds))


def _bounds(array: Array) -> tuple[int, int]:
    """Return the address of an array's first byte, and the address after its last."""
    spans = [stride * (length - 1) for stride, length in zip(array.strides, array.shape, strict=True)]
    start = array.__array_interface__["data"][0]
    return start + sum(min(span, 0) for span in spans), start + sum(max(span, 0) for span in spans) + array.itemsize
