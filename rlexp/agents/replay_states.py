"""The states of replay shards in a checkpoint: a group of arrays for each shard, and the values of all in one list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlexp.checkpoint.state_codec import AnyArray, join_state, split_state
from rlexp.sample_batch import Array


def split_shard_states(
    states: Sequence[Mapping[str, Any]],
) -> tuple[dict[str, dict[str, AnyArray]], list[dict[str, Any]]]:
    """Return a group of arrays per shard, ``replay_0`` and so on, and the values of each shard's state."""
    split = [split_state(state) for state in states]
    return {f"replay_{index}": arrays for index, (arrays, _) in enumerate(split)}, [values for _, values in split]


def join_shard_states(
    groups: Mapping[str, Mapping[str, Array]], values: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the states that ``split_shard_states`` split; their arrays are those of ``groups``, not copies."""
    return [join_state(groups[f"replay_{index}"], each) for index, each in enumerate(values)]
