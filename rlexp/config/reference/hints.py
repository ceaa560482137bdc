"""Hints for a key, a metric or an agent that does not exist: the nearest name, or where it belongs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import SequenceMatcher, get_close_matches
from functools import cache
from types import MappingProxyType
from typing import TypeVar

from rlexp.config.domains import GRID, SAMPLERS
from rlexp.config.keys.agents import AGENTS, agents_of_packages
from rlexp.config.keys.experiment import NUM_SEEDS
from rlexp.config.keys.key_table import KeyName, key_path, key_table
from rlexp.config.keys.metrics import KNOWN_METRICS, STOP_METRICS
from rlexp.config.rllib.names import computed_keys, old_groups, renamed_keys
from rlexp.config.yaml.nodes import dotted, shown_key, with_space

MeaningT = TypeVar("MeaningT")

_LIKENESS = 0.6
"""Least likeness of two words (difflib's ratio) for one to be suggested for the other."""
_CLEAR_LIKENESS = 0.8
"""The same for what is seldom meant: a key of another group, another library's word, a sampler as key of a value."""

_LONGEST_COMPARED = 100


def by_their_names(ours: Mapping[str, str]) -> Mapping[str, str]:
    """Return our names by the names that other libraries have for them: ``ours`` lists these for each."""
    return {theirs: name for name, others in ours.items() for theirs in others.split()}


_MEANT = by_their_names(
    {
        "env": "environment environment_id env_id env_name gym_env",
        "run": "agent algorithm algo_name",
        "lr": "learning_rate step_size",
        "sgd_minibatch_size train_batch_size": "batch_size minibatch_size",
        "gamma": "discount discount_factor",
        "buffer_size": "replay_size memory_size replay_buffer_size",
        "num_envs_per_worker": "n_envs",
        "num_gpus": "gpu gpus cuda device",
        "num_workers": "workers n_workers num_actors",
        "n_step sample_batch_size": "n_steps",
        "n_step": "multi_step",
        "num_sgd_iter": "n_epochs epochs update_epochs",
        "clip_param": "clip_range clip_coef",
        "vf_clip_param": "clip_range_vf",
        "entropy_coeff initial_alpha": "ent_coef",
        "initial_alpha": "alpha",
        "target_noise": "target_policy_noise policy_noise",
        "exploration_gaussian_sigma": "exploration_noise action_noise",
        "policy_delay": "policy_frequency",
        "pure_exploration_steps": "start_steps",
        "tau": "polyak",
        "target_network_update_freq": "target_update_interval target_update_freq",
        "grad_norm_clipping": "max_grad_norm gradient_clip",
        "double_q": "double double_dqn",
        "epsilon_timesteps": "epsilon_decay",
        "exploration_final_eps": "final_epsilon",
        "exploration_initial_eps": "initial_epsilon",
        "prioritized_replay_alpha": "per_alpha",
        "prioritized_replay_beta": "per_beta",
        "actor_hiddens policy_model_config fcnet_hiddens": "hidden_sizes hidden_layers net_arch",
        "fcnet_activation": "activation",
        "horizon": "max_episode_steps",
        "training_intensity": "gradient_steps",
        "sample_batch_size": "train_freq",
        "observation_filter": "normalize",
        "model": "policy_kwargs",
        "vf_loss_coeff": "vf_coef",
        "custom_model": "features_extractor_class",
        "stop.timesteps_total": "n_timesteps num_steps timesteps total_timesteps max_timesteps",
        "stop.training_iteration": "num_iterations iterations",
    }
)
"""Other libraries' names of our keys; of several, the first that the agent has."""

NOT_HERE: Mapping[str, str] = MappingProxyType(
    {
        "target_kl": "no key ends the epochs of a train batch early; kl_target is the goal of the penalty kl_coeff",
        "use_sde": "there is no state-dependent exploration",
        "sde_sample_freq": "there is no state-dependent exploration",
        "log_std_init": "the first deviation cannot be set; model.free_log_std makes deviations parameters",
        "norm_reward": "rewards are not normalised; clip_rewards limits them",
    }
)
"""Keys of other libraries that nothing here does, and what is nearest."""

_MEANT_METRICS = by_their_names(
    {
        "episode_reward_mean": "reward rewards return score episode_reward mean_reward reward_mean",
        "timesteps_total": "steps timesteps total_timesteps num_steps env_steps",
        "episodes_total": "episodes num_episodes",
        "training_iteration": "iterations num_iterations",
        "time_total_s": "time seconds",
    }
)
"""Other libraries' names of our metrics."""

REPEATS = ("seeds", "n_seeds", "repeats", NUM_SEEDS)
"""What ``num_seeds`` beside ``config`` is called elsewhere."""

_ALGORITHMS = """
A2C A3C ALPHASTAR ALPHAZERO APEX_DDPG APPO ARS BC CQL CRR DDPG DDPPO DREAMER DREAMERV3 DT ES IMPALA IQL
LEELACHESSZERO MADDPG MAML MARWIL MBMPO PG QMIX R2D2 RNNSAC SAC SIMPLEQ SLATEQ TD3
"""
RLLIB_ALGORITHMS = frozenset(_ALGORITHMS.split()).difference(AGENTS)
"""Algorithms of RLlib that rlexp does not have."""


def for_unknown_key(path: KeyName, run: str) -> str | None:
    """Return the hint for a key that the agent does not have at its place."""
    name, table = path[-1], key_table(run)
    if name.lower() in NOT_HERE:
        return NOT_HERE[name.lower()]
    if path in [(each,) for each in REPEATS]:
        return f"did you mean {NUM_SEEDS}?"
    spaced = with_space(name)
    if spaced is not None:
        return f"write a space after the colon: {spaced}"
    if "." in name:
        return _nested(key_path(name), run)
    sampler = for_misspelt_sampler(name)
    if sampler is not None:
        return sampler
    if name in STOP_METRICS:
        return f"{name} belongs under stop"
    elsewhere = [key.path[:-1] for key in table.values() if key.name == name]
    if elsewhere:
        return f"{name} belongs {_below(elsewhere[0])}"
    others = [other for other in AGENTS if any(key.name == name for key in key_table(other).values())]
    if others:
        return f"{name} is a key of {_listed(others, 'and')}"
    return _nearest_key(path, run)


def for_misspelt_sampler(name: str) -> str | None:
    """Return what to do about a key that is nearly ``grid_search`` or the name of a sampler."""
    meant = sampler_meant(name)
    return f"did you mean {meant}?" if meant is not None and meant != name else None


def sampler_meant(name: str) -> str | None:
    """Return ``grid_search`` or the sampler of that name, or of nearly that name."""
    known = {word.replace("_", ""): word for word in (GRID, *SAMPLERS)}
    bare = name.lower().replace("_", "").replace("-", "").replace(" ", "")[:_LONGEST_COMPARED]
    matches = get_close_matches(bare, list(known), n=1, cutoff=_CLEAR_LIKENESS)
    return known[matches[0]] if matches else None


def for_unknown_metric(metric: str) -> str:
    """Return the hint for a metric that no result has."""
    name = metric.rpartition("/")[2].replace("return", "reward")  # RLlib 2's words: env_runners/episode_return_mean
    spaced = with_space(metric)
    if spaced is not None:
        return f"write a space after the colon: {spaced}"
    meant = _MEANT_METRICS.get(metric.lower())
    known = dict(zip(KNOWN_METRICS, KNOWN_METRICS, strict=True))
    nearest = meant or (name if name in known else nearest_of_both(metric, known, _MEANT_METRICS))
    return f"did you mean {nearest}?" if nearest else f"metrics are {', '.join(KNOWN_METRICS)}"


def words_meant(name: str) -> tuple[str, ...]:
    """Return the keys that other libraries call ``name``."""
    return tuple(word for word in _MEANT.get(name.lower(), "").split() if "." not in word)


def first_words_meant() -> Mapping[str, str]:
    """Return the key, or the metric, that is most often meant by each of other libraries' names."""
    return {name: key_path(meant.split()[0])[-1] for name, meant in _MEANT.items()}


def metric_meant(name: str) -> str | None:
    """Return the metric of ``stop`` that other libraries call ``name``, or that has this name."""
    stop = _MEANT.get(name.lower(), "").removeprefix("stop.")
    return _MEANT_METRICS.get(name.lower()) or next((each for each in (stop, name) if each in KNOWN_METRICS), None)


def for_unknown_agent(run: str) -> str:
    """Return the hint for an agent that does not exist."""
    known = {name.upper(): name for name in (*AGENTS, *agents_of_packages())}
    nearest = None if run.upper() in RLLIB_ALGORITHMS else nearest_of_both(run.upper(), known, {})
    return f"did you mean {nearest}?" if nearest else f"use {agents()}"


def agents() -> str:
    """Return the existing agents, for a sentence."""
    return _listed((*AGENTS, *agents_of_packages()), "or")


def _listed(names: Sequence[str], word: str) -> str:
    *others, last = names
    return f"{', '.join(others)} {word} {last}" if others else last


def _nested(path: KeyName, run: str) -> str:
    """Return how to write a key that was written with dots, as in overrides."""
    table = key_table(run)
    path = path if (path[0],) in table else ("config", *path)
    flow = f"{path[-1]}: ..."
    for group in reversed(path[:-1]):
        flow = f"{group}: {{{flow}}}"
    is_known = path in table or path[:-1] == ("stop",)
    return f"in a file, nest it: {flow}" if is_known else "in a file, nest keys instead of writing dots"


def _nearest_key(path: KeyName, run: str) -> str | None:
    name, group = path[-1], path[:-1]
    if path in old_groups():
        return f"{name} must be a mapping, as in RLlib"
    near, far, meant = _names_around(group, run)
    nearest = meant[name.lower()] if name.lower() in meant else nearest_of_both(name, near, far)
    if nearest is None or nearest == path:
        return f"RLlib has {name} for other agents; leave it out" if path in computed_keys() else None
    return f"did you mean {nearest[-1] if nearest[:-1] == group else dotted(nearest)}?"


@cache
def _names_around(
    group: KeyName, run: str
) -> tuple[Mapping[str, KeyName], Mapping[str, KeyName], Mapping[str, KeyName | None]]:
    """Return keys by the names in a group, by names elsewhere and old ones, and by other libraries' names.

    The last have None if the agent has no such key.
    """
    table, renamed = key_table(run), renamed_keys(run)
    near = {path[-1]: path for path in table if path[:-1] == group}
    keys = {path[-1]: path for path in [*table][::-1]} | near
    theirs = {name: next((keys[each] for each in ours.split() if each in keys), None) for name, ours in _MEANT.items()}
    theirs |= {name: key_path(ours) for name, ours in _MEANT.items() if ours.startswith("stop.")}
    old = {
        path[-1]: renamed.get(path, path) for path in (*renamed, *computed_keys(), *old_groups()) if path[:-1] == group
    }
    return near, {name: path for name, path in theirs.items() if path} | keys | old, theirs


def _below(group: KeyName) -> str:
    return f"under {dotted(group)}" if group else "beside config, not under it"


def nearest_of_both(word: str, near: Mapping[str, MeaningT], far: Mapping[str, MeaningT]) -> MeaningT | None:
    """Return the meaning of the word that is most like another one; None if none is.

    A word of ``near`` may also begin with it, and one of ``far`` must be nearly the same.
    """
    found = [(each, near[each]) for each in [_nearest_of(word, near, _LIKENESS)] if each is not None]
    begun = [each for each in near if each.startswith(f"{word}_")]
    if len(begun) == 1 and (not found or _likeness(word, found[0][0]) < _CLEAR_LIKENESS):
        return near[begun[0]]
    found += [(each, far[each]) for each in [_nearest_of(word, far, _CLEAR_LIKENESS)] if each is not None]
    return max(found, key=lambda pair: _likeness(word, pair[0]))[1] if found else None


def _nearest_of(word: str, words: Iterable[str], cutoff: float) -> str | None:
    """Return the word that is spelled most like another one, also in another order of its parts; None if none is."""
    bare = _bare(word)
    forms = {each.lower(): each for each in words}
    in_order = {_in_order(form): each for form, each in forms.items()}
    close = [forms[form] for form in get_close_matches(bare, forms, n=1, cutoff=cutoff)]
    if "_" in bare:
        close += [in_order[form] for form in get_close_matches(_in_order(bare), in_order, n=1, cutoff=_CLEAR_LIKENESS)]
    return max(close, key=lambda each: _likeness(word, each), default=None)


def _likeness(word: str, other: str) -> float:
    pairs = ((_bare(word), other.lower()), (_in_order(_bare(word)), _in_order(other.lower())))
    return max(SequenceMatcher(None, one, two).ratio() for one, two in pairs)


def _bare(word: str) -> str:
    return shown_key(word[:_LONGEST_COMPARED]).lower()


def _in_order(word: str) -> str:
    return "_".join(sorted(word.split("_")))
