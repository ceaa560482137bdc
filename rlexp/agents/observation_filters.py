"""The agent's side of ``observation_filter``: what all workers observed, merged, shared and kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from rlexp.config.keys.common import CommonConfig
from rlexp.errors import UsageError
from rlexp.rollout.evaluation import ActingPolicy
from rlexp.rollout.filters import Moments, ObservedMoments, StandardisingPolicy
from rlexp.rollout.fragment import SampleInfo
from rlexp.rollout.source import SampleSource
from rlexp.sample_batch import Array

GROUP = "filters"
"""The group of a checkpoint's arrays that holds them."""
IMAGE_RANK = 3


class ObservationFilters:
    """Owns the moments of what the workers have observed; does nothing under ``NoFilter``.

    Each fragment reports what was observed in it, so these moments are always those of the steps
    that ``num_steps_sampled`` counts, and no worker has to be called.
    """

    def __init__(
        self,
        config: CommonConfig,
        observation_space: gym.Space[Any],
        arrays: Mapping[str, Mapping[str, Array]],
        num_players: int | None = None,
    ) -> None:
        """Begin with nothing seen, or with what the ``arrays`` of a checkpoint hold; raises UsageError for images.

        Workers and joined actors together are ``num_players``; None: there are workers only.
        """
        self._observed: ObservedMoments | None = None
        if config.observation_filter == "NoFilter":
            return
        shape = observation_space.shape or ()
        if len(shape) == IMAGE_RANK and observation_space.dtype == np.uint8:
            raise UsageError(
                f"observation_filter {config.observation_filter} does not suit images {shape}",
                "use observation_filter: NoFilter; networks scale the bytes of images themselves",
            )
        self._observed = ObservedMoments(num_players or config.num_workers, shape, config.synchronize_filters)
        if GROUP in arrays:
            self._observed.load(arrays[GROUP])

    def of_worker(self, worker_index: int) -> Moments | None:
        """Return what a worker's filter begins with; None: it has no filter."""
        return None if self._observed is None else self._observed.of_worker(worker_index)

    def add(self, infos: Iterable[SampleInfo]) -> None:
        """Count what was observed in new fragments."""
        for info in infos:
            if self._observed is not None and info.observed is not None:
                self._observed.add(info.worker_index, info.observed)

    def synchronize(self, source: SampleSource) -> None:
        """Give all workers the merged moments, where they share them; called once per iteration."""
        if self._observed is not None and self._observed.shared:
            source.set_filter(self._observed.of_all())

    def applied_to(self, policy: ActingPolicy) -> ActingPolicy:
        """Return ``policy`` as it has to see the observations of an evaluation."""
        moments = self.of_evaluations()
        return policy if moments is None else StandardisingPolicy(policy, moments)

    def of_evaluations(self) -> Moments | None:
        """Return what evaluations standardise observations by; None: they leave them as they are."""
        return None if self._observed is None else self._observed.of_all()

    def arrays(self) -> dict[str, dict[str, Array]]:
        """Return what a checkpoint has to hold."""
        return {} if self._observed is None else {GROUP: self._observed.state()}
