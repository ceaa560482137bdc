"""What ``explain`` and docs/keys.md say of keys, and ``explain`` of metrics, samplers, searchers and schedulers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from types import MappingProxyType
from typing import Any, Final

from rlexp.config.keys.agents import AGENTS
from rlexp.config.keys.key_table import KeyName, flat_keys_of_optimizer, key_table
from rlexp.config.keys.metric_names import KNOWN_METRICS, STOP_METRICS, current_metric
from rlexp.config.keys.search import SCHEDULERS
from rlexp.config.rllib_compat.table import Absent, absent_keys, computed_keys, old_groups, renamed_keys

_LIKENESS = 0.6


@dataclass(frozen=True)
class KeyReference:
    """One key, whatever the agent."""

    path: KeyName
    expects: str
    """Of the first agent that has the key."""
    defaults: Mapping[str, Any]
    """By agent; agents that lack the key are left out."""
    required: bool
    meaning: str
    spellings: tuple[str, ...]
    """Its other names in files of RLlib."""
    is_group: bool

    @property
    def dotted(self) -> str:
        """The key as an override names it."""
        return ".".join(self.path)


@dataclass(frozen=True)
class OldKey:
    """A key of RLlib that rlexp does not have."""

    dotted: str
    says: str
    """What happens to it, as the end of a sentence."""


@cache
def key_references() -> tuple[KeyReference, ...]:
    """Return every key of every agent, in the models' order, those beside ``config`` first."""
    paths = dict.fromkeys(path for run in AGENTS for path in key_table(run))
    return tuple(_reference(path) for path in sorted(paths, key=lambda path: path[0] == "config"))


def _reference(path: KeyName) -> KeyReference:
    keys = {run: key_table(run)[path] for run in AGENTS if path in key_table(run)}
    first = next(iter(keys.values()))
    defaults = {run: key.default for run, key in keys.items()}
    spellings = tuple(dict.fromkeys(_spellings(path)))
    expects = f"one of {', '.join(AGENTS)}" if path == ("run",) else first.expects
    return KeyReference(path, expects, defaults, first.required, first.meaning, spellings, first.is_group)


def _spellings(path: KeyName) -> Iterator[str]:
    for run in AGENTS:
        if path[:2] == ("config", "optimizer") and path[-1] in flat_keys_of_optimizer(run):
            yield f"config.{path[-1]}"
        yield from (".".join(old) for old, new in renamed_keys(run).items() if new == path)
    yield from (".".join(old) for old, new in computed_keys().items() if path in new)


def find_keys(name: str) -> tuple[KeyReference, ...]:
    """Return the keys with a name: a path, the end of one, or one of their other spellings."""
    wanted = tuple(name.split("."))
    exact = [key for key in key_references() if key.path == wanted or key.path[1:] == wanted]
    ending = [key for key in key_references() if key.path[-len(wanted) :] == wanted]
    return tuple(exact or ending or _spelled(wanted, from_the_start=True) or _spelled(wanted, from_the_start=False))


def _spelled(wanted: KeyName, from_the_start: bool) -> list[KeyReference]:
    """Return the keys with a spelling that is, or ends in, what is wanted; ``config`` may be left out."""
    found = []
    for key in key_references():
        spellings = [tuple(spelling.split(".")) for spelling in key.spellings]
        if any(wanted in (path, path[1:]) if from_the_start else path[-len(wanted) :] == wanted for path in spellings):
            found.append(key)
    return found


def find_old_key(name: str) -> OldKey | None:
    """Return what happens to a key that rlexp does not have."""
    wanted = tuple(name.split("."))
    for absent in (absent for run in AGENTS for absent in absent_keys(run)):
        if absent.path[-len(wanted) :] == wanted:
            return OldKey(".".join(absent.path), _says(absent))
    group = next((group for group in sorted(old_groups()) if group[-len(wanted) :] == wanted), None)
    return OldKey(".".join(group), "is a mapping of RLlib; rlexp explain has its keys") if group else None


def _says(absent: Absent) -> str:
    if not absent.is_feature:
        return f"has no effect here: {absent.reason}"
    hint = f"; {absent.hint}" if absent.hint else ""
    return f"is not supported by rlexp: {absent.reason}{hint}"


def nearest_key(name: str) -> str | None:
    """Return the key that is spelled most like an unknown name."""
    names = [key.path[-1] for key in key_references()]
    return next(iter(get_close_matches(name.rpartition(".")[2][:100], names, n=1, cutoff=_LIKENESS)), None)


