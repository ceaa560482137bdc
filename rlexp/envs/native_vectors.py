"""Vector envs that step several envs by themselves: Gymnasium's, Atari's, EnvPool's, and those of the user's own."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, VectorEnv

from rlexp.envs.atari import atari_rules
from rlexp.envs.checked_vector import CheckedVectorEnv
from rlexp.envs.env_config import EnvConfig, FrameConfig
from rlexp.envs.envpool import is_task, make_pool
from rlexp.envs.frames import is_image
from rlexp.envs.native_atari import can_be_native, make_native_games
from rlexp.envs.registry import find_class, find_spec

Vector = VectorEnv[Any, Any, Any]

NOT_NATIVE: Final = ("jax", "ale_py")
"""Entry points of vector envs that are not used as they are: Gymnasium's own need jax, Atari's needs preparing."""
OF_GYMNASIUM: Final = "gymnasium."
"""Begins the entry points of vector envs that need no checks."""
EPISODE_LIMIT: Final = "max_episode_steps"
"""An argument of ``gymnasium.make`` for every env: in experiments ``horizon`` is the key for it."""
FEWEST_OF_GYMNASIUM: Final = 2
"""Envs from which on Gymnasium's own vector envs are used. A single CartPole plays exactly the same, and steps in
less than half the time: with one number, most of an operation on arrays is the call."""


def native_vector_env(config: EnvConfig, num_envs: int) -> Vector | None:
    """Return ``num_envs`` envs that step together natively; None where each must be made by itself.

    That is where there is no native form, or where wrappers, the preparation of images or actions, or the ``horizon``
    of a vector env of the user's own (which cannot be told to begin another episode) change single envs.
    """
    if config.has_user_parts:
        return None
    if config.frames is not None and config.is_deepmind_atari:
        spec = find_spec(config.env)
        rules = atari_rules(spec.kwargs, config.env_config, config.horizon)
        native = can_be_native(spec, rules)
        return make_native_games(rules, config.frames, num_envs, config.num_threads) if native else None
    vector = _as_given(config, num_envs)
    if vector is None or not _needs_preparing(vector, config):
        return vector
    vector.close()
    return None


def _as_given(config: EnvConfig, num_envs: int) -> Vector | None:
    """Return the native vector env without any preparation, None where there is none that fits."""
    if is_task(config.env):
        return make_pool(config, num_envs, config.horizon)
    found = find_class(config.env)
    if found is None:
        return _registered(config, num_envs)
    is_native = issubclass(found, VectorEnv) and config.horizon is None
    return vector_of_class(found, config, num_envs, config.env_config) if is_native else None


def vector_of_class(found: Any, config: EnvConfig, num_envs: int, kwargs: Mapping[str, Any]) -> CheckedVectorEnv:
    """Return a vector env of the user's class ``found``: ``found(num_envs=..., **kwargs)``."""
    return CheckedVectorEnv(found(num_envs=num_envs, **kwargs), config.env, num_envs)


def registered_vector(config: EnvConfig, num_envs: int, kwargs: Mapping[str, Any]) -> CheckedVectorEnv:
    """Return the vector env of an id of the registry that stands for nothing else; its horizon is not cut."""
    return CheckedVectorEnv(_of_entry_point(config, num_envs, kwargs), config.env, num_envs)


def _registered(config: EnvConfig, num_envs: int) -> Vector | None:
    spec = find_spec(config.env)
    entry_point = str(spec.vector_entry_point).lower()
    # An env with wrappers of its own has no native form.
    if spec.vector_entry_point is None or any(word in entry_point for word in NOT_NATIVE) or spec.additional_wrappers:
        return None
    limit, is_gymnasiums = episode_limit(spec, config.horizon), _is_gymnasiums(spec)
    is_better_single = num_envs < FEWEST_OF_GYMNASIUM or EPISODE_LIMIT in config.env_config
    if is_gymnasiums and is_better_single and spec.entry_point is not None:
        return None
    if config.horizon is not None and not is_gymnasiums:
        return None
    kwargs = dict(config.env_config) | ({EPISODE_LIMIT: limit} if is_gymnasiums and limit is not None else {})
    vector = _of_entry_point(config, num_envs, kwargs)
    if vector.metadata.get("autoreset_mode") is not AutoresetMode.NEXT_STEP and spec.entry_point is not None:
        vector.close()
        return None
    return vector if is_gymnasiums else CheckedVectorEnv(vector, config.env, num_envs)


def _of_entry_point(config: EnvConfig, num_envs: int, kwargs: Mapping[str, Any]) -> Vector:
    with without_advice_on_versions():
        return gym.make_vec(config.env, num_envs, vectorization_mode="vector_entry_point", **kwargs)


def _is_gymnasiums(spec: EnvSpec) -> bool:
    point = spec.vector_entry_point
    return (point if isinstance(point, str) else getattr(point, "__module__", "")).startswith(OF_GYMNASIUM)


def episode_limit(spec: EnvSpec, horizon: int | None) -> int | None:
    """Return the steps after which episodes are cut: the lower one of the env's own limit and ``horizon``."""
    limits = [limit for limit in (spec.max_episode_steps, horizon) if limit is not None]
    return min(limits, default=None)


@contextmanager
def without_advice_on_versions() -> Iterator[None]:
    """Keep Gymnasium from saying that an id has a later version: the results of an experiment are those of its id."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*The environment .* is out of date", DeprecationWarning)
        yield


def _needs_preparing(vector: Vector, config: EnvConfig) -> bool:
    changed = config.frames is not None and changes_images(vector.single_observation_space, config.frames)
    return changed or (config.discretize_actions is not None and isinstance(vector.single_action_space, Box))


def changes_images(space: gym.Space[Any], frames: FrameConfig) -> bool:
    """Return whether observations of ``space`` are images that are scaled or made grey."""
    if not is_image(space) or space.shape is None:
        return False
    return frames.makes_grey or space.shape[:2] != frames.size_of(space.shape)
