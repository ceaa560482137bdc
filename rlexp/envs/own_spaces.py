"""Translates an env's own observations to what its policy was trained on, and the policy's actions to the env's.

Training uses wrappers around the env, one after another. Here the same is done to observations and actions from
anywhere. The env itself must do what needs earlier steps, such as Atari's frame stack: see ``playable_config``.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box, Dict, Discrete, Tuple
from gymnasium.spaces.utils import flatten, flatten_space
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space, iterate

from rlexp.envs.action_masks import PLACES, MaskedSpace, MaskReader, without_mask_in
from rlexp.envs.make import WithoutSteps, make_env, prepared, wrappers_of
from rlexp.envs.native_vectors import ACTION_MASK
from rlexp.envs.registry import EnvConfig
from rlexp.envs.spaces import SHAPES_KEPT, BoundedActions, DiscreteActions, bound_actions
from rlexp.envs.wrappers import ScaledFrames
from rlexp.errors import EnvError, UsageError
from rlexp.sample_batch import Array


def playable_config(config: EnvConfig) -> EnvConfig:
    """Return the config of an env with its own observations and actions.

    Atari under ``deepmind`` is the exception: its observations need earlier steps, so the env prepares them itself.
    """
    return config if config.is_deepmind_atari else replace(config, frames=None, discretize_actions=None)


class _VectorWithoutSteps(VectorEnv[Any, Any, Any]):
    """The same for wrappers of vector envs."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        self.num_envs = 1
        self.single_action_space = env.action_space
        self.action_space = batch_space(env.action_space, self.num_envs)


