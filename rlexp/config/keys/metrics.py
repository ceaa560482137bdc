"""The metrics of result rows: names for ``stop``, columns, and the texts of ``explain``.

Names are RLlib's; ``info/`` has what the optimizer counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True)
class Metric:
    """One metric of result rows."""

    name: str
    meaning: str
    is_counter: bool = False
    """Whether it only grows, so that the remaining amount to a ``stop`` can be predicted."""
    unit: str | None = None
    """The unit of its numbers; None: its name."""
    old_names: tuple[str, ...] = ()
    """Names that RLlib had for it."""


_WINDOW: Final = "the last metrics_smoothing_episodes episodes"
_NEWEST: Final = "of the newest evaluation; there is one every evaluation_interval iterations"

_EPISODES: Final = (
    Metric(
        "episode_reward_mean",
        f"Mean return of {_WINDOW}. With several workers that explore differently, only the episodes of "
        "the third of the environments that explores least count.",
    ),
    Metric("episode_reward_min", f"Lowest return among {_WINDOW}, counted as for episode_reward_mean."),
    Metric("episode_reward_max", f"Highest return among {_WINDOW}, counted as for episode_reward_mean."),
    Metric("episode_reward_mean_all", f"Mean return of {_WINDOW} of all environments, however much they explore."),
    Metric("episode_len_mean", "Mean length, in env steps, of the episodes of episode_reward_mean."),
    Metric("episodes_this_iter", "Episodes that ended in this iteration.", old_names=("num_episodes",)),
    Metric(
        "episodes_total",
        "Episodes that ended since the trial began.",
        is_counter=True,
        unit="episodes",
        old_names=("num_episodes_lifetime",),
    ),
)
"""Metrics of the ended episodes."""
_PROGRESS: Final = (
    Metric("timesteps_this_iter", "Env steps sampled in this iteration."),
    Metric(
        "timesteps_total",
        "Env steps sampled since the trial began, by all workers together.",
        is_counter=True,
        unit="env steps",
        old_names=(
            "num_env_steps_sampled",
            "num_env_steps_sampled_lifetime",
            "num_agent_steps_sampled",
            "num_agent_steps_sampled_lifetime",
            "agent_timesteps_total",
        ),
    ),
    Metric(
        "training_iteration",
        "Number of this result row: iterations since the trial began.",
        is_counter=True,
        unit="iterations",
    ),
    Metric("time_this_iter_s", "Seconds that this iteration took."),
    Metric(
        "time_total_s",
        "Seconds of training since the trial began, without the time between a stop and a resume.",
        is_counter=True,
        unit="training time",
    ),
)
"""Metrics of a trial's progress."""
_OPTIMIZER: Final = (
    Metric(
        "info/num_steps_sampled",
        "Env steps sampled since the trial began; the same as timesteps_total.",
        is_counter=True,
        old_names=("num_steps_sampled",),
    ),
    Metric(
        "info/num_steps_trained",
        "Rows trained on since the trial began; a row is counted each time it is replayed.",
        is_counter=True,
        old_names=(
            "num_env_steps_trained",
            "num_env_steps_trained_lifetime",
            "num_agent_steps_trained",
            "num_steps_trained",
        ),
    ),
    Metric("info/num_updates", "Optimizer steps since the trial began.", is_counter=True, unit="updates"),
    Metric(
        "info/num_weight_syncs",
        "How often a worker was sent newer weights, or read them from shared memory.",
        is_counter=True,
    ),
    Metric("info/sample_throughput", "Env steps sampled per second, in this iteration."),
    Metric("info/train_throughput", "Rows trained on per second, in this iteration."),
)
"""Metrics of every optimizer."""
_AGENTS: Final = (
    Metric("info/num_target_updates", "How often the target network was updated.", is_counter=True),
    Metric(
        "info/num_steps_dropped",
        "Env steps that were not learned since their policy was older than max_policy_lag.",
        is_counter=True,
    ),
)
"""Counters that some agents have: their ``AGENT_COLUMNS`` name them."""
_EVALUATION: Final = (
    Metric("evaluation/episode_reward_mean", f"Mean return {_NEWEST}."),
    Metric("evaluation/episode_reward_min", f"Lowest return {_NEWEST}."),
    Metric("evaluation/episode_reward_max", f"Highest return {_NEWEST}."),
    Metric("evaluation/episode_len_mean", f"Mean episode length {_NEWEST}."),
    Metric("evaluation/episodes_this_iter", f"Number of episodes {_NEWEST}."),
)
"""Metrics of evaluations, every ``evaluation_interval`` iterations."""
_OTHERS: Final = (
    Metric(
        "info/num_fragments_lost",
        "Fragments of workers that were lost with the node that held them, since this process of the "
        "trial began; their rows are not trained on.",
    ),
    Metric("info/trained_per_sampled", "Rows trained on for each env step sampled, in this iteration."),
    Metric("info/min_exploration", "The lowest epsilon among all environments."),
    Metric("info/max_exploration", "The highest epsilon among all environments."),
    Metric("info/replay_fill", "The part of the replay buffer that is in use, 0 to 1."),
    Metric("info/replay_fill_per_shard", "The same for each replay shard."),
    Metric("info/learner_queue_size", "Batches that wait for the learner."),
    Metric("info/learner_queue_capacity", "Batches that may wait for the learner at most."),
    Metric("info/weight_age", "Optimizer steps that the workers' weights are behind the learner's, on average."),
    Metric(
        "info/policy_lag/mean",
        "Updates by which the learner is ahead of the policy whose steps it learns, on average over the steps learned "
        "in this iteration.",
    ),
    Metric("info/policy_lag/p95", "The same, for the step at the 95th percentile."),
    Metric("info/policy_lag/max", "The same, for the oldest step; at most max_policy_lag."),
    Metric(
        "info/num_stale_priorities", "New priorities that came after their row had been overwritten, and were dropped."
    ),
    Metric(
        "info/mean_importance_weight",
        "Mean importance-sampling weight of the newest batch, 0 to 1. If it is small, so are the steps; "
        "see importance_weight_normalization.",
    ),
    Metric(
        "info/adam_step_share",
        "How large a step of Adam is, as a part of what it would be with adam_epsilon: 0, 0 to 1. "
        "Below 0.5, adam_epsilon is large beside the gradients and lr acts as if it were smaller.",
    ),
    Metric("info/learner_wait_share", "The part of its time that the learner waited for data, 0 to 1."),
    Metric("info/worker_wait_share", "The part of their time that the workers did not sample, 0 to 1."),
    Metric("info/worker_time_share/acting", "The part of the workers' time in which the policy chose actions, 0 to 1."),
    Metric("info/worker_time_share/stepping", "The part of the workers' time in which environments stepped, 0 to 1."),
    Metric(
        "info/worker_time_share/folding", "The part of the workers' time that made n-step rows and priorities, 0 to 1."
    ),
    Metric("info/bottleneck", "What limits training: workers, replay or learner."),
    Metric("info/learner/loss", "Loss of the newest update."),
    Metric("info/learner/lr", "Learning rate of the newest update."),
    Metric("info/learner/cur_lr", "The same as info/learner/lr, as RLlib calls it."),
    Metric(
        "timers/sample_throughput", "Env steps per second of the time in which they are sampled, in this iteration."
    ),
    Metric("timers/learn_throughput", "Rows trained on per second of the time in which the learner learns."),
    Metric("time_since_restore", "Seconds of training since this process began, from a checkpoint or anew."),
    Metric("timesteps_since_restore", "Env steps sampled since then."),
    Metric("iterations_since_restore", "Iterations since then."),
    Metric("info/learner/mean_q", "Mean Q-value over all actions of the newest batch."),
    Metric(
        "info/learner/mean_td_error",
        "Mean absolute TD error of the newest batch; the cross-entropy of distributions over atoms.",
    ),
    Metric("info/learner/grad_norm", "Norm of the gradient of the newest update, before it is clipped."),
    Metric(
        "info/learner/total_loss",
        "Loss of the newest train batch: of the policy and the values, with the KL penalty and the entropy bonus.",
    ),
    Metric("info/learner/policy_loss", "Loss of the policy, of the newest train batch."),
    Metric("info/learner/vf_loss", "Loss of the values, of the newest train batch."),
    Metric(
        "info/learner/vf_explained_var",
        "The part of the variance of the value targets that the values explain: 1 is best, and 0 or less"
        " is no better than a constant.",
    ),
    Metric(
        "info/learner/mean_abs_value_target",
        "Mean size of the value targets of the newest train batch, regardless of their signs; "
        "vf_clip_param should not be far below it.",
    ),
    Metric("info/learner/critic_loss", "Loss of the critics in the newest update, added up."),
    Metric("info/learner/actor_loss", "Loss of the policy in its newest update."),
    Metric("info/learner/critic_grad_norm", "Norm of the gradient of the critics, before it is clipped."),
    Metric("info/learner/actor_grad_norm", "Norm of the gradient of the policy, before it is clipped."),
    Metric("info/learner/alpha", "The price of entropy in the newest update; see initial_alpha."),
    Metric("info/learner/alpha_loss", "Loss of the price of entropy in the newest update."),
    Metric("info/noise_scale", "Factor of the noise on actions; the largest of all workers."),
    Metric("info/learner/return_deviation", "Standard deviation of the returns that the newest update learned from."),
    Metric("info/learner/weights_norm", "Norm of all weights after the newest update."),
    Metric("info/learner/update_ratio", "Norm of the newest step of the weights, as a part of weights_norm."),
    Metric("info/learner/kl", "KL divergence between the policies before and after the newest train batch."),
    Metric("info/learner/cur_kl_coeff", "Coefficient of the KL penalty; see kl_coeff."),
    Metric("info/learner/entropy", "Mean entropy of the policy in the newest train batch."),
    Metric("info/learner/cur_entropy_coeff", "Weight of the entropy bonus; see entropy_coeff_schedule."),
    Metric(
        "info/learner/clip_fraction",
        "The part of the newest train batch whose probability ratio was further from 1 than clip_param, 0 to 1.",
    ),
    Metric("info/learner_time_share/wait", "The part of the time in which the learner's thread waited, 0 to 1."),
    Metric("info/learner_time_share/learning", "The part of the time in which the learner's thread learned, 0 to 1."),
    Metric("info/learner_time_share/workers", "The part of the time in which the learner waited for samples, 0 to 1."),
    Metric("info/learner_time_share/learner", "The part of the time in which the learner trained, 0 to 1."),
    Metric("done", "Whether this is the last row of the trial."),
    Metric("date", "When the row was reported, in ISO form."),
    Metric("timestamp", "When the row was reported, in seconds since 1970."),
    Metric("trial_name", "The name of the trial that reported the row."),
    Metric("experiment_id", "The same for all rows of a trial, also after it was resumed."),
    Metric("hostname", "The machine of the trial's process, by its host name."),
    Metric("node_ip", "The same by its IP address, as Ray has it."),
    Metric("pid", "The trial's process."),
)
"""Metrics that ``stop`` cannot name: shares, losses, and when and where a row was made."""


