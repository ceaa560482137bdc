"""n-step transitions: folds a worker's stream of steps into rows that the replay can hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlexp.rollout.fragment import Fragment
from rlexp.sample_batch import ACTIONS, DISCOUNTS, NEW_OBS, NEW_OUTPUTS, OBS, OUTPUTS, REWARDS, SampleBatch


class NStepAccumulator:
    """Turns consecutive fragments into n-step transitions; owned by one worker.

    The last n - 1 steps of a fragment wait for the next one, so that no row is folded short at a
    fragment's border, none is lost and none appears twice.
    """

    def __init__(self, n_step: int, gamma: float) -> None:
        self._n_step = n_step
        self._gamma = gamma
        self._waiting: Fragment | None = None

    def push(self, fragment: Fragment) -> SampleBatch:
        """Return the transitions that are complete now, at most ``T * M`` of them (none at first, if T < n)."""
        stream = fragment if self._waiting is None else self._waiting.followed_by(fragment)
        num_starts = max(stream.num_steps - self._n_step + 1, 0)
        self._waiting = stream.since(num_starts)
        return n_step_transitions(stream, num_starts, self._n_step, self._gamma)

    def state(self) -> dict[str, Any]:
        """Return the steps that wait."""
        return {"waiting": None if self._waiting is None else self._waiting.state()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from what ``state`` returned."""
        self._waiting = None if state["waiting"] is None else Fragment(**state["waiting"])


def n_step_transitions(stream: Fragment, num_starts: int, n_step: int, gamma: float) -> SampleBatch:
    """Fold rows that start at steps ``0 .. num_starts - 1`` of every env, in time-major order.

    For a row that starts at t and folds m <= n steps (fewer where the episode ends):
    REWARDS = sum_{k<m} gamma^k r_{t+k}, NEW_OBS = the observation after step t + m - 1, and
    DISCOUNTS = gamma^m, or 0 where the episode terminated: the loss bootstraps with
    ``REWARDS + DISCOUNTS * q(NEW_OBS)``. Truncation bootstraps (Pardo et al. 2018); the folded return is
    equation 2 of Horgan et al. (2018) with the true number of steps. OUTPUTS and NEW_OUTPUTS are what the
    policy saw in OBS and NEW_OBS, where the stream tells.

    After its start, a row needs ``n_step - 1`` more steps of the stream, or the end of its episode.
    """
    shape = (num_starts, stream.actions.shape[1])
    returns = np.zeros(shape, np.float32)
    folded = np.zeros(shape, np.intp)
    alive = stream.valid[:num_starts].copy()
    bootstraps = np.ones(shape, bool)
    for k in range(min(n_step, stream.num_steps)):
        # Starts so late that the stream does not reach k steps further are no longer alive.
        window, starts = slice(k, k + num_starts), slice(0, stream.num_steps - k)
        returns[starts] += np.where(alive[starts], np.float32(gamma**k) * stream.rewards[window], np.float32(0))
        folded[starts] += alive[starts]
        bootstraps[starts] &= ~(alive[starts] & stream.terminated[window])
        alive[starts] &= ~(stream.terminated[window] | stream.truncated[window])
    steps, envs = np.nonzero(stream.valid[:num_starts])
    folded = folded[steps, envs]
    ends = steps + folded
    seen = stream.outputs
    return SampleBatch(
        {
            OBS: stream.obs[steps, envs],
            ACTIONS: stream.actions[steps, envs],
            REWARDS: returns[steps, envs],
            DISCOUNTS: np.where(bootstraps[steps, envs], gamma**folded, 0.0).astype(np.float32),
            NEW_OBS: stream.obs[ends, envs],
            **({} if seen is None else {OUTPUTS: seen[steps, envs], NEW_OUTPUTS: seen[ends, envs]}),
        }
    )
