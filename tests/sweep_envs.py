"""Environments of which one value raises, one yields NaN and one hangs: what a sweep must outlive."""

from __future__ import annotations

import time
from typing import Any

from tests.envs import Array, EndlessEnv

FATEFUL_ENV = "tests.sweep_envs:FatefulEnv"


class FatefulEnv(EndlessEnv):
    """Episodes of ten steps that pay 1 each; at its hundredth step it meets its ``fate``."""

    def __init__(self, fate: str = "none", pay: float = 1.0) -> None:
        super().__init__()
        self._fate, self._pay = fate, pay
        self._steps_left = 100

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        obs, _, _, _, info = super().step(action)
        self._steps_left -= 1
        is_due = self._steps_left <= 0
        if is_due and self._fate == "raise":
            raise RuntimeError("this env raises")
        if is_due and self._fate == "hang":
            time.sleep(3600)
        reward = float("nan") if is_due and self._fate == "nan" else self._pay
        return obs, reward, self._step >= 10, False, info
