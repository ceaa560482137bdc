"""n-step transitions: a fold for agents that bootstrap from Q-values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlexp.rollout.fragment import Fragment
from rlexp.sample_batch import ACTIONS, DISCOUNTS, NEW_OBS, OBS, REWARDS, SampleBatch, new


@dataclass(frozen=True)
class NStep:
    """A Fold that sums up the rewards of up to ``n_step`` steps; the learner bootstraps from the last one."""

    n_step: int
    gamma: float

    @property
    def lookahead(self) -> int:
        return self.n_step - 1

    def rows(self, stream: Fragment, num_starts: int) -> SampleBatch:
        """Return one row for each valid step ``t < num_starts``.

        A row that folds m <= n steps (fewer where the episode ends) has
        REWARDS = sum_{k<m} gamma^k r_{t+k}, NEW_OBS = the observation after step t + m - 1, and
        DISCOUNTS = gamma^m, or 0 where the episode terminated: the loss bootstraps with
        ``REWARDS + DISCOUNTS * q(NEW_OBS)``. Truncation bootstraps (Pardo et al. 2018); the folded return is
        equation 2 of Horgan et al. (2018) with the true number of steps. Each output of the policy is a column
        under its name for OBS, and under ``new(name)`` for NEW_OBS.
        """
        shape = (num_starts, stream.valid.shape[1])
        returns = np.zeros(shape, np.float32)
        folded = np.zeros(shape, np.intp)
        alive = stream.valid[:num_starts].copy()
        bootstraps = np.ones(shape, bool)
        for k in range(min(self.n_step, stream.num_steps)):
            # Starts so late that the stream does not reach k steps further are no longer alive.
            window, starts = slice(k, k + num_starts), slice(0, stream.num_steps - k)
            discounted = np.float32(self.gamma**k) * stream.rewards[window]
            returns[starts] += np.where(alive[starts], discounted, np.float32(0))
            folded[starts] += alive[starts]
            bootstraps[starts] &= ~(alive[starts] & stream.terminated[window])
            alive[starts] &= ~(stream.terminated[window] | stream.truncated[window])
        steps, envs = np.nonzero(stream.valid[:num_starts])
        folded = folded[steps, envs]
        ends = steps + folded
        columns = {
            OBS: stream.obs[steps, envs],
            ACTIONS: stream.actions[steps, envs],
            REWARDS: returns[steps, envs],
            DISCOUNTS: np.where(bootstraps[steps, envs], self.gamma**folded, 0.0).astype(np.float32),
            NEW_OBS: stream.obs[ends, envs],
        }
        for name, output in stream.outputs.items():
            columns |= {name: output[steps, envs], new(name): output[ends, envs]}
        return SampleBatch(columns)
