"""What a worker records while it steps its envs, before it becomes transitions."""

from __future__ import annotations

from dataclasses import dataclass

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
        )

    def followed_by(self, later: Fragment) -> Fragment:
        """Return this fragment and the one recorded right after it as one."""
        return Fragment(
            np.concatenate([self.obs[:-1], later.obs]),
            np.concatenate([self.actions, later.actions]),
            np.concatenate([self.rewards, later.rewards]),
            np.concatenate([self.terminated, later.terminated]),
            np.concatenate([self.truncated, later.truncated]),
            np.concatenate([self.valid, later.valid]),
        )
