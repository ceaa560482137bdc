"""What the metrics of result rows mean.

The metrics of every result: what ``stop`` can name, and the columns of the recorders.

Names are RLlib's; ``info/`` has what the optimizer counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
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


_EPISODES: Final = "the last metrics_smoothing_episodes episodes"
_OF_EVALUATION: Final = "of the newest evaluation; there is one every evaluation_interval iterations"
METRICS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "episode_reward_mean": f"Mean return of {_EPISODES}. With several workers that explore differently, only the "
        "episodes of the third of the environments that explores least count.",
        "episode_reward_min": f"Lowest return among {_EPISODES}, counted as for episode_reward_mean.",
        "episode_reward_max": f"Highest return among {_EPISODES}, counted as for episode_reward_mean.",
        "episode_reward_mean_all": f"Mean return of {_EPISODES} of all environments, however much they explore.",
        "episode_len_mean": "Mean length, in env steps, of the episodes of episode_reward_mean.",
        "episodes_this_iter": "Episodes that ended in this iteration.",
        "episodes_total": "Episodes that ended since the trial began.",
        "timesteps_this_iter": "Env steps sampled in this iteration.",
        "timesteps_total": "Env steps sampled since the trial began, by all workers together.",
        "training_iteration": "Number of this result row: iterations since the trial began.",
        "time_this_iter_s": "Seconds that this iteration took.",
        "time_total_s": "Seconds of training since the trial began, without the time between a stop and a resume.",
        "info/num_steps_sampled": "Env steps sampled since the trial began; the same as timesteps_total.",
        "info/num_steps_trained": "Rows trained on since the trial began; a row that is replayed twice counts twice.",
        "info/num_target_updates": "How often the target network was updated.",
        "info/num_weight_syncs": "How often a worker was sent newer weights, or read them from shared memory.",
        "info/num_fragments_lost": "Fragments of workers that were lost with the node that held them, since this "
        "process of the trial began; their rows are not trained on.",
        "info/sample_throughput": "Env steps sampled per second, in this iteration.",
        "info/train_throughput": "Rows trained on per second, in this iteration.",
        "evaluation/episode_reward_mean": f"Mean return {_OF_EVALUATION}.",
        "evaluation/episode_reward_min": f"Lowest return {_OF_EVALUATION}.",
        "evaluation/episode_reward_max": f"Highest return {_OF_EVALUATION}.",
        "evaluation/episode_len_mean": f"Mean episode length {_OF_EVALUATION}.",
        "evaluation/episodes_this_iter": f"Number of episodes {_OF_EVALUATION}.",
        "info/num_updates": "Optimizer steps since the trial began.",
        "info/trained_per_sampled": "Rows trained on for each env step sampled, in this iteration.",
        "info/min_exploration": "The lowest epsilon among all environments.",
        "info/max_exploration": "The highest epsilon among all environments.",
        "info/replay_fill": "The part of the replay buffer that is in use, 0 to 1.",
        "info/replay_fill_per_shard": "The same for each replay shard.",
        "info/learner_queue_size": "Batches that wait for the learner.",
        "info/learner_queue_capacity": "Batches that may wait for the learner at most.",
        "info/weight_age": "Optimizer steps that the workers' weights are behind the learner's, on average.",
        "info/num_stale_priorities": "New priorities that came after their row had been overwritten, and were dropped.",
        "info/learner_wait_share": "The part of its time that the learner waited for data, 0 to 1.",
        "info/worker_wait_share": "The part of their time that the workers did not sample, 0 to 1.",
        "info/worker_time_share/acting": "The part of the workers' time in which the policy chose actions, 0 to 1.",
        "info/worker_time_share/stepping": "The part of the workers' time in which environments stepped, 0 to 1.",
        "info/worker_time_share/folding": "The part of the workers' time that made n-step rows and priorities, 0 to 1.",
        "info/bottleneck": "What limits training: workers, replay or learner.",
        "info/learner/loss": "Loss of the newest update.",
        "info/learner/lr": "Learning rate of the newest update.",
        "info/learner/cur_lr": "The same as info/learner/lr, as RLlib calls it.",
        "timers/sample_throughput": "Env steps per second of the time in which they are sampled, in this iteration.",
        "timers/learn_throughput": "Rows trained on per second of the time in which the learner learns.",
        "time_since_restore": "Seconds of training since this process began, from a checkpoint or anew.",
        "timesteps_since_restore": "Env steps sampled since then.",
        "iterations_since_restore": "Iterations since then.",
        "info/learner/mean_q": "Mean Q-value over all actions of the newest batch.",
        "info/learner/mean_td_error": "Mean absolute TD error of the newest batch; the cross-entropy if num_atoms > 1.",
        "info/learner/grad_norm": "Norm of the gradient of the newest update, before it is clipped.",
        "info/learner/total_loss": "Loss of the newest train batch: of the policy and the values, with the KL penalty "
        "and the entropy bonus.",
        "info/learner/policy_loss": "Clipped loss of the policy, of the newest train batch.",
        "info/learner/vf_loss": "Mean squared error of the values, with vf_clip_param, of the newest train batch.",
        "info/learner/vf_explained_var": "The part of the variance of the value targets that the values explain: 1 is "
        "best, and 0 or less is no better than a constant.",
        "info/learner/mean_abs_value_target": "Mean size of the value targets of the newest train batch, regardless of "
        "their signs; vf_clip_param should not be far below it.",
        "info/learner/kl": "KL divergence between the policies before and after the newest train batch.",
        "info/learner/cur_kl_coeff": "Coefficient of the KL penalty; see kl_coeff.",
        "info/learner/entropy": "Mean entropy of the policy in the newest train batch.",
        "info/learner/cur_entropy_coeff": "Weight of the entropy bonus; see entropy_coeff_schedule.",
        "info/learner/clip_fraction": "The part of the newest train batch whose probability ratio was further from 1 "
        "than clip_param, 0 to 1.",
        "info/learner_time_share/workers": "The part of the time in which the learner waited for samples, 0 to 1.",
        "info/learner_time_share/learner": "The part of the time in which the learner trained, 0 to 1.",
        "done": "Whether this is the last row of the trial.",
        "date": "When the row was reported, in ISO form.",
        "timestamp": "When the row was reported, in seconds since 1970.",
        "trial_name": "The name of the trial that reported the row.",
        "experiment_id": "The same for all rows of a trial, also after it was resumed.",
        "hostname": "The machine of the trial's process, by its host name.",
        "node_ip": "The same by its IP address, as Ray has it.",
        "pid": "The trial's process.",
    }
)
