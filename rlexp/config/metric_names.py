"""The metrics that every result reports: what ``stop`` may name, and what the recorders declare as columns.

Names are RLlib's; ``info/`` holds what the optimizer counts.
"""

from __future__ import annotations

EPISODE_METRICS = (
    "episode_reward_mean",
    "episode_reward_min",
    "episode_reward_max",
    "episode_reward_mean_all",
    "episode_len_mean",
    "episodes_this_iter",
    "episodes_total",
)
PROGRESS_METRICS = (
    "timesteps_this_iter",
    "timesteps_total",
    "training_iteration",
    "time_this_iter_s",
    "time_total_s",
)
OPTIMIZER_METRICS = (
    "info/num_steps_sampled",
    "info/num_steps_trained",
    "info/num_target_updates",
    "info/num_weight_syncs",
    "info/sample_throughput",
    "info/train_throughput",
)
STOP_METRICS = EPISODE_METRICS + PROGRESS_METRICS + OPTIMIZER_METRICS
"""Every metric that ``stop`` may name; an experiment stops at the first one that reaches its number."""
