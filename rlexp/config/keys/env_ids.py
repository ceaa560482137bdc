"""Ids of environments: existing ones, the current ids of old ones, and what they need; nothing is imported.

Installed packages bring envs by entry points of the group ``rlexp.envs``. The name of one is an env's id, or the
namespace before the slash of several ids::

    [project.entry-points."rlexp.envs"]
    Maze-v0 = "maze.envs:MazeEnv"         # a class: env: Maze-v0
    maze = "maze.envs:register_envs"      # a function that registers envs with Gymnasium: env: maze/Large-v0
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

from rlexp.config.keys.user_code import PackageEntry, entry_points

GROUP: Final = "rlexp.envs"


def provider_of(env: str) -> PackageEntry | None:
    """Return the entry point of an id that is neither Gymnasium's nor a class; None if no package has one."""
    found = entry_points(GROUP)
    return found.get(env) or found.get(env.partition("/")[0] if "/" in env else "")


def provided_names() -> tuple[str, ...]:
    """Return what installed packages bring, for messages: ids, and namespaces as ``maze/...``."""
    return tuple(sorted(entry_points(GROUP)))


_GYMNASIUM_IDS = """
Acrobot-v1 Ant-v4 Ant-v5 BipedalWalker-v3 BipedalWalkerHardcore-v3 Blackjack-v1 CarRacing-v3 CartPole-v0
CartPole-v1 CliffWalking-v1 CliffWalkingSlippery-v1 FrozenLake-v1 FrozenLake8x8-v1 HalfCheetah-v4
HalfCheetah-v5 Hopper-v4 Hopper-v5 Humanoid-v4 Humanoid-v5 HumanoidStandup-v4 HumanoidStandup-v5
InvertedDoublePendulum-v4 InvertedDoublePendulum-v5 InvertedPendulum-v4 InvertedPendulum-v5 LunarLander-v3
LunarLanderContinuous-v3 MountainCar-v0 MountainCarContinuous-v0 Pendulum-v1 Pusher-v4 Pusher-v5 Reacher-v4
Reacher-v5 Swimmer-v4 Swimmer-v5 Taxi-v4 Walker2d-v4 Walker2d-v5 phys2d/CartPole-v0 phys2d/CartPole-v1
phys2d/Pendulum-v0 tabular/Blackjack-v0 tabular/CliffWalking-v0 GymV21Environment-v0 GymV26Environment-v0
"""
GYMNASIUM_IDS = frozenset(_GYMNASIUM_IDS.split())

_REMOVED_IDS = """
Acrobot-v0 BipedalWalker-v2 BipedalWalkerHardcore-v2 Blackjack-v0 CarRacing-v0 CarRacing-v1 CarRacing-v2
CliffWalking-v0 FrozenLake-v0 FrozenLake8x8-v0 LunarLander-v1 LunarLander-v2 LunarLanderContinuous-v2
Pendulum-v0 Taxi-v1 Taxi-v2 Taxi-v3
"""
_NEWEST_IDS = {name.rpartition("-")[0]: name for name in sorted(GYMNASIUM_IDS)}
LATER_VERSIONS = {name: _NEWEST_IDS[name.rpartition("-")[0]] for name in _REMOVED_IDS.split()}
"""Ids that Gymnasium has removed, and their replacements."""

_RLLIB_ENVS = """
CartPoleCrashing RandomEnv RandomLargeObsSpaceEnv RandomLargeObsSpaceEnvContActions RecommSys001 RepeatAfterMeEnv
StatelessCartPole TransformedActionPendulum
"""
RLLIB_PARALLEL_ENVS = (
    "MultiAgentCartPole",
    "MultiAgentCartPoleCrashing",
    "MultiAgentMountainCar",
    "MultiAgentPendulum",
)
"""RLlib's example envs of several agents."""
RLLIB_ENVS = {name: f"rllib/{name}-v0" for name in (*_RLLIB_ENVS.split(), *RLLIB_PARALLEL_ENVS)}
"""The ids of RLlib's example envs, which are in this package, by their classes' names there."""
RLLIB_ENVS["transformed_action_space_env"] = RLLIB_ENVS["TransformedActionPendulum"]
RLLIB_ENVS["multi_cartpole"] = RLLIB_ENVS["multi_agent_cartpole"] = RLLIB_ENVS["MultiAgentCartPole"]
CUT_AFTER = {RLLIB_ENVS[name]: 500 for name in ("CartPoleCrashing", "StatelessCartPole")}
"""Steps after which episodes are cut that had no limit in RLlib."""

