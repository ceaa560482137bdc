"""Vector envs that step several envs by themselves: Gymnasium's, Atari's, EnvPool's, and the user's own.

A task of EnvPool, ``envpool:Pong-v5``, is envs in C++ that a pool of threads steps together. SingleEnv turns a vector
env of one copy into an env, for wrappers, horizons, checks and videos.
"""

from __future__ import annotations

import difflib
import importlib
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, Final

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from rlexp.config.keys.env_ids import ENVPOOL
from rlexp.envs.atari import GAME_OVER, GAME_SCORE, GAME_STEPS, Seeds, atari_rules, can_be_native, make_native_games
from rlexp.envs.checked_env import CheckedVectorEnv, Start, Step
from rlexp.envs.registry import EnvConfig, FrameConfig, Vector, find_class, find_spec
from rlexp.envs.wrappers import is_image
from rlexp.errors import UsageError
from rlexp.sample_batch import Array

ACTION_MASK: Final = "action_mask"
"""The key of an action mask in infos, and in observations of the kind Dict."""
MASK_METHOD: Final = "action_masks"
"""The method that returns action masks, as in sb3-contrib."""
RESTING: Final = "rlexp.resting"
"""The key in every infos of an AgentRows: whether an agent is not in its env now, so its next step is none ``[M]``."""
AGENT_RETURNS: Final = "rlexp.agent_returns"
"""The key, likewise, of the returns of the A agents of each copy ``[C, A]``, NaN for those not in its episode yet."""
INFOS: Final = "rlexp.infos"
"""The key of the infos that single envs or agents gave, as they gave them: a list of M dicts."""
JOINED: Final = (ACTION_MASK, GAME_OVER, GAME_SCORE, GAME_STEPS)
"""The keys of single envs' infos that rlexp itself reads, as arrays ``[M, ...]``."""

NOT_NATIVE: Final = ("jax", "ale_py")
"""Entry points of vector envs that are not used directly: Gymnasium's own need jax, Atari's need preparation."""
OF_GYMNASIUM: Final = "gymnasium."
"""Prefix of the entry points of vector envs that need no checks."""
EPISODE_LIMIT: Final = "max_episode_steps"
"""An argument of ``gymnasium.make`` for every env; in experiments, its key is ``horizon``."""
FEWEST_OF_GYMNASIUM: Final = 2
"""Least number of envs for Gymnasium's vector envs. A single CartPole plays the same and steps in less than half the
time: for one number, most of an array operation is the call."""


def native_vector_env(config: EnvConfig, num_envs: int) -> Vector | None:
    """Return ``num_envs`` envs that step together natively; None if each must be made by itself.

    None if there is no native form, or if single envs need changes: by wrappers, the preparation of images or actions,
    or the ``horizon`` of a user's vector env (which cannot be told to begin another episode).
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
    """Return the native vector env without any preparation; None if none fits."""
    if is_task(config.env):
        return make_pool(config, num_envs)
    found = find_class(config.env)
    if found is None:
        return _registered(config, num_envs)
    is_native = issubclass(found, VectorEnv) and config.horizon is None
    return vector_of_class(found, config, num_envs, config.arguments()) if is_native else None


def vector_of_class(found: Any, config: EnvConfig, num_envs: int, kwargs: Mapping[str, Any]) -> CheckedVectorEnv:
    """Return a vector env of the user's class ``found``: ``found(num_envs=..., **kwargs)``."""
    return CheckedVectorEnv(found(num_envs=num_envs, **kwargs), config.env, num_envs)


def registered_vector(config: EnvConfig, num_envs: int, kwargs: Mapping[str, Any]) -> CheckedVectorEnv:
    """Return the vector env of an id of the registry that has no other form; its horizon is not applied."""
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
    kwargs = config.arguments() | ({EPISODE_LIMIT: limit} if is_gymnasiums and limit is not None else {})
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
    """Return the steps after which episodes are truncated: the lower one of the env's own limit and ``horizon``."""
    limits = [limit for limit in (spec.max_episode_steps, horizon) if limit is not None]
    return min(limits, default=None)


