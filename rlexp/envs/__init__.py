"""Environments: from the name in an experiment file to a vector env that a worker steps.

Base classes for users' own classes are imported from here, all else from the files.
"""

from rlexp.envs.wrappers import Preprocessor

__all__ = ["Preprocessor"]