_MUJOCO_TASKS = """
Ant HalfCheetah Hopper Humanoid HumanoidStandup InvertedDoublePendulum InvertedPendulum Pusher Reacher Swimmer
Walker2d
"""
MUJOCO_TASKS = frozenset(_MUJOCO_TASKS.split())
"""MuJoCo's tasks: versions 1 to 3 need the library mujoco-py; version 4 is the first without it."""
PUSHER = "Pusher"
"""Its version 4 needs mujoco before 3, which NumPy 2 cannot load."""

_BULLET_TASKS = """
Ant HalfCheetah Hopper Humanoid HumanoidFlagrun HumanoidFlagrunHarder InvertedDoublePendulum InvertedPendulum
InvertedPendulumSwingup Pusher Reacher Thrower Walker2D
"""
BULLET_CART_POLE = "CartPoleContinuousBulletEnv-v0"
"""The one that Gymnasium's package lacks and this one has."""
BULLET_IDS = frozenset({BULLET_CART_POLE, *(f"{task}BulletEnv-v0" for task in _BULLET_TASKS.split())})
"""PyBullet's envs, all with continuous actions."""

BOX2D_TASKS = frozenset({"BipedalWalker", "BipedalWalkerHardcore", "CarRacing", "LunarLander", "LunarLanderContinuous"})
_CONTINUOUS_EXAMPLES = (
    *("RandomLargeObsSpaceEnvContActions", "TransformedActionPendulum"),
    *("MultiAgentMountainCar", "MultiAgentPendulum"),
)
CONTINUOUS_IDS = frozenset(
    {
        *("Pendulum-v1", "MountainCarContinuous-v0", "BipedalWalker-v3", "BipedalWalkerHardcore-v3", "CarRacing-v3"),
        *("LunarLanderContinuous-v3", "phys2d/Pendulum-v0"),
        *(RLLIB_ENVS[name] for name in _CONTINUOUS_EXAMPLES),
    }
)
"""Envs, beside MuJoCo's, whose actions are continuous."""

_OLDER_GAMES = """
Adventure AirRaid Alien Amidar Assault Asterix Asteroids Atlantis BankHeist BattleZone BeamRider Berzerk
Bowling Boxing Breakout Carnival Centipede ChopperCommand CrazyClimber Defender DemonAttack DoubleDunk
ElevatorAction Enduro FishingDerby Freeway Frostbite Gopher Gravitar Hero IceHockey Jamesbond JourneyEscape
Kangaroo Krull KungFuMaster MontezumaRevenge MsPacman NameThisGame Phoenix Pitfall Pong Pooyan PrivateEye
Qbert Riverraid RoadRunner Robotank Seaquest Skiing Solaris SpaceInvaders StarGunner Tennis TimePilot
Tutankham UpNDown Venture VideoPinball WizardOfWor YarsRevenge Zaxxon
"""
_GAMES_OF_VERSION_5 = """
Atlantis2 Backgammon BasicMath Blackjack Casino Crossbow Darkchambers DonkeyKong Earthworld Entombed Et FlagCapture
Frogger Galaxian Hangman HauntedHouse HumanCannonball Kaboom KeystoneKapers KingKong Klax Koolaid LaserGates LostLuggage
MarioBros MiniatureGolf MrDo Othello Pacman Pitfall2 SirLancelot SpaceWar Superman Surround Tetris TicTacToe3D Trondead
Turmoil VideoCheckers VideoChess VideoCube WordZapper
"""
GAMES_OF_VERSION_5 = frozenset(_GAMES_OF_VERSION_5.split())
"""Games that have ``ALE/Kaboom-v5`` only, no ``KaboomNoFrameskip-v4`` or other id of Gym."""
ATARI_GAMES = GAMES_OF_VERSION_5.union(_OLDER_GAMES.split())

ENV_ID = re.compile(r"([\w-]+/)?\w[\w.-]*", re.ASCII)
"""The form of an id."""

