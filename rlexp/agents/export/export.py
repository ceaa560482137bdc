"""Exports a checkpoint: reads it, makes the model, checks it, and only then writes the file.

The model is checked on observations of its own episodes, and on any that its env may give.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import gymnasium as gym
import numpy as np

from rlexp import __version__
from rlexp.agents.checkpoint import LoadedCheckpoint
from rlexp.agents.evaluation import evaluation_env
from rlexp.agents.export.onnx import Verification, Verifier, onnx_model, refuse_unplayed_actions
from rlexp.agents.export.policy_graph import GreedyPolicy, Observations, RecurrentInputs
from rlexp.envs.action_masks import MaskedSpace
from rlexp.envs.make import make_vector_env
from rlexp.envs.registry import EnvConfig
from rlexp.files import replace_bytes
from rlexp.models.memory import EpisodeMemory
from rlexp.rollout.evaluation import ActingPolicy, memory_of
from rlexp.runs.directories import run_of
from rlexp.sample_batch import Array
from rlexp.user_code.import_guard import hides_what_is_beside
from rlexp.user_code.trusted_code import NOTHING_ALLOWED, TrustedCode

NUM_OBSERVATIONS: Final = 1000
"""Observations on which a model is compared with its checkpoint, half of them from episodes."""


_TRACED_ROWS: Final = 2


@dataclass(frozen=True)
class Export:
    """A file that was written."""

    file: Path
    num_bytes: int
    checkpoint: Path
    metadata: dict[str, str]
    """The metadata in the file."""
    verification: Verification


@hides_what_is_beside
def export_checkpoint(checkpoint: Path, file: Path, trusted: TrustedCode = NOTHING_ALLOWED) -> Export:
    """Write the greedy policy of ``checkpoint`` to ``file`` as an ONNX model; replace an existing file.

    Raises CheckpointError if there is no valid checkpoint, UsageError if its env cannot be made, ExportError if the
    model does not compute the checkpoint's actions. Nothing is written then.
    """
    loaded = LoadedCheckpoint.load(checkpoint, trusted=trusted)
    with loaded.errors_of_weights():
        policy = GreedyPolicy.of(loaded)
        metadata = _metadata(loaded, policy)
        model = onnx_model(policy.graph(), policy.example(_TRACED_ROWS), policy.output_names, metadata)
        verification = _verified(model, policy, loaded)
    replace_bytes(file, model)
    return Export(file, len(model), checkpoint, metadata, verification)


def _verified(model: bytes, policy: GreedyPolicy, loaded: LoadedCheckpoint) -> Verification:
    restored, half = policy.restored, NUM_OBSERVATIONS // 2
    env_config = evaluation_env(loaded.env_config, loaded.experiment.config.evaluation_config)
    player = restored.filters.applied_to(restored.policy)
    memory = policy.exportable.memory
    played = played_observations(player, env_config, half, loaded.seed("evaluation", None), memory)
    space, seed = restored.policies.observation_space, loaded.seed("export", None)
    drawn = drawn_observations(space, NUM_OBSERVATIONS - half, seed)
    observations = {
        "of its episodes": played,
        "drawn from the space": drawn if memory is None else drawn_memory(drawn, memory, seed),
    }
    refuse_unplayed_actions(policy, observations)
    return Verifier(model, policy).verify(observations)


def _metadata(loaded: LoadedCheckpoint, policy: GreedyPolicy) -> dict[str, str]:
    """Return the file's metadata about its origin, without any path of this machine."""
    restored = policy.restored
    return {
        "rlexp_version": __version__,
        "agent": loaded.experiment.run,
        "env": loaded.experiment.env,
        "experiment": loaded.experiment.name,
        "run": run_of(loaded.checkpoint.path).name,
        "checkpoint": loaded.checkpoint.path.resolve().name,
        "training_iteration": str(loaded.checkpoint.sequence),
        "observation_space": str(restored.policies.seen_space),
        "observations": "as the agent sees them: images [height, width, channels], anything else as one flat vector",
        "action_space": str(restored.policies.action_space),
    }


LARGEST_DRAWN: Final = 1e3
"""Largest distance from 0 of drawn numbers: bounds may span the whole dtype, which overflows float32 networks."""


_NUM_ENVS: Final = 4


def played_observations(
    policy: ActingPolicy, config: EnvConfig, number: int, seed: int, memory: EpisodeMemory | None = None
) -> Observations:
    """Return observations ``[number, ...]`` from episodes that ``policy`` plays, with what is in its ``memory``."""
    env = make_vector_env(config, _NUM_ENVS)
    ended = np.zeros(_NUM_ENVS, bool)
    parts: list[tuple[Array, ...]] = []
    try:
        obs, _ = env.reset(seed=seed)
        told = memory_of(policy, _NUM_ENVS)
        while len(parts) * _NUM_ENVS < number:
            parts.append((np.array(obs), *(() if memory is None else (memory.packed(), memory.rewards.copy()))))
            obs, rewards, terminated, truncated, _ = env.step(policy.compute_actions(obs))
            if told is not None:
                told.after_step(rewards, ended)
            ended = terminated | truncated
    finally:
        env.close()
    columns = [np.concatenate(column)[:number] for column in zip(*parts, strict=True)]
    return columns[0] if memory is None else RecurrentInputs(*columns)


def drawn_memory(obs: Array, memory: EpisodeMemory, seed: int) -> RecurrentInputs:
    """Return observations with drawn states and rewards."""
    rng = np.random.default_rng(seed)
    states = rng.uniform(-1, 1, (len(obs), memory.packed_size))
    return RecurrentInputs(obs, states.astype(np.float32), rng.standard_normal(len(obs), np.float32))


def drawn_observations(space: gym.Space[Any], number: int, seed: int) -> Array:
    """Return observations ``[number, ...]`` drawn from ``space``, a Box of what agents see."""
    assert isinstance(space, gym.spaces.Box)
    low, high = _narrowed(space) if np.issubdtype(space.dtype, np.floating) else (space.low, space.high)
    own = gym.spaces.Box(low, high, dtype=space.dtype.type, seed=seed)  # later draws from ``space`` are not affected
    drawn = np.stack([own.sample() for _ in range(number)])
    return space.with_valid_masks(drawn) if isinstance(space, MaskedSpace) else drawn


def _narrowed(space: gym.spaces.Box) -> tuple[Array, Array]:
    """Return bounds at most LARGEST_DRAWN from the number nearest to 0; infinite bounds do not change."""
    nearest = np.clip(np.zeros_like(space.low), space.low, space.high)
    low = np.where(np.isinf(space.low), space.low, np.maximum(space.low, nearest - LARGEST_DRAWN))
    high = np.where(np.isinf(space.high), space.high, np.minimum(space.high, nearest + LARGEST_DRAWN))
    return low.astype(space.dtype), high.astype(space.dtype)
