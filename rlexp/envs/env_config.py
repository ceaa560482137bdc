"""EnvConfig: which env is played and how it is prepared, as an experiment says it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rlexp.config.keys.common import ActionScaling, CommonConfig, PlayableActions
from rlexp.config.keys.env_ids import has_game_frames, is_atari
from rlexp.config.keys.model import ATARI_DIM
from rlexp.config.keys.user_code import NO_MODULES, UserClass, UserModules, modules_of

ATARI_FRAME_SHAPE = (210, 160, 3)
FLAGS_OF_THE_REGISTRY = frozenset({"nondeterministic"})
"""What files of RLlib 2 pass to Atari games: Gym's registry knew it, no game was changed by it, ale-py refuses it."""


@dataclass(frozen=True)
class FrameConfig:
    """How the frames of envs that show images, bytes ``[H, W, C]``, are prepared.

    Atari games under ``deepmind`` get all of :mod:`rlexp.envs.atari`. Other Atari frames are scaled, other images
    only to a given ``dim``; both are made grey under ``rllib`` where asked for. The torso scales the bytes to numbers.
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

        As in RLlib, unscaled Atari frames are known by their shape.
        """
        if self.dim is None and shape != ATARI_FRAME_SHAPE:
            return shape[0], shape[1]
        return self.atari_dim, self.atari_dim


@dataclass(frozen=True)
class EnvConfig:
    """Which env, and how it is made."""

    env: str
    """A Gymnasium id, ``module:id`` (Gymnasium imports the module first), ``package.module:Class``, an env or vector
    env, the id of a package's entry point, or EnvPool's task ``envpool:Pong-v5``."""
    env_config: Mapping[str, Any]
    """Keyword arguments of the env."""
    horizon: int | None
    """Steps after which an episode is cut (a truncation); never longer than the env's own limit."""
    modules: UserModules = NO_MODULES
    """The user's own modules: which to import first, and where they and the env's class are looked for."""
    frames: FrameConfig | None = None
    """How images are prepared; None: as the env gives them."""
    actions: PlayableActions | None = None
    """The action spaces that can be played; None: any."""
    discretize_actions: int | None = None
    """Actions per dimension that stand for continuous ones; None: actions are the env's own."""
    continuous_actions: ActionScaling | None = None
    """How continuous actions that stay so are brought within the env's bounds; None: the env gets them as chosen."""
    wrappers: tuple[UserClass, ...] = ()
    """Wrappers of the user's own, the innermost first."""
    preprocessor: UserClass | None = None
    """The user's own preparation of observations."""
    num_threads: int = 1
    """Threads that step a vector env, where it has threads of its own (Atari)."""

    @property
    def has_user_parts(self) -> bool:
        """Whether classes of the user's own change what the env shows, pays or takes."""
        return bool(self.wrappers) or self.preprocessor is not None

    @property
    def named_modules(self) -> tuple[str, ...]:
        """The modules that its names make a process import."""
        parts = (*self.wrappers, *([] if self.preprocessor is None else [self.preprocessor]))
        return (*modules_of(self.env), *(part.name.partition(":")[0] for part in parts))

    @property
    def is_deepmind_atari(self) -> bool:
        """Whether it is an Atari game to be prepared as in Mnih et al. 2015; a game's memory cannot be."""
        deepmind = self.frames is not None and self.frames.preprocessing == "deepmind"
        return deepmind and has_game_frames(self.env, self.env_config)


def env_config_of(env: str, config: CommonConfig, modules: UserModules) -> EnvConfig:
    """Return how ``env`` is made for an experiment with ``config`` that may import ``modules``.

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
    )
