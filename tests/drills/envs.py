"""Envs with something wrong with them."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from tests.envs import Array, EndlessEnv


class WrongShape(EndlessEnv):
    """Shows one number less than its space says."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        obs, info = super().reset(seed=seed, options=options)
        return np.zeros(len(obs) - 1, obs.dtype), info


class WithPassword(EndlessEnv):
    """Needs a password."""

    def __init__(self, password: str) -> None:
        super().__init__()
        self._needed = bool(password)


class SlowOnce(EndlessEnv):
    """Takes ``step_s`` for a step; in the one process that is the first to leave the file ``claim``, ``slow_s``."""

    def __init__(self, claim: str, step_s: float, slow_s: float) -> None:
        super().__init__()
        self._step_s = slow_s if _is_first(Path(claim)) else step_s

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        time.sleep(self._step_s)
        return super().step(action)


def _is_first(claim: Path) -> bool:
    """Whether this process, a rollout worker, is the one that holds ``claim``."""
    if b"RolloutWorker" not in Path("/proc/self/cmdline").read_bytes():  # others make envs as well, to look at them
        return False
    try:
        descriptor = os.open(claim, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    except FileExistsError:
        return claim.read_text(encoding="utf-8") == str(os.getpid())
    os.write(descriptor, str(os.getpid()).encode())
    os.close(descriptor)
    return True
