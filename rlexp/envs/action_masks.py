"""Action masks: where an env says which actions it allows now, and how the masks travel.

An env gives its mask in its Dict observation under ``action_mask``, in its ``info`` under the same name (Gymnasium's
habit), or by its method ``action_masks`` (sb3-contrib's). From here on, the mask is the last part of the observation's
own row. So fragments, n-step rows, every storage of replay, boards and filters carry both, as one array. The networks
divide a row by ``rlexp.models.network_config``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Final

import gymnasium as gym
import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box, Dict
from gymnasium.spaces.utils import flatten, flatten_space
from gymnasium.vector import SyncVectorEnv
from gymnasium.vector.utils import batch_space, iterate

from rlexp.envs.checked_env import CheckedVectorEnv, Wrapper, env_error
from rlexp.envs.native_vectors import ACTION_MASK, MASK_METHOD, RESTING
from rlexp.envs.parallel_envs import AgentRows
from rlexp.envs.registry import EnvConfig, MaskSource, Vector
from rlexp.envs.spaces import keeps_its_shape, value_counts
from rlexp.errors import EnvError, UsageError
from rlexp.sample_batch import Array

PLACES: Final[Mapping[MaskSource, str]] = {
    "observation": f"observation[{ACTION_MASK!r}]",
    "info": f"info[{ACTION_MASK!r}]",
    "method": f"{MASK_METHOD}()",
}
_HOW_TO_MASK: Final = "return an array with 1 for each allowed action and 0 for each other one"
_HOW_TO_END: Final = "allow at least one action, or let step return terminated: true"


class MaskedSpace(Box):
    """Rows ``[N + A]``: an observation as agents see it, flat, and then the mask of A actions."""

    def __init__(self, own: Space[Any], source: MaskSource, choices: tuple[int, ...]) -> None:
        """Initialise. ``own`` is the space of the env's observations, without the mask.

        The mask has a number for each value of each of the ``choices``: of one, for a Discrete action.
        """
        self.own, self.source, self.choices = own, source, choices
        seen = own if keeps_its_shape(own) else flatten_space(own)
        assert isinstance(seen, Box)
        self.observation = seen
        """The space of what agents see: a vector or an image."""
        self.num_actions = sum(choices)
        low, high = (
            np.concatenate([bound.reshape(-1), np.full(self.num_actions, limit, seen.dtype)])
            for bound, limit in ((seen.low, 0), (seen.high, 1))
        )
        super().__init__(low, high, dtype=seen.dtype.type)

    def __repr__(self) -> str:
        return f"{self.observation} with a mask of {self.num_actions} actions"

    def rows(self, observations: Any, allowed: Array) -> Array:
        """Return new rows ``[B, N + A]`` of observations, as a vector env returns them, and masks ``[B, A]``."""
        count, width = len(allowed), self.shape[0] - self.num_actions
        rows = np.empty((count, *self.shape), self.dtype)
        if isinstance(self.own, Box):
            rows[:, :width] = np.reshape(observations, (count, width))
        else:
            for row, each in zip(rows, iterate(batch_space(self.own, count), observations), strict=True):
                row[:width] = flatten(self.own, each)
        rows[:, width:] = allowed
        return rows

    def allowed(self, rows: Array) -> Array:
        """Return whether each action of ``rows [B, N + A]`` is allowed ``[B, A]``."""
        return np.asarray(rows[:, -self.num_actions :] != 0)

    def with_valid_masks(self, rows: Array) -> Array:
        """Return rows ``[B, N + A]`` with masks of 0 and 1; a choice of which no value is allowed allows all."""
        masks = np.split(np.rint(rows[:, -self.num_actions :]), list(accumulate(self.choices))[:-1], axis=1)
        valid = [np.where(mask.any(axis=1, keepdims=True), mask, 1) for mask in masks]
        return np.concatenate([rows[:, : -self.num_actions], *valid], axis=1, dtype=rows.dtype, casting="unsafe")

    def parts(self, rows: Array) -> tuple[Array, Array]:
        """Return the observations ``[B, ...]`` of ``rows [B, N + A]`` as networks see them, and masks ``[B, A]``."""
        observations = rows[:, : -self.num_actions]
        return observations.reshape(len(rows), *self.observation.shape), self.allowed(rows)


def seen_space(space: Space[Any]) -> Space[Any]:
    """Return the part of an agent's observation space that its networks see: all but an action mask."""
    return space.observation if isinstance(space, MaskedSpace) else space


def standardised_shape(space: Space[Any]) -> tuple[int, ...]:
    """Return the shape of the part of an agent's observations that filters standardise: all but an action mask."""
    shape = space.shape or ()
    return (shape[0] - space.num_actions,) if isinstance(space, MaskedSpace) else shape


