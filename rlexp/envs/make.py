"""Makes envs and vector envs by name: a Gymnasium id, or ``package.module:Class`` of the user's own."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import TimeLimit

from rlexp.envs.spaces import check_spaces, flatten_observations
from rlexp.errors import UsageError

Env = gym.Env[Any, Any]
Vector = VectorEnv[Any, Any, Any]


@dataclass(frozen=True)
class EnvConfig:
    """Which env, and how it is made."""

    env: str
    """A Gymnasium id, ``module:id`` (Gymnasium imports the module first), or ``package.module:Class``."""
    env_config: Mapping[str, Any]
    """Keyword arguments of the env."""
    horizon: int | None
    """Steps after which an episode is cut (a truncation); never longer than the env's own limit."""


def make_env(config: EnvConfig, render_mode: str | None = None) -> Env:
    """Make one env; raises UsageError with a suggestion when there is no such env, or it cannot be made."""
    kwargs = dict(config.env_config) | ({"render_mode": render_mode} if render_mode else {})
    user_class = _user_class(config.env)
    try:
        if user_class is not None:
            env = user_class(**kwargs)
            return TimeLimit(env, config.horizon) if config.horizon else env
        limit = _episode_limit(_find_spec(config.env), config.horizon)
        return gym.make(config.env, max_episode_steps=limit, disable_env_checker=True, **kwargs)
    except (TypeError, ImportError, gym.error.Error) as error:
        raise UsageError(f"env {config.env} cannot be made: {error}", _remedy(error)) from error


def make_vector_env(config: EnvConfig, num_envs: int) -> Vector:
    """Make ``num_envs`` copies that step together, natively vectorised where the env offers that.

    Raises UsageError where the env cannot be made, or has spaces that the agents cannot play.

    Every vector env resets in ``AutoresetMode.NEXT_STEP``: the step after an episode's end ignores its
    action and returns the next episode's first observation, so that one stream of observations holds
    every episode's true last one.
    """
    vector = _native_vector_env(config, num_envs)
    if vector is None:
        vector = SyncVectorEnv([lambda: make_env(config)] * num_envs, autoreset_mode=AutoresetMode.NEXT_STEP)
    check_spaces(config.env, vector.single_observation_space, vector.single_action_space)
    return flatten_observations(vector)


def _native_vector_env(config: EnvConfig, num_envs: int) -> Vector | None:
    if _user_class(config.env) is not None:
        return None
    spec = _find_spec(config.env)
    # Gymnasium's jax envs are vectorised too, but need jax; an env with wrappers of its own has no native form.
    if spec.vector_entry_point is None or "jax" in str(spec.vector_entry_point).lower() or spec.additional_wrappers:
        return None
    kwargs = dict(config.env_config)
    limit = _episode_limit(spec, config.horizon)
    if limit is not None:
        kwargs["max_episode_steps"] = limit
    try:
        vector = gym.make_vec(config.env, num_envs, vectorization_mode="vector_entry_point", **kwargs)
    except TypeError as error:
        raise UsageError(f"env {config.env} cannot be made: {error}", _remedy(error)) from error
    if vector.metadata.get("autoreset_mode") is AutoresetMode.NEXT_STEP:
        return vector
    vector.close()
    return None


def _episode_limit(spec: gym.envs.registration.EnvSpec, horizon: int | None) -> int | None:
    limits = [limit for limit in (spec.max_episode_steps, horizon) if limit is not None]
    return min(limits, default=None)


def _user_class(name: str) -> Callable[..., Env] | None:
    """Return the class that ``package.module:Class`` names, or None where the name is a Gymnasium id."""
    module_name, colon, class_name = name.partition(":")
    if not colon or not class_name.isidentifier() or "/" in module_name:
        return None
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise UsageError(
            f"env {name}: module {module_name} cannot be imported: {error}",
            "it is looked for in the folder where rlexp is started and among the installed packages",
        ) from error
    found = getattr(module, class_name, None)
    if found is None:
        close = difflib.get_close_matches(class_name, dir(module), n=1)
        raise UsageError(
            f"env {name}: module {module_name} has no {class_name}", f"did you mean {close[0]}?" if close else None
        )
    return found if callable(found) else None


def _find_spec(name: str) -> gym.envs.registration.EnvSpec:
    module_name, colon, env_id = name.rpartition(":")
    try:
        if colon:
            importlib.import_module(module_name)
        return gym.spec(env_id)
    except (ImportError, gym.error.Error) as error:
        close = difflib.get_close_matches(env_id, gym.registry, n=1, cutoff=0.7)
        hint = f"did you mean {close[0]}?" if close else "a Gymnasium id or package.module:Class is wanted"
        raise UsageError(f"env {name} is not known to Gymnasium: {error}", hint) from error


def _remedy(error: Exception) -> str | None:
    if isinstance(error, gym.error.DependencyNotInstalled):
        return "install what the env needs, for example pip install 'gymnasium[classic-control]'"
    return "check env_config: its keys are the env's keyword arguments" if isinstance(error, TypeError) else None