_ALE = re.compile(r"ALE/(?P<game>\w+?)(?P<ram>-ram)?-v5")
_ATARI = re.compile(r"(?P<game>\w+?)(?P<ram>-ram)?(?P<speed>NoFrameskip|Deterministic)?-v(?P<version>[04])")
_TASK = re.compile(r"(?P<task>\w+)-v[123]")
_DOTTED_CLASS = re.compile(r"(?P<module>[a-z_]\w*(\.\w+)*)\.(?P<cls>[A-Z]\w*)", re.ASCII)
_MINATAR = re.compile(r"MinAtar/(Asterix|Breakout|Freeway|Seaquest|SpaceInvaders)-v[01]")
_MINIGRID = re.compile(r"(MiniGrid|BabyAI)-\w[\w-]*-v[0-9]+", re.ASCII)
ENVPOOL: Final = "envpool:"
"""Prefix of the names of EnvPool's tasks: ``envpool:Pong-v5``."""
PETTINGZOO: Final = "pettingzoo:"
"""Prefix of the names of PettingZoo's envs: ``pettingzoo:butterfly.pistonball_v6``."""
PETTINGZOO_FAMILIES: Final = (
    "pettingzoo.butterfly",
    "pettingzoo.sisl",
    "mpe2",
    "pettingzoo.atari",
    "pettingzoo.classic",
)
"""The packages with PettingZoo's envs; MPE has one of its own since PettingZoo 1.25."""
_PETTINGZOO = re.compile(r"pettingzoo[.:/](?:(?P<family>[a-z]\w*)[./])?(?P<name>[a-z]\w*)(?::parallel_env)?", re.ASCII)
_PETTINGZOO_ID = re.compile(r"(\w+/)?[a-z][a-z0-9_]*_v[0-9]+", re.ASCII)
"""The form of PettingZoo's own names: ``pistonball_v6``. Gymnasium's have a hyphen."""
IN_TURN: Final = (
    "name an env whose agents act together, such as its parallel_env, or make one of it with "
    "pettingzoo.utils.aec_to_parallel in a function parallel_env of your own: env: package.module:parallel_env"
)
"""What to do with an env whose agents act in turn."""
_RLLIB_EXAMPLE = re.compile(r"(?:ray\.rllib\.examples\.envs?\.(?:classes\.)?\w+[.:])?(?P<name>\w+)", re.ASCII)
_INSIDE_RLLIB = re.compile(r"ray\.(rllib|tune)\.")

_VERSION = re.compile(r"-v[0-9]+$")

_LIKENESS = 0.75
_LONGEST_COMPARED = 100
STICKY = {"0": 0.25, "4": 0.0}
"""Chance that an Atari env repeats the last action, by the version of its id."""


def current_env(env: str) -> tuple[str, Mapping[str, Any]] | None:
    """Return the current id of an environment and the ``env_config`` that the old one implied; None for a current one.

    >>> current_env("PongDeterministic-v4")[0]
    'ALE/Pong-v5'
    >>> current_env("Pong-ramNoFrameskip-v4")
    ('PongNoFrameskip-v4', {'obs_type': 'ram'})
    """
    env = env.strip()
    if env.startswith("ale_py:ALE/"):
        plain = env.removeprefix("ale_py:")
        return current_env(plain) or (plain, {})
    if env in LATER_VERSIONS:
        return LATER_VERSIONS[env], {}
    example = _RLLIB_EXAMPLE.fullmatch(env)
    if example and example["name"] in RLLIB_ENVS:
        return RLLIB_ENVS[example["name"]], {}
    task = _TASK.fullmatch(env)
    if task and task["task"] in MUJOCO_TASKS:
        return f"{task['task']}-v{5 if task['task'] == PUSHER else 4}", {}
    found = _ATARI.fullmatch(env) or _ALE.fullmatch(env)
    if found and found["game"] in ATARI_GAMES and (found["ram"] or "Deterministic" in env):
        return _current_game(env, found)
    dotted = _DOTTED_CLASS.fullmatch(env)
    if dotted and not _INSIDE_RLLIB.match(env):
        return f"{dotted['module']}:{dotted['cls']}", {}
    return None


