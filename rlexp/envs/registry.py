"""EnvConfig, the env that an experiment means, and the class or registered entry that a name stands for.

Names come from Gymnasium's registry, the user's own classes, or packages' entry points. Those of envs with several
agents come from PettingZoo, RLlib's examples, or the user's classes.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import logging
import pkgutil
import re
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, Literal, NoReturn

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv

from rlexp.config.keys.common import ActionScaling, CommonConfig, PlayableActions
from rlexp.config.keys.env_ids import (
    BULLET_IDS,
    ENVPOOL,
    GROUP,
    IN_TURN,
    PETTINGZOO_FAMILIES,
    RLLIB_ENVS,
    RLLIB_PARALLEL_ENVS,
    brought_by,
    has_game_frames,
    is_atari,
    is_minatar,
    is_minigrid,
    is_of_ale,
    pettingzoo_name,
)
from rlexp.config.keys.model import ATARI_DIM
from rlexp.config.keys.user_code import NO_MODULES, PackageEntry, UserClass, UserModules, modules_of
from rlexp.errors import UsageError
from rlexp.user_code import classes

MaskSource = Literal["observation", "info", "method"]
"""Where an env has its action masks: in its Dict observation, in its info, or in its method ``action_masks``."""
ATARI_FRAME_SHAPE = (210, 160, 3)
FLAGS_OF_THE_REGISTRY = frozenset({"nondeterministic"})
"""Arguments of Atari games in RLlib 2's files: Gym's registry knew them, no game used them, ale-py refuses them."""


@dataclass(frozen=True)
class FrameConfig:
    """How image frames of envs, bytes ``[H, W, C]``, are prepared.

    Atari games under ``deepmind`` get all of :mod:`rlexp.envs.atari`. Other Atari frames are scaled; other images only
    to a given ``dim``. Under ``rllib``, both become grey if asked for. The torso scales the bytes to numbers.
    """

    preprocessing: Literal["deepmind", "rllib"]
    dim: int | None
    """Height and width in pixels of all images; None: ATARI_DIM for Atari frames, other images keep their size."""
    grayscale: bool
    """Make frames grey; for ``rllib``, ``deepmind`` always makes Atari frames grey."""
    framestack: bool
    """Show the last 4 frames; for Atari under ``deepmind``."""

    @property
    def makes_grey(self) -> bool:
        """Whether images of envs without all of the Atari preparation become grey."""
        return self.grayscale and self.preprocessing == "rllib"

    @property
    def atari_dim(self) -> int:
        """Height and width of Atari frames."""
        return ATARI_DIM if self.dim is None else self.dim

    def size_of(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """Return height and width to which images ``[H, W, C]`` of ``shape`` are scaled.

        As in RLlib, unscaled Atari frames are recognised by their shape.
        """
        if self.dim is None and shape != ATARI_FRAME_SHAPE:
            return shape[0], shape[1]
        return self.atari_dim, self.atari_dim


@dataclass(frozen=True)
class EnvConfig:
    """An env and how it is made."""

    env: str
    """A Gymnasium id, ``module:id`` (Gymnasium imports the module first), ``package.module:Class``, an env or vector
    env, the id of a package's entry point, EnvPool's task ``envpool:Pong-v5``, or an env of several agents."""
    env_config: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the env."""
    horizon: int | None = None
    """Steps after which an episode is truncated; never longer than the env's own limit."""
    modules: UserModules = NO_MODULES
    """The user's own modules: those to import first, and where they and the env's class are searched."""
    frames: FrameConfig | None = None
    """How images are prepared; None: unchanged."""
    actions: PlayableActions | None = None
    """The action spaces that can be played; None: any."""
    discretize_actions: int | None = None
    """Actions per dimension that replace continuous ones; None: the env's own actions."""
    continuous_actions: ActionScaling | None = None
    """How continuous actions are brought within the env's bounds; None: the env gets the chosen actions."""
    wrappers: tuple[UserClass, ...] = ()
    """The user's own wrappers, the innermost first."""
    preprocessor: UserClass | None = None
    """The user's own preparation of observations."""
    num_threads: int = 1
    """Threads that step a vector env, if it has threads of its own (Atari)."""
    action_mask: MaskSource | Literal["auto"] | None = None
    """Where action masks are read; ``auto``: wherever the env has them. None: nowhere."""

    def arguments(self) -> dict[str, Any]:
        """Return a deep copy of ``env_config`` for one env, which may change what it gets."""
        return deepcopy(dict(self.env_config))

    @property
    def has_user_parts(self) -> bool:
        """Whether classes of the user change the env's observations, rewards or actions."""
        return bool(self.wrappers) or self.preprocessor is not None

    @property
    def named_modules(self) -> tuple[str, ...]:
        """The modules that a process imports because of its names."""
        parts = (*self.wrappers, *([] if self.preprocessor is None else [self.preprocessor]))
        return (*modules_of(self.env), *(part.name.partition(":")[0] for part in parts))

    @property
    def is_deepmind_atari(self) -> bool:
        """Whether it is an Atari game to be prepared as in Mnih et al. 2015; not possible for a game's memory."""
        deepmind = self.frames is not None and self.frames.preprocessing == "deepmind"
        return deepmind and has_game_frames(self.env, self.env_config)


