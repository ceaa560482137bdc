"""AtariRules: what an Atari env's id and its ``env_config`` say about how its game is played."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MAX_NOOPS = 30
"""Frames at most that a game runs before the agent plays, so that games begin differently."""
FRAME_SKIP = 4
"""Frames that an action lasts, where the env's id does not say so itself."""
FRAMES_PER_SECOND = 60
"""Of the console."""

GAME_OVER = "game_over"
"""In the info of every step and reset: whether a whole game is over, not only a life."""
GAME_SCORE = "game_score"
"""Then: the sum of its rewards, unclipped, over all lives; else 0."""
GAME_STEPS = "game_steps"
"""Then: the steps it lasted; else 0."""


@dataclass(frozen=True)
class AtariRules:
    """How an Atari game is played under ``preprocessor_pref: deepmind``."""

    skip: int | None
    """Frames that an action lasts, the last two of which are seen; None: the env skips a random number itself."""
    max_steps: int | None
    """Steps after which a game is cut; None: never."""
    env_arguments: Mapping[str, Any]
    """Arguments of ale-py's env, which shows every frame unless ``skip`` is None, and never cuts a game."""


def atari_rules(id_arguments: Mapping[str, Any], env_config: Mapping[str, Any], horizon: int | None) -> AtariRules:
    """Return the rules of a game whose id stands for ``id_arguments``, cut after ``horizon`` steps if not before.

    >>> atari_rules({"frameskip": 1}, {}, None).skip, atari_rules({"frameskip": 3}, {}, None).skip
    (4, 3)
    """
    arguments = {**id_arguments, **env_config, "obs_type": "grayscale"}
    skip = arguments.get("frameskip", FRAME_SKIP)
    if not isinstance(skip, int):
        return AtariRules(None, horizon, arguments)
    skip = FRAME_SKIP if skip == 1 else skip
    max_frames = arguments.get("max_num_frames_per_episode") or None
    limits = [limit for limit in (horizon, max_frames and -(-max_frames // skip)) if limit is not None]
    arguments |= {"frameskip": 1, "max_num_frames_per_episode": 0}
    return AtariRules(skip, min(limits, default=None), arguments)


def steps_per_second(frameskip: int | tuple[int, int]) -> float:
    """Return how many steps of ``frameskip`` frames, or of a random number from [low, high), a second of play has."""
    frames = frameskip if isinstance(frameskip, int) else (frameskip[0] + frameskip[1] - 1) / 2
    return FRAMES_PER_SECOND / frames
