"""DeviceBatch: a batch some of whose columns are tensors on the learner's device."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from rlexp.sample_batch import Array, SampleBatch


class DeviceBatch(SampleBatch):
    """Rows of replay whose observations were gathered where they are learned from; only a learner reads ``tensors``."""

    __slots__ = ("tensors",)

    def __init__(self, columns: Mapping[str, Array], tensors: Mapping[str, Tensor]) -> None:
        """Take the columns in this process's memory, and ``tensors [B, ...]``, by name."""
        super().__init__(columns)
        self.tensors = dict(tensors)

    def with_columns(self, **columns: Array) -> SampleBatch:
        """Return a batch with the given columns added or replaced, and the same tensors."""
        return DeviceBatch({**self.columns, **columns}, self.tensors)
