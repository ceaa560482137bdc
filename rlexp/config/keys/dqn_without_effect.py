"""Keys of DQN that have no effect beside another key: they are left out, each with a notice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlexp.config.keys.dqn import DQNConfig

_EPSILON = (
    "exploration_initial_eps",
    "exploration_final_eps",
    "exploration_fraction",
    "epsilon_timesteps",
    "exploration_warmup_timesteps",
)
_BETA = (
    "prioritized_replay_beta",
    "final_prioritized_replay_beta",
    "beta_annealing_fraction",
    "prioritized_replay_beta_annealing_timesteps",
)
_PRIORITIES = ("prioritized_replay_alpha", "prioritized_replay_eps", "worker_side_prioritization", *_BETA)


def keys_without_effect(config: DQNConfig) -> Iterator[tuple[str, str]]:
    """Yield each of them, and the reason."""
    is_noise_alone = config.noisy and not config.epsilon_with_noisy
    for is_idle, keys, reason in (
        (
            is_noise_alone,
            ("per_worker_exploration", *_EPSILON),
            "noisy layers explore instead",
        ),
        (config.soft_q, ("per_worker_exploration", *_EPSILON), "soft_q explores instead"),
        (_has_ladder(config), _EPSILON, "per_worker_exploration gives each worker a constant epsilon"),
        (config.epsilon_timesteps is not None, ("exploration_fraction",), "epsilon_timesteps is given"),
        (not config.prioritized_replay, _PRIORITIES, "prioritized_replay is false"),
        (
            config.prioritized_replay_beta_annealing_timesteps is not None,
            ("beta_annealing_fraction",),
            "prioritized_replay_beta_annealing_timesteps is given",
        ),
        (not config.per_worker_exploration, ("epsilon_ladder",), "per_worker_exploration is false"),
        (not config.noisy, ("sigma0", "epsilon_with_noisy"), "noisy is false"),
        (not config.parameter_noise, ("parameter_noise_initial_stddev",), "parameter_noise is false"),
        (not config.soft_q, ("softmax_temp",), "soft_q is false"),
        (config.num_atoms == 1, ("v_min", "v_max"), "num_atoms is 1"),
    ):
        if is_idle:
            yield from ((key, reason) for key in keys)


def _has_ladder(config: DQNConfig) -> bool:
    """Return whether ``per_worker_exploration`` decides, and evaluation does not use the end of the schedule."""
    falls_back = config.evaluation_config.explore and config.evaluation_config.exploration_final_eps is None
    return config.per_worker_exploration and not falls_back