@dataclass(frozen=True)
class OwnSpaces:
    """The translation of one env's observations and actions; it has no env, so it can be pickled."""

    env: str
    observation_space: Space[Any]
    """The observation space of ``playable_config``'s env; ``action_space`` is its action space."""
    action_space: Space[Any]
    needs_make_env: bool
    """Whether only that env gives such observations, and not the env of ``gymnasium.make``."""
    scaled: ScaledFrames | None
    """Scaling of its images, if there is one."""
    numbered: DiscreteActions | None
    """The actions that the policy's numbers mean, if it chooses numbers."""
    bounded: BoundedActions | None
    """How continuous actions are brought within its bounds, if they are."""
    masked: MaskedSpace | None = None
    """What the policy sees, if it obeys action masks."""

    @staticmethod
    def of(config: EnvConfig, seen: Space[Any]) -> OwnSpaces:
        """Make the env and read its spaces; raises as ``make_env`` does. The policy gets observations of ``seen``."""
        with closing(make_env(playable_config(config))) as env:
            own = WithoutSteps(env.observation_space, env.action_space)
        wrappers = [] if config.is_deepmind_atari else list(wrappers_of(prepared(own, config)))
        vector = bound_actions(_VectorWithoutSteps(wrappers[0]), config.continuous_actions) if wrappers else None
        return OwnSpaces(
            env=config.env,
            observation_space=own.observation_space,
            action_space=own.action_space,
            needs_make_env=config.is_deepmind_atari or config.has_user_parts,
            scaled=next((each for each in wrappers if isinstance(each, ScaledFrames)), None),
            numbered=next((each for each in wrappers if isinstance(each, DiscreteActions)), None),
            bounded=vector if isinstance(vector, BoundedActions) else None,
            masked=seen if isinstance(seen, MaskedSpace) else None,
        )

    def prepared(self, observation: Any, action_mask: Any = None) -> Array:
        """Return one observation of the env as the policy sees it, ``[1, ...]``.

        ``action_mask [A]`` may be in the observation, if that is a Dict. Raises UsageError, with what was expected and
        given, if the observation is not in ``observation_space``, or a mask is missing.
        """
        observation, action_mask = self._divided(observation, action_mask)
        prepared = self._prepared(observation)
        return self._with_masks(prepared, None if action_mask is None else [action_mask])

    def _divided(self, observations: Any, masks: Any) -> tuple[Any, Any]:
        """Return observations without their masks, and the masks: given ones, or those in the observations."""
        if self.masked is None or self.masked.source != "observation":
            return observations, masks
        if isinstance(observations, Mapping) and ACTION_MASK in observations:
            own = observations[ACTION_MASK]
            return without_mask_in(observations), own if masks is None else masks
        return observations, masks

    def _with_masks(self, prepared: Array, masks: Any) -> Array:
        """Return observations as the policy gets them: rows with their masks ``[B, A]``, if it obeys masks."""
        space = self.masked
        if space is None:
            if masks is None:
                return prepared
            raise UsageError("an action mask was given, but the policy was trained without", "leave it out")
        if masks is None:
            hint = f"the env gives it by {PLACES[space.source]}: act(observation, action_mask=...)"
            raise UsageError(f"the mask of the {space.num_actions} actions is missing", hint)
        reader, count = MaskReader(self.env, space.source, space.choices), len(prepared)
        try:
            allowed = reader.checked(masks, np.ones(count, bool), np.zeros(count, bool))
        except EnvError as error:
            raise UsageError(error.message, "give an array with 1 for each allowed action, and 0 for others") from error
        flat = prepared.reshape(count, -1)
        return np.concatenate([flat, allowed.astype(flat.dtype)], axis=1)

    def _prepared(self, observation: Any) -> Array:
        space = self._space
        if isinstance(space, Box):
            return self._flat_boxes(self._checked_box(space, observation, space.shape)[None])
        return np.asarray(flatten(space, self._checked(space, observation, "")))[None]

    @property
    def _space(self) -> Space[Any]:
        """The space of the env's observations, without a mask."""
        space = self.masked
        if space is None:
            return self.observation_space
        return MaskReader(self.env, space.source, space.choices).without_mask(self.observation_space)

    def prepared_batch(self, observations: Any, action_masks: Any = None) -> Array:
        """Return observations ``[B, ...]`` as the policy sees them; Dict and Tuple as vector envs return them.

        ``action_masks [B, A]`` may be in the observations, as in ``prepared``.
        """
        if isinstance(observations, list) and action_masks is None and self._is_masked_list(observations):
            return np.concatenate([self.prepared(observation) for observation in observations])
        observations, action_masks = self._divided(observations, action_masks)
        return self._with_masks(self._prepared_batch(observations), action_masks)

    def _is_masked_list(self, observations: list[Any]) -> bool:
        """Return whether each observation of a list has its mask."""
        return self.masked is not None and self.masked.source == "observation" and bool(observations)

    def _prepared_batch(self, observations: Any) -> Array:
        space = self._space
        if isinstance(space, Box):
            given = np.asarray(observations)
            shape = (len(given), *space.shape) if given.ndim else (1, *space.shape)
            return self._flat_boxes(self._checked_box(space, given, shape))
        rows = [self._prepared(observation)[0] for observation in self._rows(observations)]
        width = flatten_space(space).shape or ()
        return np.stack(rows) if rows else np.zeros((0, *width), np.float32)

    def own_actions(self, actions: Array) -> Array:
        """Return the actions ``[B, ...]`` for each env's ``step``, for actions ``[B, ...]`` of the policy."""
        if self.numbered is not None:
            actions = self.numbered.action(actions)
        return actions if self.bounded is None else self.bounded.actions(actions)

    def _rows(self, observations: Any) -> list[Any]:
        """Return the observations of a batch one by one."""
        if isinstance(observations, list):
            return observations
        try:
            return list(iterate(batch_space(self._space, _length(observations)), observations))
        except (TypeError, ValueError, KeyError, AttributeError, IndexError) as error:
            raise UsageError(
                f"the observations are not a batch of {self.observation_space}: {error}",
                "give a list of observations, or what a Gymnasium vector env returns",
            ) from error

    def _flat_boxes(self, boxes: Array) -> Array:
        """Return scaled Boxes ``[B, ...]``, as vectors if they are neither vectors nor images."""
        if self.scaled is not None and len(boxes):
            boxes = np.stack([self.scaled.observation(image) for image in boxes])
        return boxes if boxes.ndim - 1 in SHAPES_KEPT else boxes.reshape(len(boxes), -1)

    def _checked(self, space: Space[Any], value: Any, where: str) -> Any:
        """Return a part of an observation in the dtypes of its space."""
        if isinstance(space, Box):
            return self._checked_box(space, value, space.shape, where)
        if isinstance(space, Dict):
            if not isinstance(value, Mapping) or set(value) != set(space.keys()):
                given = sorted(map(str, value)) if isinstance(value, Mapping) else _kind(value)
                raise self._unexpected(where, f"a dict with the keys {sorted(space.keys())}", str(given))
            return {key: self._checked(part, value[key], f"{where}[{key!r}]") for key, part in space.items()}
        if isinstance(space, Tuple):
            if not isinstance(value, tuple | list) or len(value) != len(space.spaces):
                raise self._unexpected(where, f"a tuple of {len(space.spaces)} parts", _kind(value))
            parts = enumerate(zip(space.spaces, value, strict=True))
            return tuple(self._checked(part, item, f"{where}[{index}]") for index, (part, item) in parts)
        if isinstance(space, Discrete) and isinstance(value, np.ndarray) and value.ndim == 0:
            value = value[()]
        if not space.contains(value):
            raise self._unexpected(where, str(space), _kind(value))
        return value

    def _checked_box(self, space: Box, value: Any, shape: tuple[int, ...], where: str = "") -> Array:
        """Return an array of the space's dtype; ``shape`` is one observation's, or a batch's."""
        try:
            given = np.asarray(value)
        except ValueError:  # lists of different lengths
            raise self._unexpected(where, f"shape {shape} and dtype {space.dtype}", _kind(value)) from None
        if given.shape != shape or not (
            given.dtype == space.dtype or np.can_cast(given.dtype, space.dtype, "same_kind")
        ):
            raise self._unexpected(where, f"shape {shape} and dtype {space.dtype}", _kind(given))
        if given.dtype != space.dtype:
            with np.errstate(over="ignore"):  # values that become infinite are refused below
                given = given.astype(space.dtype)
        if given.dtype.kind == "f" and not np.isfinite(given).all():
            worst = given[~np.isfinite(given)].flat[0]
            raise self._unexpected(where, f"finite numbers of dtype {space.dtype}", f"{worst:g} among them")
        return given

    def _unexpected(self, where: str, expected: str, given: str) -> UsageError:
        hint = f"observations of env {self.env} are {self.observation_space}"
        if self.needs_make_env:
            hint = (
                "this policy was trained on observations that wrappers prepare: play the env that policy.make_env() "
                "returns, which has them"
            )
        return UsageError(f"observation{where}: expected {expected}, given {given}", hint)


def _length(batch: Any) -> int:
    """Return B of a vector env's result: the length of its first array."""
    while isinstance(batch, Mapping | tuple):
        batch = next(iter(batch.values() if isinstance(batch, Mapping) else batch))
    return len(batch)


def _kind(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"shape {value.shape} and dtype {value.dtype}"
    text = repr(value)
    return f"{type(value).__name__} {text}" if len(text) <= 40 else type(value).__name__
