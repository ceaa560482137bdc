"""rlexp: reinforcement-learning experiments in YAML, by Ape-X, DQN, PPO, SAC, IMPALA and more, on Ray and PyTorch.

The commands as functions for programs and notebooks: ``load``, ``run``, ``sweep`` and ``resume`` for experiments,
``load_policy`` and ``results`` for their results, ``submit`` and ``join`` for boards. Importing this package loads none
of the libraries that they need.
"""

from __future__ import annotations

from rlexp.api.functions import join, load, load_policy, results, resume, run, submit, sweep

__version__ = "0.1.0"
__all__ = ["__version__", "join", "load", "load_policy", "results", "resume", "run", "submit", "sweep"]
