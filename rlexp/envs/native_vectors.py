"""Vector envs that step several envs by themselves: Gymnasium's, Atari's, EnvPool's, and the user's own.

Atari games are played in ale-py's vectorised env if that computes the same as the wrappers of :mod:`rlexp.envs.atari`:
emulating, skipping, taking the maximum of two frames, making them grey and small, and starting with no-ops, in C++. In
ale-py, the end of a life has another meaning (its ``episodic_life`` starts a new game). So lives, scores and stacks of
frames are computed here, for all games at once. SingleEnv turns a vector env of one copy into an env, for wrappers,
horizons, checks and videos.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Final

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from numpy.typing import NDArray

from rlexp.envs.atari import GAME_OVER, GAME_SCORE, GAME_STEPS, MAX_NOOPS, AtariRules, atari_rules
from rlexp.envs.checked_env import CheckedVectorEnv
from rlexp.envs.envpool import is_task, make_pool
from rlexp.envs.registry import EnvConfig, FrameConfig, find_class, find_spec
from rlexp.envs.wrappers import STACKED_FRAMES, is_image

if TYPE_CHECKING:
    from ale_py.vector_env import AtariVectorEnv

Array = NDArray[Any]
ACTION_MASK: Final = "action_mask"
"""The key of an action mask in infos, and in observations of the kind Dict."""
MASK_METHOD: Final = "action_masks"
"""The method that returns action masks, as in sb3-contrib."""
RESTING: Final = "resting"
"""The key in every infos of an AgentRows: whether an agent is not in its env now, so its next step is none ``[M]``."""
AGENT_RETURNS: Final = "agent_returns"
"""The key, likewise, of the returns of the A agents of each copy ``[C, A]``, NaN for those not in its episode yet."""
Seeds = int | list[int | None] | None

ENTRY_POINT = "ale_py.env:AtariEnv"
SAME_ARGUMENTS = frozenset({"game", "repeat_action_probability", "full_action_space"})
"""Arguments with the same meaning for ale-py's env and its vectorised one."""
OWN_ARGUMENTS = frozenset({"obs_type", "frameskip", "max_num_frames_per_episode"})
"""Arguments that are part of the rules; with any other one, only the env itself can play."""
ENDLESS = 2**31 - 1
"""Frames after which the vectorised env would truncate a game: the rules do it, at the end of a step."""
SEED_MASK = 2**31 - 1
"""Seeds of the vectorised env have no sign."""
FRAME_BITS = 8
"""Bits of a frame in a pixel with four frames."""
ALL_FRAMES = 0x01010101
"""Times a byte, a pixel whose four frames all have that byte."""


def can_be_native(spec: EnvSpec, rules: AtariRules) -> bool:
    """Return whether ale-py's vectorised env plays the game of ``spec`` by ``rules``."""
    known = rules.env_arguments.keys() <= SAME_ARGUMENTS | OWN_ARGUMENTS
    return spec.entry_point == ENTRY_POINT and rules.skip is not None and known


def make_native_games(rules: AtariRules, frames: FrameConfig, num_envs: int, num_threads: int) -> NativeGames:
    """Make ``num_envs`` games that ``num_threads`` threads step together; only if ``can_be_native``."""
    from ale_py import Action
    from ale_py.vector_env import AtariVectorEnv

    assert rules.skip is not None
    native = AtariVectorEnv(
        num_envs=num_envs,
        num_threads=num_threads,
        **{name: value for name, value in rules.env_arguments.items() if name in SAME_ARGUMENTS},
        frameskip=rules.skip,
        max_num_frames_per_episode=ENDLESS,
        img_height=frames.atari_dim,
        img_width=frames.atari_dim,
        stack_num=1,
        noop_max=MAX_NOOPS + 1,
        reward_clipping=False,
    )
    actions = list(native.ale.get_action_set())
    first_action = actions.index(Action.FIRE) if Action.FIRE in actions else actions.index(Action.NOOP)
    return NativeGames(native, frames, rules.max_steps, first_action)


