"""SourceGroup: a trial's own workers and its joined actors, as one source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlexp.policy import Weights
from rlexp.rollout.filters import Moments
from rlexp.rollout.source import Sample, SampleSource


class SourceGroup:
    """A SampleSource of several, for optimizers that take whatever has arrived; owns them."""

    def __init__(self, sources: Sequence[SampleSource]) -> None:
        self.sources = tuple(sources)

    @property
    def num_weight_syncs(self) -> int:
        return sum(source.num_weight_syncs for source in self.sources)

    @property
    def num_worker_restarts(self) -> int:
        return sum(source.num_worker_restarts for source in self.sources)

    @property
    def num_in_flight(self) -> int:
        return sum(source.num_in_flight for source in self.sources)

    @property
    def has_waiting(self) -> bool:
        return any(source.has_waiting for source in self.sources)

    def poll(self, num_steps_sampled: int, wanted: int | None = None) -> list[Sample]:
        """Poll each; the first ones are asked for all that is ``wanted``."""
        samples: list[Sample] = []
        for source in self.sources:
            samples += source.poll(num_steps_sampled, None if wanted is None else wanted - len(samples))
        return samples

    def wait(self, timeout: float) -> bool:
        """Wait with an equal share of ``timeout`` for each, in turn, until something may have come to one."""
        share_s = timeout / len(self.sources)
        waits = [source.wait(share_s) for source in self.sources]
        return any(waits)

    def weights_wanted(self) -> bool:
        return any(source.weights_wanted() for source in self.sources)

    def publish(self, version: int, weights: Weights) -> None:
        for source in self.sources:
            source.publish(version, weights)

    def set_filter(self, moments: Moments) -> None:
        for source in self.sources:
            source.set_filter(moments)

    def state(self) -> dict[str, Any]:
        return {
            "num_weight_syncs": self.num_weight_syncs,
            "sources": {type(source).__name__: source.state() for source in self.sources},
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from the state of a group; that of another source is of no use."""
        for source in self.sources:
            own_state = state.get("sources", {}).get(type(source).__name__)
            if own_state is not None:
                source.load(own_state)

    def drain_events(self) -> list[str]:
        return [event for source in self.sources for event in source.drain_events()]

    def stop(self) -> None:
        for source in self.sources:
            source.stop()
