"""Where an optimizer's samples come from: workers in this process, in other processes, later in other networks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from rlexp.policy import Weights
from rlexp.rollout.filters import Moments
from rlexp.rollout.worker import FragmentInfo
from rlexp.sample_batch import SentRows
from rlexp.task_pool import Ref


@dataclass(frozen=True)
class Sample:
    """A batch of new transitions, by reference, and what is told about it."""

    batch: Ref[SentRows]
    info: FragmentInfo


class SampleSource(Protocol):
    """Delivers batches of transitions and takes newer weights; owned by one thread."""

    @property
    def num_weight_syncs(self) -> int:
        """How often a worker was given newer weights."""
        ...

    @property
    def num_worker_restarts(self) -> int:
        """How often a worker was replaced that had died, hung or failed."""
        ...

    def poll(self, num_steps_sampled: int) -> list[Sample]:
        """Return the batches that have arrived, and keep the workers busy.

        ``num_steps_sampled`` (env steps of all workers) is what the workers' schedules go by.
        """
        ...

    def weights_wanted(self) -> bool:
        """Whether a worker has acted long enough with its weights to be given newer ones."""
        ...

    def publish(self, version: int, weights: Weights) -> None:
        """Offer weights; each worker gets them when it is due. Versions grow."""
        ...

    def set_filter(self, moments: Moments) -> None:
        """Let every worker standardise observations by ``moments``, from one of its next fragments on."""
        ...

    def state(self) -> dict[str, Any]:
        """Return what the next samples depend on but weights, as far as that can be told."""
        ...

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from what the ``state`` of a source like this one returned; call it before the first ``poll``."""
        ...

    def drain_events(self) -> list[str]:
        """Return what happened to workers since the last call that a user should know, a sentence each."""
        ...

    def stop(self) -> None:
        """Stop the workers; idempotent."""
        ...