@dataclass(frozen=True)
class NamedValue:
    """A name that a file may have where a value stands."""

    name: str
    kind: str
    """``metric``, ``sampler`` ..."""
    meaning: str
    example: str
    """A line of a file that uses it; empty for what is only reported."""


_EPISODES: Final = "the last metrics_smoothing_episodes episodes"
_OF_EVALUATION: Final = "of the newest evaluation; there is one every evaluation_interval iterations"
_METRICS: Final[Mapping[str, str]] = MappingProxyType(
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
        "info/num_weight_syncs": "How often weights were sent to a worker.",
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
        "info/learner/mean_q": "Mean Q-value over all actions of the newest batch.",
        "info/learner/mean_td_error": "Mean absolute TD error of the newest batch; the cross-entropy if num_atoms > 1.",
        "info/learner/grad_norm": "Norm of the gradient of the newest update, before it is clipped.",
        "done": "Whether this is the last row of the trial.",
        "date": "When the row was reported, in ISO form.",
        "timestamp": "When the row was reported, in seconds since 1970.",
        "trial_name": "The name of the trial that reported the row.",
    }
)
_OTHERS: Final[Mapping[str, tuple[str, str, str]]] = MappingProxyType(
    {
        "grid_search": (
            "grid",
            "lr: {grid_search: [1e-3, 1e-4]}",
            "Every value of the list becomes a trial, crossed with all other grids. It may stand for any value, and "
            "rlexp run trains all of them; rlexp sweep ranks them.",
        ),
        "sample_from": (
            "sampler",
            'lr: {sample_from: "lambda spec: random.uniform(0, 1)"}',
            "RLlib's spelling of a sampler, as Python text. Only a single call of a sampler is understood; nothing is "
            "executed.",
        ),
        "choice": (
            "sampler",
            "n_step: {choice: [1, 3, 5]}",
            "One value of a list, each equally likely. A value may hold samplers, drawn only where it is drawn itself.",
        ),
        "uniform": ("sampler", "gamma: {uniform: [0.9, 0.999]}", "A number between low and high."),
        "loguniform": (
            "sampler",
            "lr: {loguniform: [1e-5, 1e-2]}",
            "A number between low and high whose logarithm is uniform: for learning rates and the like.",
        ),
        "quniform": ("sampler", "gamma: {quniform: [0.9, 0.99, 0.01]}", "A multiple of q between low and high."),
        "randint": ("sampler", "n_step: {randint: [1, 6]}", "A whole number from low to high - 1."),
        "lograndint": (
            "sampler",
            "train_batch_size: {lograndint: [16, 513]}",
            "A whole number from low to high - 1 whose logarithm is uniform.",
        ),
        "randn": (
            "sampler",
            "gamma: {randn: [0.95, 0.01]}",
            "A normally distributed number with this mean and standard deviation.",
        ),
        "grid": ("searcher", "search: {searcher: grid}", "Tries every point of the grids once."),
        "random": (
            "searcher",
            "search: {searcher: random, num_samples: 20}",
            "Draws num_samples points at random, at each point of the grids.",
        ),
        "optuna": (
            "searcher",
            "search: {searcher: optuna, num_samples: 20}",
            "Chooses each point by a tree-structured Parzen estimator, from the scores so far (Bergstra et al. 2011). "
            "Needs pip install 'rlexp[sweep]'.",
        ),
        **{name: ("scheduler", options.EXAMPLE, options.MEANING) for name, options in SCHEDULERS.items()},
    }
)
"""Kind, example and meaning."""


def named_values() -> Iterator[NamedValue]:
    """Yield all of them."""
    for name, (kind, example, meaning) in _OTHERS.items():
        yield NamedValue(name, kind, meaning, example)
    for name, meaning in _METRICS.items():
        yield NamedValue(name, "metric", meaning, _example(name))


def find_named_value(name: str) -> NamedValue | None:
    """Return what a name, or a metric's old name, means."""
    return next((each for each in named_values() if each.name == current_metric(name)), None)


def find_metric_by_end(name: str) -> NamedValue | None:
    """Return the metric whose name ends in ``/name``: ``replay_fill`` is ``info/replay_fill``."""
    return next((each for each in named_values() if each.name.endswith(f"/{name}")), None)


def _example(metric: str) -> str:
    if metric in STOP_METRICS:
        return f"stop: {{{metric}: 100}}"
    return f"checkpoint_score_attr: {metric}" if metric in KNOWN_METRICS else ""
