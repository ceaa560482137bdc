"""n-step transitions: a fold for agents that bootstrap from Q-values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlexp.n_step_returns import n_step_returns
from rlexp.rollout.fragment import Fragment
from rlexp.sample_batch import ACTIONS, DISCOUNTS, NEW_OBS, OBS, REWARDS, Array, SampleBatch, new


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
        returns, num_folded, bootstraps = n_step_returns(stream, num_starts, self.n_step, self.gamma)
        if self._is_unbroken(stream, num_starts):
            return self._unbroken_rows(stream, returns)
        steps, envs = np.nonzero(stream.valid[:num_starts])
        folded = num_folded[steps, envs]
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

    def _is_unbroken(self, stream: Fragment, num_starts: int) -> bool:
        """Return whether each of the first steps has a row, and each row folds ``n_step`` steps without an end."""
        if num_starts == 0 or num_starts + self.lookahead > stream.num_steps:
            return False
        if np.count_nonzero(stream.terminated) or np.count_nonzero(stream.truncated):
            return False
        return bool(np.count_nonzero(stream.valid[:num_starts]) == num_starts * stream.valid.shape[1])

    def _unbroken_rows(self, stream: Fragment, returns: Array) -> SampleBatch:
        """Return what ``rows`` does of such steps: neighbours in the stream, so views of it instead of copies."""
        num_starts, count = len(returns), returns.size

        def starts(column: Array, first: int = 0) -> Array:
            return column[first : first + num_starts].reshape(count, *column.shape[2:])

        columns = {
            OBS: starts(stream.obs),
            ACTIONS: starts(stream.actions),
            REWARDS: returns.reshape(count),
            DISCOUNTS: np.full(count, self.gamma**self.n_step, np.float32),
            NEW_OBS: starts(stream.obs, self.n_step),
        }
        for name, output in stream.outputs.items():
            columns |= {name: starts(output), new(name): starts(output, self.n_step)}
        return SampleBatch(columns)
