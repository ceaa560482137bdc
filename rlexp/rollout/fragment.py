"""The steps that a worker records, before they become rows, and the worker's report about them.

Fragments of several workers can be joined to one batch, and their reports to one report, as a gatherer sends them.
Large observations travel as frames: each has a number and is sent once in a batch.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache, reduce
from typing import Any

import numpy as np

from rlexp.errors import TrialError
from rlexp.policy import Outputs
from rlexp.rollout.episodes import Episodes
from rlexp.rollout.filters import Moments
from rlexp.sample_batch import (
    FRAME_IDS_OF,
    OBS,
    Array,
    FrameRows,
    SampleBatch,
    SentRows,
    WrittenRows,
    num_frames,
)

ENV_BITS = 40
"""Number of bits within which the frames of an env are numbered; an env never shows so many."""
MAX_WAITING_BYTES = 2**31
"""Most bytes of observations, and of what the policy made of them, that may wait in a worker."""


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

    @property
    def nbytes(self) -> int:
        """Bytes of its observations and the policy's outputs, which are most of it."""
        return self.obs.nbytes + sum(output.nbytes for output in self.outputs.values())

    def since(self, step: int) -> Fragment:
        """Return the steps from ``step`` on, as views."""
        arrays = self.state()
        outputs = {name: output[step:] for name, output in arrays.pop("outputs").items()}
        return Fragment(**{name: array[step:] for name, array in arrays.items()}, outputs=outputs)

    def state(self) -> dict[str, Any]:
        """Return its arrays by name: ``Fragment(**state)`` is an equal fragment."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @staticmethod
    def join(parts: Sequence[Fragment]) -> Fragment:
        """Return fragments, each recorded right after the one before, as one.

        At a border, one observation has two outputs; the output of the weights that acted on it is kept.
        """
        names = ("actions", "rewards", "terminated", "truncated", "valid")
        return Fragment(
            obs=_overlapping([part.obs for part in parts]),
            **{name: np.concatenate([getattr(part, name) for part in parts]) for name in names},
            outputs={name: _overlapping([part.outputs[name] for part in parts]) for name in parts[-1].outputs},
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


class FramePacker:
    """Replaces a worker's observations by frame numbers, and puts the frames beside the rows that are sent.

    Each channel of an image ``[H, W, K]`` is a frame, since the image may be a stack of frames. Any other observation
    is one frame. Comparing consecutive stacks shows which frames they share, so nothing is assumed about the env:
    stacks that do not overlap share no frames. Between packing and sending, n-step rows hold numbers ``[T + 1, M, K]``
    instead of observations.
    """

    def __init__(self, num_envs: int, whole_episodes: bool = False) -> None:
        """Number the frames of ``num_envs`` envs, which wait for the end of a fragment, or of their episode."""
        self._whole_episodes = whole_episodes
        # Random, so that frames of another worker, or of its predecessor, have other numbers.
        self._first = secrets.randbits(61)
        self._streams = [FrameStream(self._first + (env << ENV_BITS)) for env in range(num_envs)]

    @property
    def nbytes(self) -> int:
        """Bytes of the frames that wait or that later rows may need."""
        return sum(stream.nbytes for stream in self._streams)

    def pack(self, fragment: Fragment) -> Fragment:
        """Return ``fragment`` with the global numbers of its frames as its stream of observations ``[T + 1, M, K]``.

        Raises TrialError if too many frames wait to be sent.
        """
        numbers = [stream.extend(fragment.obs[:, env]) for env, stream in enumerate(self._streams)]
        refuse_too_much_waiting(self.nbytes, self._whole_episodes)
        return replace(fragment, obs=np.stack(numbers, axis=1))

    def send(self, folded: SampleBatch) -> FrameRows:
        """Return the ``folded`` rows of packed fragments with their frames; forget frames that no later row needs.

        In ``folded``, OBS and NEW_OBS (if the fold has it) are global frame numbers; in the rows returned, FRAME_IDS
        and NEW_FRAME_IDS are indices into their frames.
        """
        rows = self._with_frames(folded)
        # An env's rows come in the order of its steps, and no row needs frames older than its first one.
        oldest = np.array([stream.first for stream in self._streams])
        numbers = folded[OBS][:, 0]
        np.maximum.at(oldest, self._env(numbers), numbers)
        for stream, first in zip(self._streams, oldest.tolist(), strict=True):
            stream.forget_before(first)
        return rows

    def state(self) -> dict[str, Any]:
        """Return the frames that wait to be sent, with their numbers."""
        return {"first": self._first, "streams": [stream.state() for stream in self._streams]}

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from what ``state`` returned."""
        self._first = state["first"]
        for stream, frames in zip(self._streams, state["streams"], strict=True):
            stream.load(frames)

    def _with_frames(self, folded: SampleBatch) -> FrameRows:
        frame_ids_of = {obs: ids for obs, ids in FRAME_IDS_OF.items() if obs in folded}
        numbers = np.unique(np.concatenate([folded[obs] for obs in frame_ids_of]))
        indices = {obs: (ids, numbers.searchsorted(folded[obs]).astype(np.int32)) for obs, ids in frame_ids_of.items()}
        shape, dtype = self._streams[0].frame_form
        frames = np.empty((len(numbers), *shape), dtype)
        for place, (env, number) in enumerate(zip(self._env(numbers).tolist(), numbers.tolist(), strict=True)):
            frames[place] = self._streams[env].frame(number)
        return FrameRows(folded.exchange(indices), frames, numbers)

    def _env(self, numbers: Array) -> Array:
        envs: Array = (numbers - self._first) >> ENV_BITS
        return envs


