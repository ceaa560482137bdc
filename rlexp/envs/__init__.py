"""Environments: from the name in an experiment file to a vector env that a worker steps."""

from rlexp.envs.make import EnvConfig, make_env, make_vector_env
from rlexp.envs.spaces import check_spaces

__all__ = ["EnvConfig", "check_spaces", "make_env", "make_vector_env"]
