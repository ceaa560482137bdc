"""The metrics of every result: what ``stop`` can name, and the columns of the recorders.

Names are RLlib's; ``info/`` has what the optimizer counts.
"""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import Final

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
    "info/num_updates",
    "info/num_weight_syncs",
    "info/sample_throughput",
    "info/train_throughput",
)
EVALUATION_METRICS = (
    "evaluation/episode_reward_mean",
    "evaluation/episode_reward_min",
    "evaluation/episode_reward_max",
    "evaluation/episode_len_mean",
    "evaluation/episodes_this_iter",
)
"""What evaluations add, every ``evaluation_interval`` iterations."""

AGENT_METRICS = ("info/num_target_updates",)
"""Counters that some agents have: their ``AGENT_COLUMNS`` name them."""

STOP_METRICS = EPISODE_METRICS + PROGRESS_METRICS + OPTIMIZER_METRICS + AGENT_METRICS
"""The metrics of every row of results, apart from what AGENT_METRICS says."""

GROWING_METRICS = frozenset(
    {"timesteps_total", "training_iteration", "time_total_s", "episodes_total"}
    | {f"info/num_{count}" for count in ("steps_sampled", "steps_trained", "updates", "target_updates", "weight_syncs")}
)
"""Counters: what is left to a ``stop`` of theirs can be foretold."""

KNOWN_METRICS = STOP_METRICS + EVALUATION_METRICS
"""What ``stop`` and ``checkpoint_score_attr`` can name."""

OWN_METRICS: Final = "custom_metrics"
"""The group of a row that has the metrics of the user's callbacks, as RLlib called it."""
OWN_METRIC_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
"""What an own metric can be called; that of an episode has ``_mean``, ``_min`` and ``_max`` behind it in a row."""
OWN_METRIC_PATTERN: Final = rf"(evaluation/)?{OWN_METRICS}/[A-Za-z0-9_-]+"
"""The metrics of callbacks, by their names in a row."""

_RENAMED = MappingProxyType(
    {
        "num_episodes": "episodes_this_iter",
        "num_episodes_lifetime": "episodes_total",
        "num_env_steps_sampled": "timesteps_total",
        "num_env_steps_sampled_lifetime": "timesteps_total",
        "num_agent_steps_sampled": "timesteps_total",
        "num_agent_steps_sampled_lifetime": "timesteps_total",
        "agent_timesteps_total": "timesteps_total",
        "num_env_steps_trained": "info/num_steps_trained",
        "num_env_steps_trained_lifetime": "info/num_steps_trained",
        "num_steps_sampled": "info/num_steps_sampled",
        "num_steps_trained": "info/num_steps_trained",
    }
)
SHORT_NAMES = MappingProxyType({"num_updates": "info/num_updates"})
"""Names of ours that metrics have beside their full ones."""
_EVALUATION_GROUPS = ("evaluation", "eval")
_OLD_GROUPS = ("sampler_results", "env_runners")


def current_metric(name: str) -> str:
    """Return the current name of a metric of any age, in full; the name as it is where none is known."""
    group, slash, rest = name.partition("/")
    if slash and group in _OLD_GROUPS:
        # RLlib 2 calls rewards returns, but only inside its groups.
        return current_metric(rest.replace("episode_return_", "episode_reward_"))
    in_evaluation = slash and group in _EVALUATION_GROUPS
    current = f"evaluation/{current_metric(rest)}" if in_evaluation else (_RENAMED | SHORT_NAMES).get(name, name)
    return current if current in KNOWN_METRICS else name


def is_own_metric(metric: str) -> bool:
    """Return whether a metric is one of the user's callbacks, if there are any."""
    return re.fullmatch(OWN_METRIC_PATTERN, metric) is not None


def is_known(metric: str) -> bool:
    """Return whether results may have a metric."""
    return metric in KNOWN_METRICS or is_own_metric(metric)


def may_be_negative(metric: str) -> bool:
    """Return whether a metric is a reward or the user's own; others count steps, episodes or seconds."""
    return "reward" in metric or is_own_metric(metric)
