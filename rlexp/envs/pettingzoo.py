"""What an env's name means if the env has several agents: PettingZoo's names, RLlib's examples, the user's classes."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import pkgutil
import re
from collections.abc import Callable
from typing import Any, Final

from rlexp.config.keys.env_ids import PETTINGZOO_FAMILIES, RLLIB_ENVS, RLLIB_PARALLEL_ENVS, pettingzoo_name
from rlexp.envs.registry import named_object, refuse_turns
from rlexp.errors import UsageError

Maker = Callable[..., Any]
"""Makes an env like PettingZoo's ``ParallelEnv`` from keyword arguments."""

MAKER: Final = "parallel_env"
"""The function of a module of PettingZoo that makes its env."""
_VERSIONED: Final = re.compile(r"[a-z]\w*_v[0-9]+")
_METHODS: Final = ("reset", "step", "observation_space", "action_space")


def find_parallel_env(name: str) -> Maker | None:
    """Return what makes an env whose agents act together; None for the name of another env.

    This imports its module. Raises UsageError for a name of PettingZoo that does not exist or is not installed, and for
    envs whose agents act in turn.
    """
    found = pettingzoo_name(name)
    if found is not None:
        return _of_pettingzoo(name, *found)
    if name in (RLLIB_ENVS[each] for each in RLLIB_PARALLEL_ENVS):
        examples = importlib.import_module("rlexp.envs.rllib_envs")
        maker: Maker = examples.PARALLEL_ENVS[name]
        return maker
    named = named_object(name)
    if named is None:
        return None
    return named if is_parallel_env(named) or (not isinstance(named, type) and name.endswith(f":{MAKER}")) else None


def is_parallel_env(found: Any) -> bool:
    """Return whether a class has the methods of PettingZoo's ``ParallelEnv``, whatever it derives from.

    An env of Gymnasium has spaces in place of the methods ``observation_space`` and ``action_space``.
    """
    return isinstance(found, type) and all(callable(getattr(found, name, None)) for name in _METHODS)


def _of_pettingzoo(env: str, family: str | None, name: str) -> Maker:
    families = (family,) if family else PETTINGZOO_FAMILIES
    for each in families:
        if importlib.util.find_spec(each.partition(".")[0]) is None:
            package = each.partition(".")[0]
            message = f"env {env}: {package} is not installed"
            raise UsageError(message, "pip install 'rlexp[pettingzoo]'")
    known = {each: _names(each) for each in families}
    found = next((each for each, names in known.items() if name in names), None)
    if found is None:
        raise UsageError(f"env {env}: PettingZoo has no {name}{f' in {family}' if family else ''}", _near(name, family))
    try:
        module = importlib.import_module(f"{found}.{name}")
        maker: Maker | None = getattr(module, MAKER, None)
    except ImportError as error:
        message = f"env {env} cannot be imported: {error}"
        raise UsageError(message, "pip install 'rlexp[pettingzoo]'") from error
    if maker is None:
        refuse_turns(env, "an env of PettingZoo", f"it has no {MAKER}")
    return maker


def _names(family: str) -> list[str]:
    """Return the names of the envs in a package, such as ``pistonball_v6``; none if it does not exist."""
    package = importlib.util.find_spec(family)
    places = [] if package is None else list(package.submodule_search_locations or ())
    return [module.name for module in pkgutil.iter_modules(places) if _VERSIONED.fullmatch(module.name)]


def _near(name: str, family: str | None) -> str:
    """Return the envs whose names are most like ``name``; without any, all names of its family."""
    envs = {
        each: f"pettingzoo:{package.removeprefix('pettingzoo.')}.{each}"
        for package in PETTINGZOO_FAMILIES
        if importlib.util.find_spec(package.partition(".")[0]) is not None
        for each in _names(package)
    }
    close = difflib.get_close_matches(name, envs, n=3, cutoff=0.5)
    if close:
        return f"is {' or '.join(envs[each] for each in close)} meant?"
    inside = _names(family) if family else []
    return f"it has {', '.join(inside)}" if inside else f"its packages are {', '.join(PETTINGZOO_FAMILIES)}"
