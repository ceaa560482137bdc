"""Large observations on their way from the envs to replay: each frame has a number and is sent once in a batch."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from rlexp.rollout.folds import refuse_too_much_waiting
from rlexp.rollout.fragment import Fragment
from rlexp.sample_batch import FRAME_IDS_OF, OBS, Array, FrameRows, SampleBatch, num_frames

ENV_BITS = 40
"""Number of bits within which the frames of an env are numbered; an env never shows so many."""


class FramePacker:
    """Replaces a worker's observations by frame numbers, and puts the frames beside the rows that are sent.

    Each channel of an image ``[H, W, K]`` is a frame, since the image may be a stack of frames. Any other observation
    is one frame. Comparing consecutive stacks shows which frames they share, so nothing is assumed about the env:
    stacks that do not overlap share no frames. Between packing and sending, n-step rows hold numbers ``[T + 1, M, K]``
    instead of observations.
    """

    def __init__(self, num_envs: int, refuse_waiting: Callable[[int], None]) -> None:
        """Number the frames of ``num_envs`` envs; ``refuse_waiting`` raises TrialError if too many bytes wait."""
        self._refuse_waiting = refuse_waiting
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
        self._refuse_waiting(self.nbytes)
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


def refuse_large_fragment(num_bytes: int) -> None:
    """Raise TrialError if the frames of a fragment take too many bytes."""
    refuse_too_much_waiting(num_bytes, "for one fragment", "lower sample_batch_size or num_envs_per_worker")


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