@contextmanager
def without_advice_on_versions() -> Iterator[None]:
    """Silence Gymnasium's note that an id has a later version: an experiment's results belong to its id."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*The environment .* is out of date", DeprecationWarning)
        yield


def _needs_preparing(vector: Vector, config: EnvConfig) -> bool:
    changed = config.frames is not None and changes_images(vector.single_observation_space, config.frames)
    return changed or (config.discretize_actions is not None and isinstance(vector.single_action_space, Box))


def changes_images(space: gym.Space[Any], frames: FrameConfig) -> bool:
    """Return whether observations of ``space`` are images that are scaled or made grey."""
    return is_image(space) and (frames.makes_grey or space.shape[:2] != frames.size_of(space.shape))


class InfosAsGiven(VectorEnv[Any, Any, Any]):
    """Has the infos of its envs under INFOS. Gymnasium joins only those that are JOINED.

    It makes arrays with the type and the shape of the first env's values: other values are changed or raise.
    """

    def _add_info(self, vector_infos: dict[str, Any], env_info: dict[str, Any], env_num: int) -> dict[str, Any]:
        if env_info:
            vector_infos.setdefault(INFOS, [{}] * self.num_envs)[env_num] = env_info
            joined = {key: env_info[key] for key in JOINED if key in env_info}
            vector_infos = super()._add_info(vector_infos, joined, env_num)
        return vector_infos


class EnvsInTurn(InfosAsGiven, SyncVectorEnv):
    """Steps single envs one after the other."""

    # Its name in the snapshots of checkpoints: under another one, a resumed run would begin its episodes anew.
    __module__, __qualname__ = SyncVectorEnv.__module__, SyncVectorEnv.__qualname__


def info_of(infos: Mapping[str, Any], index: int, num_envs: int) -> dict[str, Any]:
    """Return a copy of the info of one env from the infos of a vector env.

    In infos that a native vector env made, ``_key`` says which envs gave ``key``; without it, all did. A value without
    an entry for each env, such as a number, belongs to all envs and is returned unchanged.
    """
    if INFOS in infos:
        own: dict[str, Any] = _copied(infos[INFOS][index])
        return own
    info: dict[str, Any] = {}
    for key, values in infos.items():
        given: Any = infos.get(f"_{key}")
        is_mask = isinstance(key, str) and key.startswith("_") and key[1:] in infos
        if is_mask or (_has_one_per_env(given, num_envs) and not given[index]):
            continue
        if isinstance(values, Mapping):
            info[key] = info_of(values, index, num_envs)
        else:
            info[key] = values[index] if _has_one_per_env(values, num_envs) else values
    return info


def _copied(value: Any) -> Any:
    """Return a value of an info with dicts and arrays of its own: a hook may change them, and an env use its again."""
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return value.copy() if isinstance(value, np.ndarray) else value


def _has_one_per_env(values: Any, num_envs: int) -> bool:
    """Return whether ``values`` are an array or a list ``[M, ...]``."""
    shape = getattr(values, "shape", None)
    if isinstance(shape, tuple):
        return shape[:1] == (num_envs,)
    return isinstance(values, list | tuple) and len(values) == num_envs


class SingleEnv(gym.Env[Any, Any]):
    """Plays a vector env with ``num_envs`` 1; owns it."""

    def __init__(self, vector: VectorEnv[Any, Any, Any]) -> None:
        self._vector = vector
        self.metadata = vector.metadata
        self.render_mode = vector.render_mode
        self.observation_space = vector.single_observation_space
        self._batched_space = batch_space(self.observation_space, 1)
        self.action_space = vector.single_action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Start:
        super().reset(seed=seed)
        obs, infos = self._vector.reset(seed=seed, options=options)
        return self._only(obs), self._info(infos)

    def step(self, action: Any) -> Step:
        actions: Any = create_empty_array(self.action_space, 1)
        actions = concatenate(self.action_space, [action], actions)
        obs, rewards, terminated, truncated, infos = self._vector.step(actions)
        return self._only(obs), float(rewards[0]), bool(terminated[0]), bool(truncated[0]), self._info(infos)

    def render(self) -> Any:
        """Return the picture of the only copy."""
        pictures = self._vector.render()
        return None if pictures is None else pictures[0]

    def close(self) -> None:
        self._vector.close()

    def _info(self, infos: Mapping[str, Any]) -> dict[str, Any]:
        """Return the info, with the action mask of a method if there is one."""
        method = getattr(self._vector.unwrapped, MASK_METHOD, None)
        return info_of(infos, 0, 1) | ({} if method is None else {ACTION_MASK: method()[0]})

    def _only(self, obs: Any) -> Any:
        """Return the only one of ``obs [1, ...]``, which the vector env may overwrite."""
        return deepcopy(next(iter(iterate(self._batched_space, obs))))


OWN_ARGUMENTS: Final = ("env_type", "num_envs", "batch_size", "seed", "num_threads", "max_episode_steps")
"""Arguments of ``envpool.make`` that other keys determine, or that can have only one value."""
LARGEST_SEED: Final = 2**31 - 1


def is_task(env: str) -> bool:
    """Return whether an env's name is a task of EnvPool."""
    return env.startswith(ENVPOOL)


