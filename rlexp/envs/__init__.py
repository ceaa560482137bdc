"""Environments: from the name in an experiment file to a vector env that a worker steps."""

from rlexp.config.keys.env_ids import has_game_frames, is_atari
from rlexp.envs.atari import GAME_OVER, GAME_SCORE, GAME_STEPS
from rlexp.envs.checked_env import given_env
from rlexp.envs.env_check import EPISODES, EnvCheck, check_first_steps
from rlexp.envs.make import Env, action_grid, make_env, make_filmed_env, make_vector_env, spaces_of
from rlexp.envs.own_spaces import OwnSpaces, playable_config
from rlexp.envs.registry import EnvConfig, FrameConfig, env_config_of
from rlexp.envs.spaces import (
    ActionBounds,
    check_spaces,
    is_byte_vector,
    is_continuous,
    observation_bytes,
    observation_shape,
)
from rlexp.envs.wrappers import Preprocessor, is_image

__all__ = [
    "EPISODES",
    "GAME_OVER",
    "GAME_SCORE",
    "GAME_STEPS",
    "ActionBounds",
    "Env",
    "EnvCheck",
    "EnvConfig",
    "FrameConfig",
    "OwnSpaces",
    "Preprocessor",
    "action_grid",
    "check_first_steps",
    "check_spaces",
    "env_config_of",
    "given_env",
    "has_game_frames",
    "is_atari",
    "is_byte_vector",
    "is_continuous",
    "is_image",
    "make_env",
    "make_filmed_env",
    "make_vector_env",
    "observation_bytes",
    "observation_shape",
    "playable_config",
    "spaces_of",
]
