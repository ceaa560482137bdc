"""Makes envs and vector envs by name: an id, or the user's own ``package.module:Class``."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium as gym
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.wrappers import TimeLimit

from rlexp.config.keys.env_ids import is_atari, package_of, pettingzoo_name
from rlexp.envs.action_masks import with_masks
from rlexp.envs.atari import FRAME_SKIP, atari_rules, deepmind_env, steps_per_second
from rlexp.envs.checked_env import HOW_TO_RENDER, CheckedEnv, env_error
from rlexp.envs.native_vectors import (
    EPISODE_LIMIT,
    EnvsInTurn,
    SingleEnv,
    changes_images,
    episode_limit,
    is_task,
    make_pool,
    native_vector_env,
    registered_vector,
    vector_of_class,
    without_advice_on_versions,
)
from rlexp.envs.parallel_envs import AgentRows, OneAgent, TranslatedRows, agents_per_env
from rlexp.envs.registry import Env, EnvConfig, Vector, find_class, find_parallel_env, find_spec, named_object
from rlexp.envs.spaces import DiscreteActions, bound_actions, check_layout, check_spaces, flatten_observations
from rlexp.envs.wrappers import ScaledFrames, preprocessed, wrapped
from rlexp.errors import EnvError, RlexpError, UsageError
from rlexp.sample_batch import Array
from rlexp.user_code.classes import prepare_imports

PICTURE_RANK = 3
PACKAGE_THAT_RENDERS = "rlexp[video]"
"""The package that brings pygame, with which Gymnasium's own envs draw their pictures."""
QUIET_PYGAME = {"PYGAME_HIDE_SUPPORT_PROMPT": "1", "SDL_VIDEODRIVER": "dummy", "SDL_AUDIODRIVER": "dummy"}
"""Variables that keep pygame from printing a greeting among a command's results, and from looking for a screen."""
MUJOCO_WITHOUT_SCREEN = {"MUJOCO_GL": "egl"}
HOW_MUJOCO_RENDERS = (
    "without a screen MuJoCo renders with EGL or OSMesa: install libegl1, or install libosmesa6 and set the environment"
    " variable MUJOCO_GL=osmesa"
)


def make_env(config: EnvConfig, render_mode: str | None = None) -> Env:
    """Make one env; raises UsageError with a suggestion if it does not exist or cannot be made.

    It has the user's own wrappers and prepared images and actions, as ``config`` says.
    """
    kwargs = config.arguments() | ({"render_mode": render_mode} if render_mode else {})
    with _making(config):
        if config.frames is not None and config.is_deepmind_atari:
            rules = atari_rules(find_spec(config.env).kwargs, kwargs, config.horizon)
            game = _registered_env(config, None, rules.env_arguments)
            return deepmind_env(game, config.frames, rules, partial(wrapped, config=config))
        env = wrapped(_cut_env(config, kwargs), config)
        return prepared(preprocessed(env, config), config)


def make_own_env(config: EnvConfig, render_mode: str | None = None) -> Env:
    """Make one env to play in: as ``make_env`` does, or an env of several agents as its class makes it."""
    with _making(config):
        rows = _rows_of_agents(config, 1, {"render_mode": render_mode} if render_mode else {})
    own: Env | None = None if rows is None else rows.copies[0]
    return make_env(config, render_mode) if own is None else own


def _rows_of_agents(config: EnvConfig, num_envs: int, more: Mapping[str, Any]) -> AgentRows | None:
    """Return the agents of an env of several as rows, made with ``more`` arguments; None for an env of one agent."""
    make = find_parallel_env(config.env)
    if make is None:
        return None
    if config.has_user_parts:
        raise UsageError(
            f"env {config.env} has several agents, but env_wrappers and custom_preprocessor change envs of one agent",
            "wrap it in a class or a function of your own: env: package.module:parallel_env",
        )
    return AgentRows(lambda: make(**config.arguments(), **more), config.env, num_envs, config.horizon)


def _translated(rows: AgentRows, config: EnvConfig) -> Vector:
    """Return the rows with prepared images and actions, if they have such."""
    own = WithoutSteps(rows.single_observation_space, rows.single_action_space)
    wrappers = list(wrappers_of(prepared(own, config)))[:-1]
    return TranslatedRows(rows, wrappers[::-1]) if wrappers else rows


