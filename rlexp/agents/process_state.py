"""What envs and libraries can change for a whole process, so that a process can train one trial after another."""

from __future__ import annotations

import os
import random
import warnings

import numpy as np
import torch


class ProcessState:
    """Owns the state that a process had when this was made; a trial's process makes one before its first agent.

    State in modules of the user's own is not part of it: only a new process imports them anew.
    """

    def __init__(self) -> None:
        self._folder = os.getcwd()
        self._environment = dict(os.environ)
        self._numpy_errors = np.geterr()
        self._dtype = torch.get_default_dtype()
        self._num_threads = torch.get_num_threads()
        self._has_gradients = torch.is_grad_enabled()
        self._is_deterministic = torch.are_deterministic_algorithms_enabled()
        self._warnings = warnings.catch_warnings()
        self._warnings.__enter__()

    def restore(self) -> None:
        """Set all of it as it was; the generators of Python, NumPy and PyTorch get new seeds, as in a new process."""
        os.chdir(self._folder)
        self._restore_environment()
        self._warnings.__exit__(None, None, None)
        self._warnings = warnings.catch_warnings()
        self._warnings.__enter__()
        np.seterr(**self._numpy_errors)
        torch.set_default_dtype(self._dtype)
        torch.set_num_threads(self._num_threads)
        torch.set_grad_enabled(self._has_gradients)
        if torch.are_deterministic_algorithms_enabled() != self._is_deterministic:  # the next call imports a compiler
            torch.use_deterministic_algorithms(self._is_deterministic)
        random.seed()
        np.random.seed()
        torch.seed()
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.empty_cache()

    def _restore_environment(self) -> None:
        for name in os.environ.keys() - self._environment.keys():
            del os.environ[name]
        for name, value in self._environment.items():
            if os.environ.get(name) != value:
                os.environ[name] = value