def _names(rows: tuple[Metric, ...]) -> tuple[str, ...]:
    return tuple(metric.name for metric in rows)


METRICS: Final[Mapping[str, Metric]] = MappingProxyType(
    {metric.name: metric for metric in (*_EPISODES, *_PROGRESS, *_OPTIMIZER, *_AGENTS, *_EVALUATION, *_OTHERS)}
)
EPISODE_METRICS = _names(_EPISODES)
PROGRESS_METRICS = _names(_PROGRESS)
OPTIMIZER_METRICS = _names(_OPTIMIZER)
AGENT_METRICS = _names(_AGENTS)
EVALUATION_METRICS = _names(_EVALUATION)
STOP_METRICS = EPISODE_METRICS + PROGRESS_METRICS + OPTIMIZER_METRICS + AGENT_METRICS
"""The metrics of every row of results, except AGENT_METRICS."""
GROWING_METRICS = frozenset(metric.name for metric in METRICS.values() if metric.is_counter)
KNOWN_METRICS = STOP_METRICS + EVALUATION_METRICS
"""Metrics that ``stop`` and ``checkpoint_score_attr`` can name."""

AGENT_REWARDS: Final = "agent_reward_mean"
"""The group of a row with the mean return of each agent, if the env has several."""
OWN_METRICS: Final = "custom_metrics"
"""The group of a row for the metrics of the user's callbacks, named as in RLlib."""
OWN_METRIC_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
"""A valid name of an own metric; in a row, an episode's metric gets ``_mean``, ``_min`` and ``_max`` appended."""
OWN_METRIC_PATTERN: Final = rf"(evaluation/)?{OWN_METRICS}/[A-Za-z0-9_-]+"
"""Pattern of the metrics of callbacks in a row."""

_RENAMED = MappingProxyType({old: metric.name for metric in METRICS.values() for old in metric.old_names})
SHORT_NAMES = MappingProxyType({"num_updates": "info/num_updates"})
"""Our short names of metrics, beside their full ones."""
_EVALUATION_GROUPS = ("evaluation", "eval")
_OLD_GROUPS = ("sampler_results", "env_runners")
_OLD_COUNTERS = ("info", "counters")


def current_metric(name: str) -> str:
    """Return the current full name of a metric of any age; an unknown name is returned unchanged."""
    group, slash, rest = name.partition("/")
    if slash and group in _OLD_GROUPS:
        # RLlib 2 calls rewards returns, but only inside its groups.
        return current_metric(rest.replace("episode_return_", "episode_reward_"))
    if group in _OLD_COUNTERS and rest in _RENAMED:
        return _RENAMED[rest]
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