def _current_game(env: str, found: re.Match[str]) -> tuple[str, Mapping[str, Any]]:
    """Return the id of a game that ale-py has, and the ``env_config`` that the old one implied."""
    memory = {"obs_type": "ram"} if found["ram"] else {}
    if "Deterministic" in env:
        # SpaceInvaders hides its lasers from every fourth frame.
        frames, sticky = 3 if found["game"] == "SpaceInvaders" else 4, STICKY[found["version"]]
        implied = {"frameskip": frames, "repeat_action_probability": sticky, "full_action_space": False}
        return f"ALE/{found['game']}-v5", {**implied, **memory}
    return env.replace("-ram", "", 1), memory


def is_atari(env: str) -> bool:
    """Return whether a current id is of an Atari game that shows frames."""
    found = _ALE.fullmatch(env) or _ATARI.fullmatch(env)
    return bool(found and found["game"] in ATARI_GAMES and not found["ram"])


def has_game_frames(env: str, env_config: Mapping[str, Any]) -> bool:
    """Return whether a current id, made with ``env_config``, is an Atari game that shows frames, not its memory."""
    return is_atari(env) and env_config.get("obs_type") != "ram"


def has_images(env: str, env_config: Mapping[str, Any]) -> bool:
    """Return whether a current id, made with ``env_config``, is known to have images as observations."""
    return has_game_frames(env, env_config) or env == "CarRacing-v3"


def is_known(env: str) -> bool:
    """Return whether an env can be made without ``--import``: Gymnasium's own, a package's, or a class."""
    return _needs_no_entry_point(env) or provider_of(env) is not None


def brought_by(env: str) -> PackageEntry | None:
    """Return the entry point of an installed package for a current id; None for ids that are known without."""
    return None if _needs_no_entry_point(env) else provider_of(env)


def _needs_no_entry_point(env: str) -> bool:
    is_included = env in GYMNASIUM_IDS or env in RLLIB_ENVS.values() or env in BULLET_IDS
    has_prefix = ":" in env or pettingzoo_name(env) is not None
    return is_included or has_prefix or is_of_ale(env) or is_minatar(env) or is_minigrid(env)


def is_of_ale(env: str) -> bool:
    """Return whether the Arcade Learning Environment registers an id."""
    newest, older = _ALE.fullmatch(env), _ATARI.fullmatch(env)
    if newest:
        return newest["game"] in ATARI_GAMES and not newest["ram"]
    games = ATARI_GAMES - GAMES_OF_VERSION_5
    return bool(older and older["game"] in games and not older["ram"] and older["speed"] != "Deterministic")


def is_minatar(env: str) -> bool:
    """Return whether an id belongs to the package MinAtar: games of 10x10 pixels."""
    return _MINATAR.fullmatch(env) is not None


def is_minigrid(env: str) -> bool:
    """Return whether an id belongs to the package MiniGrid."""
    return _MINIGRID.fullmatch(env) is not None


def pettingzoo_name(env: str) -> tuple[str | None, str] | None:
    """Return the package and the name of an env of PettingZoo; without a package if its name has none.

    >>> pettingzoo_name("pettingzoo:mpe.simple_spread_v3"), pettingzoo_name("pettingzoo:pistonball_v6")
    (('mpe2', 'simple_spread_v3'), (None, 'pistonball_v6'))
    """
    found = _PETTINGZOO.fullmatch(env)
    if found is None:
        return None
    family = found["family"]
    if family is None:
        return None, found["name"]
    return "mpe2" if family in {"mpe", "mpe2"} else f"pettingzoo.{family}", found["name"]


@dataclass(frozen=True)
class Package:
    """A package that an env needs beside Gymnasium."""

    module: str
    requirement: str
    """The requirement for pip."""


