"""Hints for a key, a metric or an agent that does not exist: the nearest name, or where it belongs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from types import MappingProxyType

from rlexp.config.domains import GRID, SAMPLERS
from rlexp.config.keys.agents import AGENTS, agents_of_packages
from rlexp.config.keys.experiment import NUM_SEEDS
from rlexp.config.keys.key_table import KeyName, key_path, key_table
from rlexp.config.keys.metrics import KNOWN_METRICS
from rlexp.config.yaml.nodes import dotted, shown_key
from rlexp.config.yaml.reader import with_space

_LIKENESS = 0.6
"""Least likeness of two words (difflib's ratio) for one to be suggested for the other."""
_GRID_LIKENESS = 0.8
"""The same for ``grid_search`` and samplers, which any value can have as key."""

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
    matches = get_close_matches(bare, list(known), n=1, cutoff=_GRID_LIKENESS)
    return known[matches[0]] if matches else None


def for_unknown_metric(metric: str) -> str:
    """Return the hint for a metric that no result has."""
    name = metric.rpartition("/")[2].replace("return", "reward")  # RLlib 2's words: env_runners/episode_return_mean
    meant = _MEANT_METRICS.get(metric.lower())
    nearest = meant or (name if name in KNOWN_METRICS else nearest_of(metric, KNOWN_METRICS))
    return f"did you mean {nearest}?" if nearest else f"metrics are {', '.join(KNOWN_METRICS)}"


def words_meant(name: str) -> tuple[str, ...]:
    """Return the keys that other libraries call ``name``."""
    return tuple(word for word in _MEANT.get(name.lower(), "").split() if "." not in word)


def metric_meant(name: str) -> str | None:
    """Return the metric of ``stop`` that other libraries call ``name``, or that has this name."""
    stop = _MEANT.get(name.lower(), "").removeprefix("stop.")
    return _MEANT_METRICS.get(name.lower()) or next((each for each in (stop, name) if each in KNOWN_METRICS), None)


def for_unknown_agent(run: str) -> str:
    """Return the hint for an agent that does not exist."""
    known = {name.upper(): name for name in (*AGENTS, *agents_of_packages())}
    nearest = None if run.upper() in RLLIB_ALGORITHMS else nearest_of(run.upper(), list(known))
    return f"did you mean {known[nearest]}?" if nearest else f"use {agents()}"


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
    table = key_table(run)
    meant = _MEANT.get(name.lower(), "")
    if meant.startswith("stop."):
        return f"did you mean {meant}?"
    names = [key.name for key in table.values()]
    nearest = next((each for each in meant.split() if each in names), None) if meant else nearest_of(name, names)
    paths = [key.path for key in table.values() if key.name == nearest]
    if nearest is None or not paths:
        return None
    return f"did you mean {nearest if (*group, nearest) in paths else dotted(paths[0])}?"


def _below(group: KeyName) -> str:
    return f"under {dotted(group)}" if group else "beside config, not under it"


def nearest_of(word: str, words: Sequence[str]) -> str | None:
    """Return the word that is spelled most like another one; None if none is near."""
    matches = get_close_matches(shown_key(word[:_LONGEST_COMPARED]), words, n=1, cutoff=_LIKENESS)
    return matches[0] if matches else None