class WithoutSteps(gym.Env[Any, Any]):
    """Has the spaces of an env and nothing else, for wrappers that only translate."""

    def __init__(self, observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> None:
        self.observation_space, self.action_space = observation_space, action_space


def wrappers_of(env: Env) -> Iterator[Env]:
    """Yield an env, the env in it, and so on to the innermost."""
    yield env
    while isinstance(env, gym.Wrapper):
        env = env.env
        yield env


@contextmanager
def _making(config: EnvConfig) -> Iterator[None]:
    """Import what the env needs, and turn errors of its code in the body into a UsageError with a suggestion."""
    try:
        prepare_imports(config.named_modules, config.modules)
        yield
    except EnvError as error:
        raise UsageError(error.message, error.hint) from error
    except RlexpError:
        raise
    except BaseException as error:  # the code of an env may raise anything
        raise _cannot_be_made(config, error) from error


def _cut_env(config: EnvConfig, kwargs: Mapping[str, Any]) -> Env:
    """Return the env without preparation, truncated after its limit of steps."""
    if is_task(config.env):
        return CheckedEnv(SingleEnv(make_pool(replace(config, env_config=kwargs), 1)), config.env)
    render_mode = {name: kwargs[name] for name in kwargs if name not in config.env_config}
    rows = _rows_of_agents(config, 1, render_mode)
    if rows is not None:
        return CheckedEnv(OneAgent(rows), config.env)
    user_class = find_class(config.env)
    if user_class is None and find_spec(config.env).entry_point is not None:
        return _registered_env(config, config.horizon, kwargs)
    if user_class is None:
        env: Env = SingleEnv(registered_vector(config, 1, kwargs))
    elif issubclass(user_class, VectorEnv):
        env = SingleEnv(vector_of_class(user_class, config, 1, kwargs))
    else:
        env = user_class(**kwargs)
    env = CheckedEnv(env, config.env)
    return TimeLimit(env, config.horizon) if config.horizon else env


def make_vector_env(config: EnvConfig, num_envs: int) -> Vector:
    """Make ``num_envs`` copies that step together, natively vectorised if the env offers that.

    Raises UsageError if the env cannot be made, or has spaces that the agents cannot play.
    ``config.continuous_actions`` says how the envs get continuous actions.

    Every vector env resets in ``AutoresetMode.NEXT_STEP``: the step after an episode's end ignores its action and
    returns the next episode's first observation. So one stream of observations has every episode's true last
    observation.

    If an episode is less than a game (Atari under ``deepmind``), every ``infos`` has arrays ``[M]`` under GAME_OVER,
    GAME_SCORE and GAME_STEPS of :mod:`rlexp.envs.atari`.

    If the envs mask actions, observations are rows of a MaskedSpace. If they have several agents, each is a row: see
    AgentRows.
    """
    with _making(config):
        rows = _rows_of_agents(config, num_envs, {})
        vector = native_vector_env(config, num_envs) if rows is None else _translated(rows, config)
    if vector is None:
        vector = EnvsInTurn([lambda: make_env(config)] * num_envs, autoreset_mode=AutoresetMode.NEXT_STEP)
    check_spaces(config, vector.single_observation_space, vector.single_action_space)
    return _as_agents_play(vector, config)


def _as_agents_play(vector: Vector, config: EnvConfig) -> Vector:
    return flatten_observations(bound_actions(with_masks(vector, config), config.continuous_actions))


def spaces_of(config: EnvConfig) -> tuple[gym.Space[Any], gym.Space[Any]]:
    """Return the observation and the action space of one env, as agents see them."""
    vector = make_vector_env(config, 1)
    vector.close()
    return vector.single_observation_space, vector.single_action_space


def rows_per_env(config: EnvConfig) -> int:
    """Return how many rows of a vector env an env has: its number of agents."""
    with _making(config):
        if find_parallel_env(config.env) is None:
            return 1
    with closing(make_vector_env(config, 1)) as vector:
        return agents_per_env(vector)


def action_grid(config: EnvConfig) -> Array | None:
    """Return the env's action ``[A, *shape]`` for each action number; None if the env takes the numbers."""
    env = make_env(config)
    env.close()
    return env.grid if isinstance(env, DiscreteActions) else None


def longest_episode(config: EnvConfig) -> int | None:
    """Return the most steps of an episode of an env with Gymnasium's own limit; None: it is not known."""
    if config.has_user_parts or is_atari(config.env) or config.env not in gym.registry:
        return None
    return episode_limit(gym.spec(config.env), config.horizon)


def make_filmed_env(config: EnvConfig) -> Vector:
    """Make a vector env of one copy that renders pictures ``[H, W, 3]``; raises UsageError if it cannot render.

    Its metadata have the steps per second under ``render_fps``.
    """
    for name, value in (QUIET_PYGAME | ({} if "DISPLAY" in os.environ else MUJOCO_WITHOUT_SCREEN)).items():
        os.environ.setdefault(name, value)
    try:
        with _making(config):
            rows = _rows_of_agents(config, 1, {"render_mode": "rgb_array"})
        alone = [lambda: make_env(config, "rgb_array")]
        vector = (
            EnvsInTurn(alone, autoreset_mode=AutoresetMode.NEXT_STEP) if rows is None else _translated(rows, config)
        )
        vector.reset(seed=0)
        pictures: Any = vector.render()
        picture = pictures[0]
    except (UsageError, EnvError, gym.error.Error, AssertionError, TypeError) as error:
        raise _cannot_be_recorded(config.env, error) from error
    if getattr(picture, "ndim", 0) != PICTURE_RANK:
        vector.close()
        raise UsageError(f"env {config.env} cannot be recorded: render returned no image", HOW_TO_RENDER)
    if is_atari(config.env):  # says 30 for any number of frames per step
        vector.metadata = {**vector.metadata, "render_fps": _atari_steps_per_second(config)}
    return _as_agents_play(vector, config)


def _atari_steps_per_second(config: EnvConfig) -> float:
    arguments = {**find_spec(config.env).kwargs, **config.env_config}
    rules = atari_rules(arguments, {}, None) if config.is_deepmind_atari else None
    return steps_per_second(rules.skip if rules and rules.skip else arguments.get("frameskip", FRAME_SKIP))


def _registered_env(config: EnvConfig, horizon: int | None, kwargs: Mapping[str, Any]) -> Env:
    if EPISODE_LIMIT in kwargs:
        message = f"env {config.env}: {EPISODE_LIMIT} is not an argument of the env itself"
        raise UsageError(message, f"write horizon: {kwargs[EPISODE_LIMIT]} beside env_config instead")
    limit = episode_limit(find_spec(config.env), horizon)
    with without_advice_on_versions():
        env = gym.make(config.env, max_episode_steps=limit, disable_env_checker=True, **kwargs)
    return CheckedEnv(env, config.env)


def prepared(env: Env, config: EnvConfig) -> Env:
    """Return ``env`` with scaled images and numbered continuous actions, if it has such."""
    check_layout(config.env, env.observation_space)
    if config.frames is not None and changes_images(env.observation_space, config.frames):
        size = config.frames.size_of(env.observation_space.shape or ())
        env = ScaledFrames(env, size, grayscale=config.frames.makes_grey)
    if config.discretize_actions is not None and isinstance(env.action_space, Box):
        env = DiscreteActions(env, config.env, config.discretize_actions)
    return env


def _cannot_be_made(config: EnvConfig, error: BaseException) -> UsageError:
    located = env_error(config.env, error)
    return UsageError(located.message, _argument_hint(config, error) or _remedy(config.env, error) or located.hint)


def _argument_hint(config: EnvConfig, error: BaseException) -> str | None:
    """Return how a class of the user gets its arguments; None for errors about something else."""
    is_own = pettingzoo_name(config.env) is None and named_object(config.env) is not None
    if not isinstance(error, TypeError) or not is_own:
        return None
    if "'num_envs'" in str(error):
        return "a class of vector envs is made with the keyword argument num_envs: write def __init__(self, num_envs)"
    if config.env_config and re.search("unexpected keyword argument|required positional argument", str(error)):
        arguments = ", ".join(f"{name}=..." for name in config.env_config)
        return f"env_config gives keyword arguments: write def __init__(self, {arguments})"
    if re.search("missing .* required", str(error)):
        return "give the argument a default value, or give it in env_config"
    return None


def _cannot_be_recorded(env: str, error: Exception) -> UsageError:
    what = str(error).removeprefix(f"env {env}: ")
    hint = getattr(error, "hint", None) or _remedy(env, error)
    package = package_of(env)
    if isinstance(error, EnvError) and package is not None and package.module == "mujoco":
        hint = HOW_MUJOCO_RENDERS
    return UsageError(f"env {env} cannot be recorded: {what}", HOW_TO_RENDER if "render_mode" in what else hint)


def _remedy(env: str, error: BaseException) -> str | None:
    package = package_of(env)
    if isinstance(error, gym.error.DependencyNotInstalled) or (package and isinstance(error, ModuleNotFoundError)):
        return f"pip install '{package.requirement if package else PACKAGE_THAT_RENDERS}'"
    return "check env_config: its keys are the env's keyword arguments" if isinstance(error, TypeError) else None