def has_mask(space: Space[Any]) -> bool:
    """Return whether observations have a mask beside something else."""
    return isinstance(space, Dict) and ACTION_MASK in space.spaces and len(space.spaces) > 1


def without_mask_in(observation: Any) -> Any:
    """Return an observation, a batch of them, or a space that ``has_mask``, without the mask."""
    others = {key: part for key, part in observation.items() if key != ACTION_MASK}
    return next(iter(others.values())) if len(others) == 1 else others


def like(config: EnvConfig, observation_space: Space[Any]) -> EnvConfig:
    """Return the config of envs whose masks are where ``observation_space``, an agent's, has them from.

    So each env need not be reset to look for them.
    """
    found = observation_space.source if isinstance(observation_space, MaskedSpace) else None
    return replace(config, action_mask=found)


@dataclass(frozen=True)
class MaskReader:
    """Reads the masks of an env, and checks them."""

    env: str
    """Its name in an experiment, for errors."""
    source: MaskSource
    choices: tuple[int, ...]
    """The values of each number of an action, as in a MaskedSpace."""

    def __str__(self) -> str:
        return f"{sum(self.choices)} numbers, from {PLACES[self.source]}"

    def checked(self, given: Any, has_one: Array, ended: Array) -> Array:
        """Return masks ``[M, A]`` of M envs as a new array of bool.

        Envs that do not ``has_one [M]`` must have ``ended [M]``: then nothing is chosen or bootstrapped from. Where an
        episode has ended without an allowed action, all are allowed. Raises EnvError.
        """
        num_actions = sum(self.choices)
        masks = self._as_array(given, has_one)
        if masks.shape != (len(has_one), num_actions):
            shape = masks.shape[1:] if masks.ndim else "()"
            raise self._error(f"has the shape {shape}, but there are {num_actions} actions", _HOW_TO_MASK)
        if masks.dtype != bool and (masks.dtype.kind not in "biuf" or not ((masks == 0) | (masks == 1)).all()):
            raise self._error(f"has other values than 0 and 1 (dtype {masks.dtype})", _HOW_TO_MASK)
        allowed: Array = masks != 0
        starts = list(accumulate(self.choices[:-1], initial=0))
        is_open = np.logical_or.reduceat(allowed, starts, axis=1).all(axis=1) & has_one
        if not is_open.all():
            if not (has_one | ended).all():
                raise self._error("is missing, but the episode goes on", "give it with every observation")
            if not (is_open | ended).all():
                raise self._error("allows no action, but the episode goes on", _HOW_TO_END)
            allowed[~is_open] = True
        return allowed

    def without_mask(self, space: Space[Any]) -> Space[Any]:
        """Return an env's observation space without the mask: the other part of a Dict, or a Dict of the others."""
        if self.source != "observation":
            return space
        others = without_mask_in(space)
        return Dict(others) if isinstance(others, dict) else others

    def space(self, observation_space: Space[Any]) -> MaskedSpace:
        """Return the space of an agent's observations of an env with ``observation_space``."""
        return MaskedSpace(self.without_mask(observation_space), self.source, self.choices)

    def of_env(self, env: gym.Env[Any, Any], obs: Any, info: Mapping[str, Any]) -> Array:
        """Return the mask ``[A]`` of one env whose episode goes on; raises EnvError."""
        if self.source == "observation":
            given, has_one = obs[ACTION_MASK], True
        elif self.source == "info":
            has_one = ACTION_MASK in info
            given = info[ACTION_MASK] if has_one else np.zeros(sum(self.choices), bool)
        else:
            given, has_one = _called(self.env, env.get_wrapper_attr(MASK_METHOD)), True
        mask: Array = self.checked([given], np.array([has_one]), np.zeros(1, bool))[0]
        return mask

    def _as_array(self, given: Any, has_one: Array) -> Array:
        """Return masks as one array; missing ones among objects become 0."""
        none = np.zeros(sum(self.choices), bool)
        try:
            if isinstance(given, np.ndarray) and given.dtype == object:
                given = [np.asarray(mask) if has else none for mask, has in zip(given, has_one, strict=True)]
            return np.asarray(given)
        except ValueError:  # arrays of different lengths
            raise self._error("is not an array of numbers", _HOW_TO_MASK) from None

    def _error(self, what: str, hint: str) -> EnvError:
        return EnvError(f"env {self.env}: {PLACES[self.source]} {what}", hint)


def _called(name: str, method: Callable[[], Any]) -> Any:
    """Return what a method of env ``name`` returns; its exceptions become EnvErrors with the line of the env."""
    try:
        return method()
    except BaseException as error:
        raise env_error(name, error) from error


