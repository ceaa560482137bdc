"""How much memory an experiment's replay takes at most, as far as its file tells."""

from __future__ import annotations

from rlexp.config.apex import ApexConfig
from rlexp.config.dqn import DQNConfig
from rlexp.config.env_ids import is_atari
from rlexp.config.experiment import Experiment

_FRAMES = 4
"""Frames in one stacked observation."""
_BESIDE_OBSERVATIONS = 64
"""Bytes of a transition beside its observations: action, reward, discount, priority, key."""


def bytes_per_transition(experiment: Experiment) -> int | None:
    """Return the bytes of one transition, an upper bound; None where only the env itself could tell.

    Compressed replay keeps each frame once, and a frame that does not compress at all still takes no more.
    """
    config = experiment.config
    if not isinstance(config, DQNConfig) or not is_atari(experiment.env) or config.preprocessor_pref != "deepmind":
        return None
    frame = config.model.dim**2
    stacked = frame * (_FRAMES if config.model.framestack else 1)
    compressed = config.compress_observations and not _is_shared(config)
    return _BESIDE_OBSERVATIONS + (frame if compressed else 2 * stacked)


def _is_shared(config: DQNConfig) -> bool:
    return isinstance(config, ApexConfig) and config.replay_storage == "shared_memory" and config.num_workers > 0


def replay_bytes(experiment: Experiment) -> int | None:
    """Return the bytes of the whole replay buffer, when it is full."""
    each = bytes_per_transition(experiment)
    config = experiment.config
    return None if each is None or not isinstance(config, DQNConfig) else each * config.buffer_size
