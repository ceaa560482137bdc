"""What the name of an env stands for: a class of the user's own, or an entry of Gymnasium's registry."""

from __future__ import annotations

import difflib
import importlib
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from rlexp.config.keys.env_ids import GYMNASIUM_IDS, is_known
from rlexp.errors import UsageError
from rlexp.user_code import classes

Env = gym.Env[Any, Any]


def find_class(name: str) -> type[Env] | None:
    """Return the class that ``package.module:Class`` names, or None where the name is a Gymnasium id.

    Its module is imported. Raises UsageError for anything there that is not a class of envs.
    """
    module_name, colon, class_name = name.partition(":")
    if not colon or not class_name.isidentifier() or "/" in module_name:
        return None
    return classes.find_class("env", name, gym.Env, "gymnasium.Env")


def find_spec(name: str) -> EnvSpec:
    """Return the entry of Gymnasium's registry; raises UsageError with a suggestion where there is none."""
    module_name, colon, env_id = name.rpartition(":")
    try:
        if colon:
            importlib.import_module(module_name)
        elif _is_ale_id(env_id):
            _register_ale_ids(env_id)
        return gym.spec(env_id)
    except (ImportError, gym.error.Error) as error:
        close = difflib.get_close_matches(env_id, gym.registry, n=1, cutoff=0.7)
        hint = f"did you mean {close[0]}?" if close else "write a Gymnasium id or package.module:Class"
        raise UsageError(f"env {name} is not a Gymnasium environment: {error}", hint) from error


def _is_ale_id(env_id: str) -> bool:
    return is_known(env_id) and env_id not in GYMNASIUM_IDS and env_id not in gym.registry


def _register_ale_ids(env_id: str) -> None:
    """Import the Arcade Learning Environment, which registers its games; raises UsageError where it is missing."""
    try:
        ale = importlib.import_module("ale_py")
        ale.ALEInterface.setLoggerMode(ale.LoggerMode.Error)  # every game would print a banner of two lines
    except ImportError as error:
        message = f"env {env_id} needs the Arcade Learning Environment: {error}"
        raise UsageError(message, "pip install 'rlexp[atari]'") from error