def make_pool(config: EnvConfig, num_envs: int) -> EnvPoolEnv:
    """Make ``num_envs`` envs of a task; raises UsageError if EnvPool or the task is missing, or for an unknown key.

    The horizon of ``config`` truncates episodes after so many steps, if the task does not do so before.
    """
    try:
        tasks = _library().list_all_envs()
    except ImportError as error:
        raise UsageError(f"env {config.env} needs EnvPool: {error}", "pip install 'rlexp[envpool]'") from error
    task = config.env.removeprefix(ENVPOOL)
    if task not in tasks:
        close = difflib.get_close_matches(task, tasks, n=1)
        hint = f"did you mean {ENVPOOL}{close[0]}?" if close else "envpool.list_all_envs() has the names"
        raise UsageError(f"env {config.env}: EnvPool has no task {task}", hint)
    given = sorted(set(OWN_ARGUMENTS) & set(config.env_config))
    if given:
        message = f"env {config.env}: rlexp sets {given[0]} itself, so env_config cannot have it"
        raise UsageError(
            message, "horizon cuts episodes; num_envs_per_worker, seed and num_cpus_per_worker do the rest"
        )
    arguments = {**config.env_config, "num_threads": min(config.num_threads, num_envs)}
    if config.horizon is not None:
        limit = _library().make_spec(task).config.max_episode_steps
        arguments["max_episode_steps"] = min(config.horizon, limit)
    return EnvPoolEnv(task, arguments, num_envs)


def _library() -> Any:
    """Return EnvPool; its import takes a second, and raises ImportError if it is missing."""
    return importlib.import_module("envpool")


class EnvPoolEnv(VectorEnv[Array, Array, Array]):
    """M envs of a task; owns the pool, with its threads.

    A pool gets its seed when it is made, so each reset with a seed makes a new pool. Images ``[C, H, W]`` are shown as
    ``[H, W, C]``. Infos are left out.
    """

    def __init__(self, task: str, arguments: Mapping[str, Any], num_envs: int) -> None:
        """Raise UsageError for arguments that the task does not take."""
        self._task, self._arguments = task, dict(arguments)
        self._pool: Any = None
        self.num_envs = num_envs
        space, self.single_action_space = self._spaces()
        self._shows_channels_first = is_image(space)
        if is_image(space):
            low, high = np.moveaxis(space.low, 0, -1), np.moveaxis(space.high, 0, -1)
            space = Box(low, high, dtype=np.uint8)
        self.single_observation_space = space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.metadata = {"render_modes": ["rgb_array"], "autoreset_mode": AutoresetMode.NEXT_STEP}
        self.render_mode = arguments.get("render_mode")

    def reset(self, *, seed: Seeds = None, options: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        first = seed[0] if isinstance(seed, list) else seed
        if first is None and self._pool is None:
            first = int(self.np_random.integers(LARGEST_SEED))
        if first is not None:
            self.close_extras()
            self._pool = self._made(first % LARGEST_SEED)
        obs, _ = self._pool.reset()
        return self._observations(obs), {}

    def step(self, actions: Array) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        sent = np.ascontiguousarray(actions, self.single_action_space.dtype)
        obs, rewards, terminated, truncated, _ = self._pool.step(sent)
        return self._observations(obs), rewards, terminated, truncated, {}

    def render(self) -> Any:
        """Return a picture of each env."""
        return self._pool.render()

    def close_extras(self, **kwargs: Any) -> None:
        if self._pool is not None:
            self._pool.close()
        self._pool = None

    def _spaces(self) -> tuple[gym.Space[Any], gym.Space[Any]]:
        """Return EnvPool's observation and action space of an env."""
        with _without_advice():
            try:
                spec = _library().make_spec(self._task, num_envs=self.num_envs, **self._arguments)
            except (AssertionError, KeyError, TypeError, ValueError) as error:
                message = f"env {ENVPOOL}{self._task}: {type(error).__name__}: {error}"
                raise UsageError(message, "check env_config: its keys are the arguments of envpool.make") from error
            return spec.gymnasium_observation_space, spec.gymnasium_action_space

    def _made(self, seed: int) -> Any:
        with _without_advice():
            pool = _library().make(self._task, "gymnasium", num_envs=self.num_envs, seed=seed, **self._arguments)
            assert pool.observation_space is not None  # made when it is first asked for, with that advice
        return pool

    def _observations(self, obs: Any) -> Any:
        return np.ascontiguousarray(np.moveaxis(obs, 1, -1)) if self._shows_channels_first else obs


@contextmanager
def _without_advice() -> Iterator[None]:
    """Silence Gymnasium's warning about the precision of EnvPool's bounds."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*precision lowered by casting", UserWarning)
        yield
