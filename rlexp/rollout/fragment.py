"""What a worker records while it steps its envs, before it becomes transitions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from rlexp.sample_batch import Array


@dataclass(frozen=True)
class Fragment:
    """``T`` consecutive steps of ``M`` envs, time-major.

    One stream of observations serves every step: the observation after step t is ``obs[t + 1]``. Because
    the vector env resets on the step after an episode's end, that is also the episode's true last
    observation; the resetting step itself is no transition and has ``valid`` False.
    """

    obs: Array
    """Observations ``[T + 1, M, ...]``."""
    actions: Array
    """Actions ``[T, M]``."""
    rewards: Array
    """Rewards ``[T, M]``, float32, as the learner shall see them."""
    terminated: Array
    """``[T, M]`` bool: the episode ended here, and no value follows."""
    truncated: Array
    """``[T, M]`` bool: the episode was cut here; the value of what follows still counts."""
    valid: Array
    """``[T, M]`` bool: a real env step, not the reset between two episodes."""
    outputs: Array | None = None
    """What the policy saw in each observation ``[T + 1, M, ...]``, where its ``postprocess`` wants to know."""

    @property
    def num_steps(self) -> int:
        """Steps ``T``."""
        return len(self.actions)

    def since(self, step: int) -> Fragment:
        """Return the steps from ``step`` on, as views."""
        return Fragment(
            self.obs[step:],
            self.actions[step:],
            self.rewards[step:],
            self.terminated[step:],
            self.truncated[step:],
            self.valid[step:],
            None if self.outputs is None else self.outputs[step:],
        )

    def state(self) -> dict[str, Any]:
        """Return its arrays by their names: ``Fragment(**state)`` is an equal one."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def followed_by(self, later: Fragment) -> Fragment:
        """Return this fragment and the one recorded right after it as one."""
        return Fragment.join([self, later])

    @staticmethod
    def join(parts: Sequence[Fragment]) -> Fragment:
        """Return fragments, each recorded right after the one before, as one."""
        *earlier, last = parts
        return Fragment(
            np.concatenate([*(part.obs[:-1] for part in earlier), last.obs]),
            np.concatenate([part.actions for part in parts]),
            np.concatenate([part.rewards for part in parts]),
            np.concatenate([part.terminated for part in parts]),
            np.concatenate([part.truncated for part in parts]),
            np.concatenate([part.valid for part in parts]),
            _joined_outputs([part.outputs for part in parts if part.outputs is not None]),
        )


def _joined_outputs(parts: Sequence[Array]) -> Array | None:
    """Return outputs of consecutive fragments as one; at a border, those of the weights that acted there stay."""
    return np.concatenate([*(part[:-1] for part in parts[:-1]), parts[-1]]) if parts else None