def random_actions(space: Space[Any], choices: tuple[int, ...], allowed: Array) -> Array:
    """Return an action of ``space`` for each row of ``allowed [B, A]``, uniformly random among the allowed ones."""
    chances = np.where(allowed, space.np_random.random(allowed.shape), -1.0)
    parts = np.split(chances, list(accumulate(choices))[:-1], axis=1)
    numbers = np.stack([part.argmax(axis=1) for part in parts], axis=1)
    first = np.reshape(getattr(space, "start", getattr(space, "low", 0)), -1)
    actions: Array = (numbers + first).reshape(len(allowed), *(space.shape or ())).astype(space.dtype)
    return actions


def mask_reader(
    config: EnvConfig,
    observation_space: Space[Any],
    action_space: Space[Any],
    has_method: bool,
    reset_info: Callable[[], Mapping[str, Any]],
) -> MaskReader | None:
    """Return the reader of an env's masks; None if it has none, or if they are not wanted.

    ``reset_info`` resets the env and returns its info; it is called only if no other place has a mask. Raises
    UsageError for masks of continuous actions.
    """
    source: MaskSource | None
    if config.action_mask != "auto":
        source = config.action_mask
    elif has_mask(observation_space):
        source = "observation"
    elif has_method:
        source = "method"
    else:
        source = "info" if ACTION_MASK in reset_info() else None
    if source is None:
        return None
    choices = tuple(value_counts(action_space))
    if not choices:
        raise UsageError(
            f"env {config.env} masks actions by {PLACES[source]}, but its actions {action_space} are continuous",
            "write action_mask: null, which ignores the masks",
        )
    return MaskReader(config.env, source, choices)


def mask_reader_of_env(env: gym.Env[Any, Any], config: EnvConfig) -> MaskReader | None:
    """Return the reader of the masks of one env, which may be reset; raises as ``mask_reader`` does."""
    return mask_reader(
        config, env.observation_space, env.action_space, env.has_wrapper_attr(MASK_METHOD), lambda: env.reset(seed=0)[1]
    )


def with_masks(vector: Vector, config: EnvConfig) -> Vector:
    """Return ``vector`` with masks behind its observations if it gives any; else ``vector`` itself.

    Envs of Gymnasium that step together natively, Atari's and EnvPool's have none, so they are not reset for this.
    """
    may_mask = isinstance(vector, SyncVectorEnv | CheckedVectorEnv) or isinstance(vector.unwrapped, AgentRows)
    if config.action_mask is None or not may_mask:
        return vector
    if isinstance(vector, SyncVectorEnv):
        has_method = vector.envs[0].has_wrapper_attr(MASK_METHOD)
    else:
        has_method = hasattr(vector.unwrapped, MASK_METHOD)
    spaces = vector.single_observation_space, vector.single_action_space
    reader = mask_reader(config, *spaces, has_method, lambda: vector.reset(seed=0)[1])
    return vector if reader is None else MaskedObservations(vector, reader)


class MaskedObservations(Wrapper):
    """Shows observations followed by their masks: rows of a MaskedSpace."""

    def __init__(self, vector: Vector, reader: MaskReader) -> None:
        super().__init__(vector)
        self._name, self._source = reader.env, reader.source
        self._space = reader.space(vector.single_observation_space)
        self.single_observation_space = self._space
        self.observation_space = batch_space(self._space, self.num_envs)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        obs, infos = self.env.reset(seed=seed, options=options)
        return self._rows(obs, infos, np.zeros(self.num_envs, bool)), infos

    def step(self, actions: Any) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        obs, rewards, terminated, truncated, infos = self.env.step(actions)
        return self._rows(obs, infos, terminated), rewards, terminated, truncated, infos

    def _rows(self, obs: Any, infos: Mapping[str, Any], terminated: Array) -> Array:
        has_one = np.ones(self.num_envs, bool)
        if self._source == "observation":
            given, obs = obs[ACTION_MASK], without_mask_in(obs)
        elif self._source == "info":
            none = np.zeros((self.num_envs, self._space.num_actions), bool)
            given = infos.get(ACTION_MASK, none)
            has_one = infos.get(f"_{ACTION_MASK}", has_one & (ACTION_MASK in infos))
        elif isinstance(self.env, SyncVectorEnv):  # as in sb3-contrib, not called after an episode has terminated
            has_one, no_mask = ~terminated, np.zeros(self._space.num_actions, bool)
            asked = zip(self.env.envs, has_one, strict=True)
            given = [_called(self._name, env.get_wrapper_attr(MASK_METHOD)) if has else no_mask for env, has in asked]
        else:
            given = _called(self._name, getattr(self.unwrapped, MASK_METHOD))
        reader = MaskReader(self._name, self._source, self._space.choices)  # no attribute: snapshots hold plain data
        ended = terminated | infos.get(RESTING, False)
        return self._space.rows(obs, reader.checked(given, has_one, ended))
