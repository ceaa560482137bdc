"""Envs with something wrong with them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from tests.lab.envs import Array, EndlessEnv


class WithPassword(EndlessEnv):
    """Needs a password."""

    def __init__(self, password: str) -> None:
        super().__init__()
        self._needed = bool(password)


class Paced(EndlessEnv):
    """Takes ``step_s`` for a step. Each observation has the number of its player, and how many steps came before."""

    def __init__(self, step_s: float) -> None:
        super().__init__()
        self._step_s = step_s

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        time.sleep(self._step_s)
        return super().step(action)


class SlowOnce(Paced):
    """Takes ``step_s`` for a step; in the one process that is the first to leave the file ``claim``, ``slow_s``."""

    def __init__(self, claim: str, step_s: float, slow_s: float) -> None:
        super().__init__(slow_s if _is_first(Path(claim)) else step_s)


class Versioned(EndlessEnv):
    """Pays as much as the environment variable ``DRILL_VERSION`` says: another version of an env on another machine."""

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        obs, _, terminated, truncated, info = super().step(action)
        return obs, float(os.environ.get("DRILL_VERSION", "1")), terminated, truncated, info


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


class Flooding(EndlessEnv):
    """Prints 100 kB to stdout and to stderr in every step, by Python and past it."""

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        line = "x" * 999 + "\n"
        for _ in range(50):
            print(line, end="")
            print(line, end="", file=sys.stderr)
            os.write(1, line.encode())
            os.write(2, line.encode())
        return super().step(action)


class Crowded(EndlessEnv):
    """Starts a thread and two processes that never end: one with another environment, one in a session of its own."""

    def __init__(self) -> None:
        super().__init__()
        threading.Thread(target=threading.Event().wait).start()
        words = [sys.executable, "-c", "import time; time.sleep(600)"]
        mark = {name: value for name, value in os.environ.items() if name == "RLEXP_DRILL"}  # so that the drill sees it
        self._processes = [subprocess.Popen(words, env=mark), subprocess.Popen(words, start_new_session=True)]


class SlowToReset(EndlessEnv):
    """Needs 20 seconds for the first reset in each process that trains."""

    has_slept = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        if not SlowToReset.has_slept and b"ray::" in Path("/proc/self/cmdline").read_bytes():
            SlowToReset.has_slept = True
            time.sleep(20)
        return super().reset(seed=seed, options=options)


class HangingInClose(EndlessEnv):
    """Never returns from ``close`` once it has played ``steps``."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self._steps_left = steps

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self._steps_left -= 1
        return super().step(action)

    def close(self) -> None:
        if self._steps_left <= 0:
            threading.Event().wait()


class Matching(gym.Env[Any, Any]):
    """Pays 1 for the action that the observation names, in episodes of 20 steps: 20 is the best return."""

    observation_space = gym.spaces.Box(0.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)
    STEPS, STEP_S = 20, 0.002

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self._left = self.STEPS
        return self._shown(), {}

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        time.sleep(self.STEP_S)
        reward = float(action == self._wanted)
        self._left -= 1
        return self._shown(), reward, self._left == 0, False, {}

    def _shown(self) -> Array:
        self._wanted = int(self.np_random.integers(2))
        return np.array([self._wanted == 0, self._wanted == 1], np.float32)
