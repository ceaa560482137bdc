"""n-step returns of a stream of steps: what the folds of workers and of the replay library have in common."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from rlexp.sample_batch import Array


class Steps(Protocol):
    """``T`` consecutive steps of ``M`` envs, time-major."""

    @property
    def rewards(self) -> Array:
        """Rewards ``[T, M]``, floats."""
        ...

    @property
    def terminated(self) -> Array:
        """``[T, M]`` bool: the episode ended here, and no value follows."""
        ...

    @property
    def truncated(self) -> Array:
        """``[T, M]`` bool: the episode was cut here; the value of what follows still counts."""
        ...

    @property
    def valid(self) -> Array:
        """``[T, M]`` bool: a real env step, not the reset between two episodes."""
        ...


class NStepReturns(NamedTuple):
    """For each of the first ``S`` steps of a stream, what the steps from there on sum up to."""

    returns: Array
    """``[S, M]``, of the rewards' dtype: sum_{k<m} gamma^k r_{t+k}."""
    num_folded: Array
    """``[S, M]`` intp: the m steps that were summed up, at most n; 0 where step t is not valid."""
    bootstraps: Array
    """``[S, M]`` bool: whether the value after them counts, as the episode did not terminate in them."""


def n_step_returns(steps: Steps, num_starts: int, n_step: int, gamma: float) -> NStepReturns:
    """Sum up the rewards of up to ``n_step`` steps from each of the first ``num_starts``, never beyond an episode.

    Equation 2 of Horgan et al. (2018), with the true number of steps.
    """
    rewards, num_steps = steps.rewards, len(steps.rewards)
    shape = (num_starts, rewards.shape[1])
    returns = np.zeros(shape, rewards.dtype)
    num_folded = np.zeros(shape, np.intp)
    alive = steps.valid[:num_starts].copy()
    bootstraps = np.ones(shape, bool)
    ended = steps.terminated | steps.truncated
    has_ends = np.count_nonzero(ended) > 0
    for k in range(min(n_step, num_steps)):
        # Starts so late that the stream does not reach k steps further are no longer alive.
        window, starts = slice(k, k + num_starts), slice(0, num_steps - k)
        still = alive[starts]
        summed, folded = returns[starts], num_folded[starts]
        np.add(summed, rewards[window] * rewards.dtype.type(gamma**k), out=summed, where=still)
        folded += still
        if has_ends:
            bootstraps[starts] &= ~(still & steps.terminated[window])
            still &= ~ended[window]
    return NStepReturns(returns, num_folded, bootstraps)