def env_config_of(env: str, config: CommonConfig, modules: UserModules) -> EnvConfig:
    """Return the config of ``env`` for an experiment with ``config`` that may import ``modules``.

    A vector env gets as many threads as the process that steps it has CPUs.
    """
    frames, preparation = None, config.effective_preprocessor_pref
    if preparation is not None:
        model = config.model
        frames = FrameConfig(preparation, model.dim, model.grayscale, model.framestack)
    arguments = config.env_config
    if is_atari(env):
        arguments = {name: value for name, value in arguments.items() if name not in FLAGS_OF_THE_REGISTRY}
    return EnvConfig(
        env=env,
        env_config=arguments,
        horizon=config.horizon,
        modules=modules,
        frames=frames,
        actions=config.playable_actions,
        discretize_actions=config.bins_per_action,
        continuous_actions=config.continuous_actions,
        wrappers=config.env_wrappers,
        preprocessor=config.model.custom_preprocessor,
        num_threads=max(int(config.num_cpus_per_worker if config.num_workers else config.num_cpus_for_driver), 1),
        action_mask=config.action_mask if config.MASKS_ACTIONS else None,
    )


Env = gym.Env[Any, Any]
Vector = VectorEnv[Any, Any, Any]

UNKNOWN_ID: Final = "write a Gymnasium id or package.module:Class, or install the package that brings the env"


def find_class(name: str) -> type[Env] | type[Vector] | None:
    """Return the class that ``package.module:Class`` or a package's entry point names; None for other ids.

    This imports its module, or calls the function that registers a package's envs. Raises UsageError if it is not an
    env class of one agent.
    """
    found = named_object(name)
    if found is None:
        return None
    provider = _provider(name)
    return _env_class(name if provider is None else provider.value, found)


def named_object(name: str) -> Any:
    """Return the object that ``package.module:Class`` or a package's entry point names; None for other ids.

    Raises UsageError if there is none, or if it is a class of an env whose agents act in turn.
    """
    provider = _provider(name)
    if provider is not None:
        found: Any = _provided_class(name, provider)
    else:
        module_name, colon, class_name = name.partition(":")
        if not colon or not class_name.isidentifier() or "/" in module_name or name.startswith(ENVPOOL):
            return None
        found = classes.find_object("env", name)
    if isinstance(found, type):
        _refuse_other_agents(name, found)
    elif name.endswith(":env"):
        refuse_turns(name, "a function of PettingZoo's form for an env")
    return found


def _provider(name: str) -> PackageEntry | None:
    return None if name in gym.registry else brought_by(name)


def _provided_class(name: str, provider: PackageEntry) -> type | None:
    found = _loaded(provider)
    if found is None:
        return None
    if provider.name != name:
        message = f"env {name}: the package {provider.package} has an entry point {provider.name!r} for a class"
        raise UsageError(message, f"write env: {provider.name}; only a function can register several envs")
    return found


@cache
def _loaded(provider: PackageEntry) -> type | None:
    """Return the class of an entry point; if it is a function, call it once and return None."""
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
    """Return ``found`` if it is a class of envs or vector envs of one agent; raises UsageError if not."""
    if isinstance(found, type) and issubclass(found, VectorEnv):
        return found
    return classes.derived("env", name, found, gym.Env, "gymnasium.Env")


def _refuse_other_agents(name: str, found: type) -> None:
    """Raise UsageError for classes of several agents that do not act together."""
    for base in found.__mro__:
        library = base.__module__.partition(".")[0]
        if (library, base.__name__) == ("pettingzoo", "AECEnv"):
            refuse_turns(name, "an AECEnv")
        if (library, base.__name__) == ("ray", "MultiAgentEnv"):
            message = f"env {name} is a MultiAgentEnv of RLlib, which rlexp does not have"
            raise UsageError(message, "derive it from pettingzoo.ParallelEnv: docs/environments.md has the methods")


def refuse_turns(name: str, kind: str, reason: str = "") -> NoReturn:
    """Raise UsageError for an env whose agents act in turn."""
    because = f" ({reason})" if reason else ""
    raise UsageError(f"env {name} is {kind} whose agents act in turn{because}, but rlexp steps all together", IN_TURN)


def find_spec(name: str) -> EnvSpec:
    """Return the entry of Gymnasium's registry; raises UsageError with a suggestion if there is none."""
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
    """Import the package that registers an id, if one is known; raises UsageError if it is missing."""
    known = (
        (is_of_ale, _register_ale_ids, "the Arcade Learning Environment", "atari"),
        (is_minatar, _register_minatar_ids, "MinAtar", "minatar"),
        (is_minigrid, lambda: importlib.import_module("minigrid"), "MiniGrid", "minigrid"),
        (BULLET_IDS.__contains__, _register_bullet_ids, "PyBullet", "pybullet"),
    )
    if env_id in RLLIB_ENVS.values():
        importlib.import_module("rlexp.envs.rllib_envs")
    for is_of_package, register, package, extra in known:
        if is_of_package(env_id):
            try:
                register()
            except ImportError as error:
                raise UsageError(f"env {env_id} needs {package}: {error}", f"pip install 'rlexp[{extra}]'") from error


def _register_ale_ids() -> None:
    ale = importlib.import_module("ale_py")
    ale.ALEInterface.setLoggerMode(ale.LoggerMode.Error)  # every game would print a banner of two lines


def _register_minatar_ids() -> None:
    """Let MinAtar register its games, as Gymnasium does not load packages any more."""
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)  # it warns that pictures need seaborn, by a bare except around its import
    try:
        importlib.import_module("minatar.gym").register_envs()
    finally:
        root.setLevel(level)


def _register_bullet_ids() -> None:
    importlib.import_module("pybullet_envs_gymnasium")
    importlib.import_module("rlexp.envs.rllib_envs")


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
