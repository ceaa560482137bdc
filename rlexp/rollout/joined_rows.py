"""Fragments of several workers as one batch: what a gatherer stores, and what it reports about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

import numpy as np

from rlexp.rollout.episodes import Episodes
from rlexp.rollout.filters import Moments
from rlexp.rollout.fragment import SampleInfo, SampleTime
from rlexp.sample_batch import FRAME_IDS_OF, FrameRows, SampleBatch, SentRows, WrittenRows


def join_rows(parts: Sequence[SentRows]) -> SampleBatch | FrameRows:
    """Return the rows of ``parts`` in order as one batch, each frame once; ValueError for rows of different kinds."""
    plain = [part for part in parts if isinstance(part, SampleBatch)]
    framed = [part for part in parts if isinstance(part, FrameRows)]
    if len(plain) == len(parts):
        return SampleBatch.concat(plain)
    if len(framed) == len(parts):
        return _join_frame_rows(framed)
    kind = "that are written already" if any(isinstance(part, WrittenRows) for part in parts) else "of several kinds"
    raise ValueError(f"rows {kind} cannot be joined")


def join_infos(infos: Sequence[SampleInfo]) -> SampleInfo:
    """Return one report about all of ``infos``, or about nothing; without what each worker observed.

    Its weights are as old as those of an env step are on average.
    """
    steps = np.array([info.num_env_steps for info in infos])
    versions = np.array([info.weights_version for info in infos])
    return SampleInfo(
        worker_index=infos[0].worker_index if infos else 0,
        num_rows=sum(info.num_rows for info in infos),
        num_env_steps=int(steps.sum()),
        episodes=Episodes.join([info.episodes for info in infos]),
        weights_version=int(np.average(versions, weights=np.maximum(steps, 1))) if infos else 0,
        time=SampleTime.sum(info.time for info in infos),
    )


def join_reports_of_worker(infos: Sequence[SampleInfo]) -> SampleInfo:
    """Return one report about fragments of one worker, with what it observed and how often it read weights."""
    reads = [info.num_weight_reads for info in infos if info.num_weight_reads is not None]
    return replace(
        join_infos(infos),
        observed=join_observed(infos).get(infos[0].worker_index),
        num_weight_reads=sum(reads) if reads else None,
    )


def join_observed(infos: Sequence[SampleInfo]) -> dict[int, Moments]:
    """Return by worker what was observed in all of ``infos``."""
    observed: dict[int, list[Moments]] = {}
    for info in infos:
        if info.observed is not None:
            observed.setdefault(info.worker_index, []).append(info.observed)
    return {index: reduce(Moments.merged, moments) for index, moments in observed.items()}


def _join_frame_rows(parts: Sequence[FrameRows]) -> FrameRows:
    """Join rows of frames; the last frames of a worker's fragment are the first ones of its next one."""
    if len(parts) == 1:
        return parts[0]
    numbers, first, places = np.unique(
        np.concatenate([part.numbers for part in parts]), return_index=True, return_inverse=True
    )
    starts = np.cumsum([0, *(len(part.frames) for part in parts[:-1])]).tolist()
    rows = [_renumbered(part.rows, places[start:]) for part, start in zip(parts, starts, strict=True)]
    frames = np.concatenate([part.frames for part in parts])[first]
    return replace(parts[0], rows=SampleBatch.concat(rows), frames=frames, numbers=numbers)


def _renumbered(rows: SampleBatch, places: np.ndarray) -> SampleBatch:
    """Return ``rows`` whose frames are at ``places [F]`` now."""
    columns = {ids: places[rows[ids]].astype(rows[ids].dtype) for ids in FRAME_IDS_OF.values() if ids in rows}
    return rows.with_columns(**columns)
