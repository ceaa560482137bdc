"""An env that fails. Its module imports ray, as a user's may, before the driver has set a Ray of its own up."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import ray  # noqa: F401

from tests.lab.envs import Array, EndlessEnv


class FailsOnceEnv(EndlessEnv):
    """Fails at its hundredth step and leaves the file ``failed``; where that is there already, only if ``always``.

    ``how`` is ``raise``, ``hang``, ``die`` with its whole process, or ``nan``, which pays a reward of that; or
    ``close``: it does not fail in a step, but hangs in ``close``.
    """

    def __init__(self, failed: str, always: bool = False, how: str = "raise") -> None:
        super().__init__()
        self._failed, self._always, self._how = Path(failed), always, how
        self._steps_left = 100

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self._steps_left -= 1
        if self._steps_left == 0 and self._how != "close" and (self._always or not self._failed.exists()):
            self._failed.touch()
            if self._how == "hang":
                threading.Event().wait()
            if self._how == "die":
                os.abort()
            if self._how == "nan":
                obs, _, terminated, truncated, info = super().step(action)
                return obs, float("nan"), terminated, truncated, info
            raise RuntimeError("this env fails")
        return super().step(action)

    def close(self) -> None:
        if self._how == "close" and self._always:
            threading.Event().wait()


class RecordedProcessEnv(EndlessEnv):
    """Writes after a hundred steps which process plays it into ``file``, and how it ends.

    ``how`` is ``well``, ``raise`` in the next step, or ``die`` with its process in ``close``.
    """

    def __init__(self, file: str, how: str = "well") -> None:
        super().__init__()
        self._file, self._how = Path(file), how
        self._steps_left = 100

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self._steps_left -= 1
        if self._steps_left == 0:
            with self._file.open("a") as file:
                file.write(f"{os.getpid()} {self._how}\n")
            if self._how == "raise":
                raise RuntimeError("this env fails")
        return super().step(action)

    def close(self) -> None:
        if self._steps_left <= 0 and self._how == "die":
            os.kill(os.getpid(), signal.SIGKILL)
