"""Rows with large observations that come without frames, taken apart: from a state of stacks, say."""

from __future__ import annotations

import numpy as np

from rlexp.sample_batch import (
    FRAME_IDS,
    NEW_FRAME_IDS,
    NEW_OBS,
    OBS,
    Array,
    FrameRows,
    SampleBatch,
    has_frames,
    num_frames,
)


def is_large(batch: SampleBatch) -> bool:
    """Return whether a batch has observations that are made of frames."""
    return OBS in batch and NEW_OBS in batch and has_frames(batch[OBS].shape[1:], batch[OBS].dtype)


def taken_apart(batch: SampleBatch, number: int) -> FrameRows:
    """Return the rows of ``batch [B]`` with frames, equal ones once; they are numbered from ``number`` on downwards."""
    apart = frames_of(np.concatenate([batch[OBS], batch[NEW_OBS]]))
    frames = apart.reshape(-1, *apart.shape[2:])
    known: dict[bytes, int] = {}
    first_equal = [known.setdefault(frame.tobytes(), place) for place, frame in enumerate(frames)]
    kept, places = np.unique(np.array(first_equal, np.intp), return_inverse=True)
    ids, new_ids = places.reshape(2, len(batch), apart.shape[1])
    rows = batch.exchange({OBS: (FRAME_IDS, ids), NEW_OBS: (NEW_FRAME_IDS, new_ids)})
    return FrameRows(rows, frames[kept], number - np.arange(len(kept), dtype=np.int64))


def frames_of(observations: Array) -> Array:
    """Return the frames ``[B, K, ..., C]`` that ``observations [B, ..., K C]`` are made of."""
    *shape, channels = observations.shape
    count = num_frames(observations.shape[1:])
    return np.moveaxis(observations.reshape(*shape, count, channels // count), -2, 1)