class FrameStream:
    """The frames of an env that later rows may need."""

    def __init__(self, first: int) -> None:
        """Number the frames from ``first`` on."""
        self.first = first
        """Number of the oldest frame held."""
        self._end = first
        self._frames: dict[int, Array] = {}
        self._last: Array = np.empty(0, np.uint8)
        self._last_numbers: list[int] = []
        self._shift = 1

    @property
    def frame_form(self) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Shape and dtype of a frame, once there is one."""
        frame = self._frames[self._end - 1]
        return frame.shape, frame.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the frames held."""
        return len(self._frames) * self._frames[self._end - 1].nbytes

    def extend(self, observations: Array) -> Array:
        """Add the next ``observations [T, ...]``; return the numbers of their frames ``[T, K]``."""
        flat = observations.reshape(len(observations), -1).view(np.uint8)
        numbers = [self._take_in(observation, pixels) for observation, pixels in zip(observations, flat, strict=True)]
        self._last = self._last.copy()  # Copy the frame, so that the whole fragment is not kept.
        return np.array(numbers)

    def frame(self, number: int) -> Array:
        """Return a frame that is held."""
        return self._frames[number]

    def forget_before(self, first: int) -> None:
        """Forget the frames before number ``first``."""
        for number in range(self.first, first):
            del self._frames[number]
        self.first = max(self.first, first)

    def state(self) -> dict[str, Any]:
        """Return the frames held, and the number of the first."""
        return {"first": self.first, "frames": [self._frames[number] for number in range(self.first, self._end)]}

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from what ``state`` returned, as a new stream; the next observation shares no earlier frame."""
        self.first, frames = state["first"], state["frames"]
        self._end = self.first + len(frames)
        self._frames = dict(enumerate(frames, self.first))

    def _take_in(self, observation: Array, flat: Array) -> list[int]:
        """Number the frames of an ``observation`` with the bytes ``flat``."""
        count = num_frames(observation.shape)
        shared = self._num_shared(flat, count, observation.itemsize)
        numbers = self._last_numbers[len(self._last_numbers) - shared :]
        size = observation.shape[-1] // count
        for channel in range(shared * size, observation.shape[-1], size):
            frame = observation[..., channel : channel + size].copy()
            # An episode's first stack has the same frame again and again.
            if not numbers or frame.tobytes() != self._frames[numbers[-1]].tobytes():
                self._frames[self._end] = frame
                self._end += 1
            numbers.append(self._end - 1)
        self._last, self._last_numbers = flat, numbers
        return numbers

    def _num_shared(self, flat: Array, count: int, itemsize: int) -> int:
        """Return how many of the ``count`` frames were the last frames of the previous observation."""
        if not self._last_numbers:
            return 0
        likely = min(self._shift, count - 1)
        for shift in (likely, *(shift for shift in range(count) if shift != likely)):
            if overlaps(self._last, flat, count * itemsize, shift * itemsize):
                self._shift = shift or self._shift
                return count - shift
        return 0


def overlaps(before: Array, after: Array, pixel: int, moved: int) -> bool:
    """Return whether ``after`` is the image ``before`` without the first ``moved`` bytes of each pixel.

    Both have ``pixel`` bytes for each pixel; new bytes were added at the end of each pixel.
    """
    differ: Array = before[moved:] != after[: len(after) - moved]
    differ &= _compared(len(differ), pixel, moved)
    return not differ.any()


@lru_cache
def _compared(length: int, pixel: int, moved: int) -> Array:
    """Return a mask of the image bytes that belong to frames shared with the previous image."""
    return np.arange(length) % pixel < pixel - moved


def refuse_too_much_waiting(num_bytes: int, whole_episodes: bool) -> None:
    """Raise TrialError if a worker's unsent observations take more than MAX_WAITING_BYTES.

    With ``whole_episodes`` they wait for the end of their episode, else they belong to one fragment.
    """
    what, hint = "for one fragment", "lower sample_batch_size or num_envs_per_worker"
    if whole_episodes:
        what = "of episodes that have not ended (batch_mode: complete_episodes)"
        hint = "set horizon, lower num_envs_per_worker, or use batch_mode: truncate_episodes"
    if num_bytes > MAX_WAITING_BYTES:
        raise TrialError(f"a rollout worker holds {num_bytes / 1e9:.1f} GB of observations {what}", hint)
