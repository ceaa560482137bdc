"""The steps that a worker records, before they become rows, and the worker's report about them.

Fragments of several workers can be joined to one batch, and their reports to one report, as a gatherer sends them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import reduce
from typing import Any

import numpy as np

from rlexp.policy import Outputs
from rlexp.rollout.episodes import Episodes
from rlexp.rollout.filters import Moments
from rlexp.sample_batch import FRAME_IDS_OF, Array, FrameRows, SampleBatch, SentRows, WrittenRows


@dataclass(frozen=True)
class Fragment:
    """``T`` consecutive steps of ``M`` envs, time-major.

    One stream of observations serves every step: the observation after step t is ``obs[t + 1]``. The vector env resets
    on the step after an episode's end, so ``obs[t + 1]`` is also the true last observation. The resetting step is not a
    transition: its ``valid`` is False.
    """

    obs: Array
    """Observations ``[T + 1, M, ...]``."""
    actions: Array
    """Actions ``[T, M, ...]``, of the action space's shape and dtype."""
    rewards: Array
    """Rewards ``[T, M]``, float32, as the learner sees them."""
    terminated: Array
    """``[T, M]`` bool: the episode ended here, and no value follows."""
    truncated: Array
    """``[T, M]`` bool: the episode was truncated here, and later states still have a value."""
    valid: Array
    """``[T, M]`` bool: an env step, not the reset between two episodes."""
    outputs: Outputs = field(default_factory=dict)
    """The policy's outputs for each observation, ``[T + 1, M, ...]`` by name."""

    @property
    def num_steps(self) -> int:
        """Steps ``T``."""
        return len(self.actions)

    def since(self, step: int) -> Fragment:
        """Return the steps from ``step`` on, as views."""
        return Fragment(
            self.obs[step:],
            self.actions[step:],
            self.rewards[step:],
            self.terminated[step:],
            self.truncated[step:],
            self.valid[step:],
            {name: output[step:] for name, output in self.outputs.items()},
        )

    def state(self) -> dict[str, Any]:
        """Return its arrays by name: ``Fragment(**state)`` is an equal fragment."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @staticmethod
    def join(parts: Sequence[Fragment]) -> Fragment:
        """Return fragments, each recorded right after the one before, as one.

        At a border, one observation has two outputs; the output of the weights that acted on it is kept.
        """
        return Fragment(
            _overlapping([part.obs for part in parts]),
            np.concatenate([part.actions for part in parts]),
            np.concatenate([part.rewards for part in parts]),
            np.concatenate([part.terminated for part in parts]),
            np.concatenate([part.truncated for part in parts]),
            np.concatenate([part.valid for part in parts]),
            {name: _overlapping([part.outputs[name] for part in parts]) for name in parts[-1].outputs},
        )


def _overlapping(parts: Sequence[Array]) -> Array:
    """Join arrays ``[T + 1, M, ...]``; the last item of each array is the first item of the next."""
    return np.concatenate([*(part[:-1] for part in parts[:-1]), parts[-1]])


@dataclass(frozen=True)
class SampleTime:
    """Seconds that it took to make a sample."""

    total_s: float = 0.0
    acting_s: float = 0.0
    """Seconds in which the policy chose actions."""
    stepping_s: float = 0.0
    """Seconds in which the envs stepped."""
    folding_s: float = 0.0
    """Seconds in which steps became transitions with priorities."""

    @staticmethod
    def sum(parts: Iterable[SampleTime]) -> SampleTime:
        """Return the time of all parts together."""
        total_s = acting_s = stepping_s = folding_s = 0.0
        for part in parts:
            total_s += part.total_s
            acting_s += part.acting_s
            stepping_s += part.stepping_s
            folding_s += part.folding_s
        return SampleTime(total_s, acting_s, stepping_s, folding_s)


@dataclass(frozen=True)
class SampleInfo:
    """A worker's small report about a batch, apart from the batch, which can be sent by reference."""

    worker_index: int
    num_rows: int
    """Transitions in the batch."""
    num_env_steps: int
    """Env steps taken. It differs from ``num_rows`` by steps that wait for n-step successors or their episode's end."""
    episodes: Episodes
    weights_version: int
    """Number of learner updates that the weights of its last step include."""
    time: SampleTime
    """The time in which the batch was made."""
    observed: Moments | None = None
    """Moments of the raw observations; None without a filter."""
    shard: int | None = None
    """The replay shard for which the rows were already written; None: any shard may take them."""
    num_weight_reads: int | None = None
    """How often the worker read newer weights from shared memory; None if weights are sent to it."""


def whole_rows(sent: SentRows) -> SampleBatch:
    """Return rows with their observations in full."""
    assert not isinstance(sent, WrittenRows)
    return sent.stacks() if isinstance(sent, FrameRows) else sent


def join_rows(parts: Sequence[SentRows]) -> SampleBatch | FrameRows:
    """Return the rows of ``parts`` in order as one batch, each frame once. ValueError for rows of different kinds."""
    plain = [part for part in parts if isinstance(part, SampleBatch)]
    framed = [part for part in parts if isinstance(part, FrameRows)]
    if len(plain) == len(parts):
        return SampleBatch.concat(plain)
    if len(framed) == len(parts):
        return _join_frame_rows(framed)
    kind = "that are written already" if any(isinstance(part, WrittenRows) for part in parts) else "of several kinds"
    raise ValueError(f"rows {kind} cannot be joined")


def join_infos(infos: Sequence[SampleInfo]) -> SampleInfo:
    """Return one report about all of ``infos``, which may be empty. It leaves out each worker's observed moments.

    Its weights have the mean age of the weights over all env steps.
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
    """Return one report about fragments of one worker, with its observed moments and its number of weight reads."""
    reads = [info.num_weight_reads for info in infos if info.num_weight_reads is not None]
    return replace(
        join_infos(infos),
        observed=join_observed(infos).get(infos[0].worker_index),
        num_weight_reads=sum(reads) if reads else None,
    )


def join_observed(infos: Sequence[SampleInfo]) -> dict[int, Moments]:
    """Return the observed moments in all of ``infos``, by worker."""
    observed: dict[int, list[Moments]] = {}
    for info in infos:
        if info.observed is not None:
            observed.setdefault(info.worker_index, []).append(info.observed)
    return {index: reduce(Moments.merged, moments) for index, moments in observed.items()}


def _join_frame_rows(parts: Sequence[FrameRows]) -> FrameRows:
    """Join rows of frames; the last frames of a worker's fragment are the first frames of its next one."""
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
    """Return ``rows`` with their frames renumbered to ``places [F]``."""
    columns = {ids: places[rows[ids]].astype(rows[ids].dtype) for ids in FRAME_IDS_OF.values() if ids in rows}
    return rows.with_columns(**columns)
