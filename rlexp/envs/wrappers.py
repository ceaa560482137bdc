"""Puts the user's own wrappers and preprocessor around an env; what they do wrong is an error that names them."""

from __future__ import annotations

import traceback
from typing import Any, Final, TypeVar

import gymnasium as gym

from rlexp.config.keys.user_code import UserClass
from rlexp.envs.checked_env import CheckedEnv, env_error
from rlexp.envs.env_config import EnvConfig
from rlexp.envs.preprocessor import PreprocessedObservations, Preprocessor
from rlexp.errors import EnvError, UsageError
from rlexp.user_code import classes

Env = gym.Env[Any, Any]
Class = TypeVar("Class")

WRAPPERS: Final = "config.env_wrappers"
PREPROCESSOR: Final = "config.model.custom_preprocessor"
FROM_RLLIB: Final = (
    "derive it from rlexp.envs.Preprocessor: RLlib's _init_shape(obs_space, options) is its"
    " __init__(observation_space), which sets self.observation_space; transform(observation) stays"
)
"""How to convert a class that was written for RLlib."""


def wrapped(env: Env, config: EnvConfig) -> Env:
    """Return ``env`` in the wrappers of ``config``, the first innermost; raises UsageError where one cannot be made."""
    for wrapper in config.wrappers:
        kind = classes.find_class(WRAPPERS, wrapper.name, gym.Wrapper, "gymnasium.Wrapper")
        name = f"{config.env}: wrapper {wrapper.name}"
        env = CheckedEnv(_made(name, kind, env, wrapper), name, "wrapper")
    return env


def preprocessed(env: Env, config: EnvConfig) -> Env:
    """Return ``env`` with observations as the preprocessor of ``config`` makes them; without one, as it is."""
    given = config.preprocessor
    if given is None:
        return env
    name = f"{config.env}: preprocessor {given.name}"
    made = _made(name, _preprocessor_class(given), env.observation_space, given)
    if not isinstance(getattr(made, "observation_space", None), gym.Space):
        message = f"env {name} has no observation_space: it must be a gymnasium.Space"
        raise EnvError(message, "set self.observation_space in __init__ to what transform returns")
    return CheckedEnv(PreprocessedObservations(env, made), name, "preprocessor")


def _made(name: str, kind: type[Class], around: Any, given: UserClass) -> Class:
    try:
        return kind(around, **given.kwargs)  # type: ignore[call-arg]
    except BaseException as error:  # the user's code may raise anything
        located = env_error(name, error)
        hint = "its arguments are the env, or the observation space, and those that the file gives"
        raise UsageError(located.message, hint if isinstance(error, TypeError) else "correct the class") from error


def _preprocessor_class(given: UserClass) -> type[Preprocessor]:
    try:
        found = classes.find_object(PREPROCESSOR, given.name)
    except UsageError as error:
        raise UsageError(error.message, FROM_RLLIB if _needs_rllib(error.__cause__) else error.hint) from error
    if hasattr(found, "_init_shape"):
        message = f"{PREPROCESSOR} {given.name} is a preprocessor of RLlib, which rlexp does not have"
        raise UsageError(message, FROM_RLLIB)
    base: type[Any] = Preprocessor
    kind: type[Preprocessor] = classes.derived(PREPROCESSOR, given.name, found, base, "rlexp.envs.Preprocessor")
    return kind


def _needs_rllib(error: BaseException | None) -> bool:
    """Return whether a module could not be imported because of what it imports from RLlib."""
    if not isinstance(error, ImportError):
        return False
    lines = traceback.extract_tb(error.__traceback__)
    return any("ray.rllib" in (frame.line or "") for frame in lines) or "rllib" in str(error)
