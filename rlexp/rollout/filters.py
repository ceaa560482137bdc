"""Running mean and deviation of observations, with which ``MeanStdFilter`` standardises what a policy sees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from rlexp.rollout.evaluation import ActingPolicy, WrappedPolicy
from rlexp.sample_batch import Array

LARGEST_DEVIATION = 10.0
"""Bound of standardised observations. Without it, the first change of a constant element would be unbounded."""
SMALLEST_SCALE = 1e-8
"""Added to each deviation, so that the divisor of a constant element is not 0."""


@dataclass(frozen=True, eq=False)
class Moments:
    """How many observations were seen, and per element their mean and squared deviations; float64 throughout.

    Sums of squares are never subtracted from each other, so values with a large mean keep their variance.
    """

    count: int
    mean: Array
    """Mean ``[...]``."""
    squares: Array
    """Sum of the squared deviations from the mean ``[...]``."""

    @staticmethod
    def none(shape: tuple[int, ...]) -> Moments:
        """Return the moments of no observations of ``shape``."""
        return Moments(0, np.zeros(shape), np.zeros(shape))

    @staticmethod
    def of(observations: Array) -> Moments:
        """Return the moments of ``observations [N, ...]``, N > 0."""
        mean = observations.mean(axis=0, dtype=np.float64)
        return Moments(len(observations), mean, np.square(observations - mean).sum(axis=0))

    def merged(self, other: Moments) -> Moments:
        """Return the moments of both sets of observations together (Chan et al. 1979, equation 2.1)."""
        count = self.count + other.count
        if count == 0:
            return self
        share = other.count / count
        difference = other.mean - self.mean
        squares = self.squares + other.squares + np.square(difference) * (self.count * share)
        return Moments(count, self.mean + difference * share, squares)

    def state(self) -> dict[str, Any]:
        """Return a dict from which ``Moments(**state)`` makes an equal object."""
        return {"count": self.count, "mean": self.mean, "squares": self.squares}

    @property
    def deviation(self) -> Array:
        """Standard deviation ``[...]`` of the sample; 1 before there are two observations."""
        return np.sqrt(self.squares / (self.count - 1)) if self.count > 1 else np.ones_like(self.mean)

    def standardise(self, obs: Array) -> Array:
        """Return ``obs [B, ...]`` standardised, as float32; unchanged if nothing was observed yet.

        An action mask, which has no moments, does not change.
        """
        if self.count == 0:
            return obs.astype(np.float32)
        if obs.shape[1:] != self.mean.shape:
            standardised = self.standardise(obs[:, : len(self.mean)])
            return np.concatenate([standardised, obs[:, len(self.mean) :]], axis=1, dtype=np.float32)
        standardised = (obs - self.mean) / (self.deviation + SMALLEST_SCALE)
        return standardised.clip(-LARGEST_DEVIATION, LARGEST_DEVIATION).astype(np.float32)


class MeanStdFilter:
    """Standardises what one worker observes; owned by its recorder.

    At first it uses the moments of its own observations; each observation is counted before it is standardised. Once it
    was given the moments that all workers share, it uses only the newest of those. ``drain`` sends its own observations
    to the shared moments, so that each is counted once.
    """

    def __init__(self, moments: Moments) -> None:
        """Begin with ``moments``: empty ones, or the moments of a checkpoint."""
        self._moments = moments
        self._is_shared = False
        self._observed = Moments.none(moments.mean.shape)

    def __call__(self, obs: Array, is_new: Array | None = None) -> Array:
        """Observe ``obs [M, ...]``, those that are ``is_new [M]`` (None: all), and return all standardised."""
        shape, seen = self._moments.mean.shape, obs if is_new is None else obs[is_new]
        new = Moments.of(seen if obs.shape[1:] == shape else seen[:, : shape[0]])
        self._observed = self._observed.merged(new)
        if not self._is_shared:
            self._moments = self._moments.merged(new)
        return self._moments.standardise(obs)

    def share(self, moments: Moments) -> None:
        """Use the shared ``moments`` of all workers from now on."""
        self._moments = moments
        self._is_shared = True

    def drain(self) -> Moments:
        """Return the moments of what was observed since the last call."""
        observed, self._observed = self._observed, Moments.none(self._observed.mean.shape)
        return observed

    def state(self) -> dict[str, Any]:
        """Return the moments in use, and the moments of the observations since the last ``drain``."""
        return {
            "moments": self._moments.state(),
            "is_shared": self._is_shared,
            "observed": self._observed.state(),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from what ``state`` returned."""
        self._moments, self._observed = Moments(**state["moments"]), Moments(**state["observed"])
        self._is_shared = state["is_shared"]


class ObservedMoments:
    """The moments that an agent's workers observed, shared by all or kept for each worker; part of its checkpoints."""

    def __init__(self, num_workers: int, shape: tuple[int, ...], shared: bool) -> None:
        """Begin with empty moments for observations of ``shape``."""
        self.shared = shared
        self._moments = [Moments.none(shape)] * (1 if shared else max(num_workers, 1))

    def of_worker(self, worker_index: int) -> Moments:
        """Return the moments that the filter of this worker uses."""
        return self._moments[0 if self.shared else worker_index]

    def add(self, worker_index: int, observed: Moments) -> None:
        """Add the moments that a worker observed."""
        index = 0 if self.shared else worker_index
        self._moments[index] = self._moments[index].merged(observed)

    def of_all(self) -> Moments:
        """Return the moments of all observations, which evaluations use."""
        return reduce(Moments.merged, self._moments)

    def state(self) -> dict[str, Array]:
        """Return arrays for a checkpoint: ``count [W]``, ``mean [W, ...]``, ``squares [W, ...]``."""
        return {
            "count": np.array([moments.count for moments in self._moments]),
            "mean": np.stack([moments.mean for moments in self._moments]),
            "squares": np.stack([moments.squares for moments in self._moments]),
        }

    def load(self, state: Mapping[str, Array]) -> None:
        """Continue from ``state``; if its number of filters differs, each begins with the moments of all."""
        rows = zip(state["count"].tolist(), state["mean"], state["squares"], strict=True)
        loaded = [Moments(count, mean, squares) for count, mean, squares in rows]
        same_number = len(loaded) == len(self._moments)
        self._moments = loaded if same_number else [reduce(Moments.merged, loaded)] * len(self._moments)


class StandardisingPolicy(WrappedPolicy):
    """A policy that standardises observations with fixed moments, for evaluations."""

    def __init__(self, policy: ActingPolicy, moments: Moments) -> None:
        super().__init__(policy)
        self._policy = policy
        self._moments = moments

    def compute_actions(self, obs: Array) -> Array:
        """Return the actions ``[B]``."""
        return self._policy.compute_actions(self._moments.standardise(obs))