def package_of(env: str) -> Package | None:
    """Return what a current id needs beside Gymnasium; None if nothing, or if it is not known."""
    task = env.rpartition("-")[0]
    found = _ALE.fullmatch(env) or _ATARI.fullmatch(env)
    team, _ = pettingzoo_name(env) or (None, "")
    for is_needed, module, requirement in (
        (found and found["game"] in ATARI_GAMES and env not in GYMNASIUM_IDS, "ale_py", "rlexp[atari]"),
        (task in BOX2D_TASKS, "Box2D", "rlexp[box2d]"),
        (task in MUJOCO_TASKS, "mujoco", "rlexp[mujoco]"),
        (env in BULLET_IDS, "pybullet_envs_gymnasium", "rlexp[pybullet]"),
        (env.startswith(ENVPOOL), "envpool", "rlexp[envpool]"),
        (is_minatar(env), "minatar", "rlexp[minatar]"),
        (is_minigrid(env), "minigrid", "rlexp[minigrid]"),
        (pettingzoo_name(env), (team or "pettingzoo").partition(".")[0], "rlexp[pettingzoo]"),
        (env.startswith(("phys2d/", "tabular/")), "jax", "gymnasium[jax]"),
    ):
        if is_needed:
            return Package(module, requirement)
    provider = brought_by(env)
    return None if provider is None else Package(provider.module.partition(".")[0], provider.package)


def has_continuous_actions(env: str, env_config: Mapping[str, Any]) -> bool:
    """Return whether a current id, made with ``env_config``, is known to have continuous actions."""
    if env in ("CarRacing-v3", "LunarLander-v3"):
        return bool(env_config.get("continuous", env in CONTINUOUS_IDS))
    if env == RLLIB_ENVS["RepeatAfterMeEnv"]:
        return bool((env_config.get("config") or env_config).get("continuous"))
    return env in CONTINUOUS_IDS | BULLET_IDS or env.rpartition("-")[0] in MUJOCO_TASKS


def has_discrete_actions(env: str, env_config: Mapping[str, Any]) -> bool:
    """Return whether a current id, made with ``env_config``, is known to have discrete actions."""
    is_game = is_minatar(env) or (is_of_ale(env) and not env_config.get("continuous"))
    return is_game or (env in (*GYMNASIUM_IDS, *RLLIB_ENVS.values()) and not has_continuous_actions(env, env_config))


def why_unknown(env: str) -> tuple[str, str]:
    """Return the problem of an unknown id, and a hint."""
    if _INSIDE_RLLIB.match(env):
        hint = f"copy it to a module of your own, and name it with --map {env}=package.module:Class"
        return "is a class of RLlib, which rlexp does not have", hint
    if _PETTINGZOO_ID.fullmatch(env):
        name = env.replace("/", ".")
        return "has a name of PettingZoo's form, without the word pettingzoo", f"write env: {PETTINGZOO}{name}"
    if env.endswith(".py"):
        return "is a file", f"name a class in it: {env.removesuffix('.py').replace('/', '.')}:CLASS"
    close = _closest(env[:_LONGEST_COMPARED])
    remedy = f"--import MODULE names what registers it, --map {env}=package.module:Class its class"
    if provided_names():
        remedy += f"; installed packages bring {', '.join(provided_names())}"
    hint = f"did you mean {close}? If not: {remedy}" if close else f"install the package that brings it; or {remedy}"
    return "is not a Gymnasium environment", hint


def _closest(env: str) -> str | None:
    """Return the known id that is most like a name, in any case; the newest version if the name has none.

    >>> _closest("cartpole"), _closest("pong"), _closest("CartPole-v2")
    ('CartPole-v1', 'ALE/Pong-v5', 'CartPole-v1')
    """
    known = {
        **RLLIB_ENVS,
        **{game: f"ALE/{game}-v5" for game in ATARI_GAMES},
        **{f"{game}NoFrameskip-v4": f"{game}NoFrameskip-v4" for game in ATARI_GAMES - GAMES_OF_VERSION_5},
        **{f"{game}NoFrameskip-v4": f"ALE/{game}-v5" for game in GAMES_OF_VERSION_5},
        **{f"ALE/{game}-v5": f"ALE/{game}-v5" for game in ATARI_GAMES},
    }
    for name in sorted(GYMNASIUM_IDS):  # the newest version of a name comes last, and before a game of that name
        known[name] = name
        known[_VERSION.sub("", name)] = name
    by_letters = {_letters(name): name for name in known}
    close = get_close_matches(_letters(env), list(by_letters), n=1, cutoff=_LIKENESS)
    if not close:
        close = get_close_matches(_letters(_VERSION.sub("", env)), list(by_letters), n=1, cutoff=_LIKENESS)
    return known[by_letters[close[0]]] if close else None


def _letters(name: str) -> str:
    """Return a name without capital letters and signs, which are easily written otherwise."""
    return re.sub(r"[\s_-]", "", name).lower()