class NativeGames(VectorEnv[Array, Array, Array]):
    """M Atari games with an episode for each life; owns the vectorised env and its threads, which ``close`` ends.

    The step after an episode's end begins the next one (``AutoresetMode.NEXT_STEP``): with a new game if
    that was over, else with one step of ``first_action`` in the same game.
    """

    def __init__(self, native: AtariVectorEnv, frames: FrameConfig, max_steps: int | None, first_action: int) -> None:
        self._native = native
        self._max_steps = ENDLESS if max_steps is None else max_steps
        self._first_action = first_action
        self._stacked = frames.framestack
        channels, dim = STACKED_FRAMES if frames.framestack else 1, frames.atari_dim
        self.num_envs = native.num_envs
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.single_observation_space = Box(0, 255, (dim, dim, channels), np.uint8)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.single_action_space, self.action_space = native.single_action_space, native.action_space
        self._ended, self._over, self._cut = (np.zeros(self.num_envs, bool) for _ in range(3))
        self._scores, self._steps = np.zeros(self.num_envs), np.zeros(self.num_envs, np.int64)
        self._lives = np.zeros(self.num_envs, np.int32)
        self._stacks = np.zeros((self.num_envs, dim, dim), np.uint32)

    def reset(self, *, seed: Seeds = None, options: Mapping[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        frames, infos = self._native.reset(seed=_ale_seeds(seed, self.num_envs))
        for state in (self._ended, self._over, self._cut, self._scores, self._steps):
            state.fill(0)
        self._lives = infos["lives"].copy()
        self._push(frames, begins=np.ones(self.num_envs, bool))
        return self._observations(frames), self._infos(np.zeros(self.num_envs, bool))

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        begins, new_games = self._ended, self._over | self._cut
        sent = np.where(begins, self._first_action, actions)
        frames, rewards, over, _, infos = self._native.step(sent)
        self._scores = np.where(new_games, 0.0, self._scores + rewards)
        self._steps = np.where(new_games, 0, self._steps + 1)
        over, cut = over & ~new_games, self._steps >= self._max_steps
        lives = infos["lives"]
        # Some games show 0 lives for a moment before they are over.
        lost_a_life = (lives > 0) & (lives < self._lives)
        report = self._infos(over | cut)
        # Games that were truncated, or ended with their first step: the vectorised env would begin them a step later.
        late = self._cut | (begins & (over | cut))
        if late.any():
            frames, infos = self._native.reset(options={"reset_mask": late})
            lives = infos["lives"]
            self._scores[late], self._steps[late] = 0.0, 0
        terminated, truncated = (over | lost_a_life) & ~begins, cut & ~begins
        self._lives, self._ended = lives.copy(), terminated | truncated
        self._over, self._cut = over & ~late, cut & ~over & ~late
        self._push(frames, begins)
        return self._observations(frames), np.where(begins, 0.0, rewards), terminated, truncated, report

    def close_extras(self, **kwargs: Any) -> None:
        del self._native.ale  # this also ends its threads

    def _push(self, frames: Array, begins: Array) -> None:
        """Append ``frames [M, 1, dim, dim]`` to the last three, or repeat them four times if an episode ``begins [M]``.

        A pixel's four frames are the bytes of one number, the oldest is the lowest: a shift of bits moves them.
        """
        if not self._stacked:
            return
        stacks = self._stacks >> np.uint32(FRAME_BITS)
        _bytes(stacks)[..., -1] = frames[:, 0]
        stacks[begins] = frames[begins, 0] * np.uint32(ALL_FRAMES)
        self._stacks = stacks

    def _observations(self, frames: Array) -> Array:
        return _bytes(self._stacks) if self._stacked else frames[:, 0, :, :, None].copy()

    def _infos(self, over: Array) -> dict[str, Any]:
        return {
            GAME_OVER: over,
            GAME_SCORE: np.where(over, self._scores, 0.0),
            GAME_STEPS: np.where(over, self._steps, 0),
        }


def _bytes(stacks: Array) -> Array:
    """Return ``stacks [M, dim, dim]`` of 32 bits as bytes ``[M, dim, dim, 4]``."""
    return stacks.view(np.uint8).reshape(*stacks.shape, STACKED_FRAMES)


def _ale_seeds(seed: Seeds, num_envs: int) -> Array | None:
    """Return the seeds ``[M]`` of the emulators in ale-py's own envs, for the seeds of a vector env."""
    if seed is None:
        return None
    seeds = [seed + index for index in range(num_envs)] if isinstance(seed, int) else seed
    return np.array([np.random.SeedSequence(each).generate_state(2)[1] & SEED_MASK for each in seeds], np.int64)


Vector = VectorEnv[Any, Any, Any]

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
    if not is_image(space) or space.shape is None:
        return False
    return frames.makes_grey or space.shape[:2] != frames.size_of(space.shape)


Step = tuple[Any, Any, bool, bool, dict[str, Any]]
Start = tuple[Any, dict[str, Any]]


class SingleEnv(gym.Env[Any, Any]):
    """Plays a vector env with ``num_envs`` 1; owns it. Of its infos only an action mask is passed on."""

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
        """Return the action mask, which may be in the infos or the result of a method."""
        method = getattr(self._vector.unwrapped, MASK_METHOD, None)
        masks = infos.get(ACTION_MASK) if method is None else method()
        return {} if masks is None else {ACTION_MASK: masks[0]}

    def _only(self, obs: Any) -> Any:
        """Return the only one of ``obs [1, ...]``, which the vector env may overwrite."""
        return deepcopy(next(iter(iterate(self._batched_space, obs))))
