"""What an env's name stands for: a class or an entry of Gymnasium's registry, of the user's own or a package's."""

from __future__ import annotations

import difflib
import importlib
import logging
from functools import cache
from typing import Any, Final

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv

from rlexp.config.keys.env_ids import (
    ENVPOOL,
    GROUP,
    ONE_AGENT,
    PackageEntry,
    brought_by,
    is_minatar,
    is_minigrid,
    is_of_ale,
    several_agents,
)
from rlexp.errors import UsageError
from rlexp.user_code import classes

Env = gym.Env[Any, Any]
Vector = VectorEnv[Any, Any, Any]

OF_SEVERAL_AGENTS: Final = {
    "pettingzoo": ("AECEnv", "ParallelEnv"),
    "ray": ("MultiAgentEnv",),
}
"""Classes of envs in which several agents play, by the library that has them."""
UNKNOWN_ID: Final = "write a Gymnasium id or package.module:Class, or install the package that brings the env"


def find_class(name: str) -> type[Env] | type[Vector] | None:
    """Return the class that ``package.module:Class``, or the entry point of a package, names; None for other ids.

    Its module is imported, or the function called that registers a package's envs. Raises UsageError for anything there
    that is not a class of envs, and for envs of several agents.
    """
    if several_agents(name) is not None:
        raise UsageError(f"env {name} {several_agents(name)}", ONE_AGENT)
    provider = None if name in gym.registry else brought_by(name)
    if provider is not None:
        return _provided_class(name, provider)
    module_name, colon, class_name = name.partition(":")
    if not colon or not class_name.isidentifier() or "/" in module_name or name.startswith(ENVPOOL):
        return None
    return _env_class(name, classes.find_object("env", name))


def _provided_class(name: str, provider: PackageEntry) -> type[Env] | type[Vector] | None:
    found = _loaded(provider)
    if found is None:
        return None
    if provider.name != name:
        message = f"env {name}: the package {provider.package} has an entry point {provider.name!r} for a class"
        raise UsageError(message, f"write env: {provider.name}; only a function can register several envs")
    return _env_class(provider.value, found)


@cache
def _loaded(provider: PackageEntry) -> type | None:
    """Return the class of an entry point; call the function of one, once, and return None."""
    what = f"the entry point {provider.name!r} of the package {provider.package} ({GROUP}):"
    if len(provider.packages) > 1:
        packages = " and ".join(provider.packages)
        raise UsageError(f"the packages {packages} both bring envs as {provider.name}", "uninstall one of them")
    found = classes.find_object(what, provider.value)
    if isinstance(found, type):
        return found
    if not callable(found):
        raise UsageError(f"{what} {provider.value} is neither a class nor a function", "tell the package's authors")
    try:
        found()
    except Exception as error:  # the code of a package may raise anything
        message = f"{what} {provider.value} raised {type(error).__name__}: {error}"
        raise UsageError(message, "tell the package's authors") from error
    return None


def _env_class(name: str, found: Any) -> type[Env] | type[Vector]:
    """Return ``found`` if it is a class of envs or of vector envs of one agent; raises UsageError if not."""
    if isinstance(found, type):
        _refuse_several_agents(name, found)
        if issubclass(found, VectorEnv):
            return found
    return classes.derived("env", name, found, gym.Env, "gymnasium.Env")


def _refuse_several_agents(name: str, found: type) -> None:
    for base in found.__mro__:
        library = base.__module__.partition(".")[0]
        if base.__name__ in OF_SEVERAL_AGENTS.get(library, ()):
            raise UsageError(
                f"env {name} is a {base.__name__}, for several agents, but rlexp trains one agent", ONE_AGENT
            )


def find_spec(name: str) -> EnvSpec:
    """Return the entry of Gymnasium's registry; raises UsageError with a suggestion where there is none."""
    module_name, colon, env_id = name.rpartition(":")
    try:
        if colon:
            importlib.import_module(module_name)
        elif env_id not in gym.registry:
            _register_package(env_id)
        return gym.spec(env_id)
    except (ImportError, gym.error.Error) as error:
        close = difflib.get_close_matches(env_id, gym.registry, n=1, cutoff=0.7)
        hint = f"did you mean {close[0]}?" if close else UNKNOWN_ID
        raise UsageError(f"env {name} is not a Gymnasium environment: {error}", hint) from error


def _register_package(env_id: str) -> None:
    """Import the package that registers an id, where one is known; raises UsageError where that is missing."""
    if is_of_ale(env_id):
        _register_ale_ids(env_id)
    elif is_minatar(env_id):
        _register_minatar_ids(env_id)
    elif is_minigrid(env_id):
        try:
            importlib.import_module("minigrid")
        except ImportError as error:
            raise UsageError(f"env {env_id} needs MiniGrid: {error}", "pip install 'rlexp[minigrid]'") from error


def _register_ale_ids(env_id: str) -> None:
    """Import the Arcade Learning Environment, which registers its games; raises UsageError where it is missing."""
    try:
        ale = importlib.import_module("ale_py")
        ale.ALEInterface.setLoggerMode(ale.LoggerMode.Error)  # every game would print a banner of two lines
    except ImportError as error:
        message = f"env {env_id} needs the Arcade Learning Environment: {error}"
        raise UsageError(message, "pip install 'rlexp[atari]'") from error


def _register_minatar_ids(env_id: str) -> None:
    """Let MinAtar register its games: Gymnasium asks packages no more; raises UsageError where it is missing."""
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)  # it warns that pictures need seaborn, by a bare except around its import
    try:
        importlib.import_module("minatar.gym").register_envs()
    except ImportError as error:
        raise UsageError(f"env {env_id} needs MinAtar: {error}", "pip install 'rlexp[minatar]'") from error
    finally:
        root.setLevel(level)
