"""The states of replay shards as a checkpoint can hold them: arrays apart from what JSON can say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlexp.replay.lazy_array import StateArray, StoredArray
from rlexp.sample_batch import Array


def packed_states(states: Sequence[Mapping[str, Any]]) -> tuple[dict[str, dict[str, StateArray]], list[dict[str, Any]]]:
    """Return a group of arrays per shard, ``replay_0`` and so on, and the rest of each shard's state."""
    is_array = (np.ndarray, StoredArray)
    arrays = {
        f"replay_{index}": {name: value for name, value in state.items() if isinstance(value, is_array)}
        for index, state in enumerate(states)
    }
    rest = [{name: value for name, value in state.items() if not isinstance(value, is_array)} for state in states]
    return arrays, rest


def unpacked_states(
    arrays: Mapping[str, Mapping[str, Array]], rest: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the shards' states that ``packed_states`` took apart."""
    return [{**values, **arrays[f"replay_{index}"]} for index, values in enumerate(rest)]
