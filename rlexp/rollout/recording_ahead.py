"""Records the next fragment while the worker folds and sends the last one (``sample_async``)."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from rlexp.policy import Weights
from rlexp.rollout.filters import Moments
from rlexp.rollout.recorder import Recorder, Recording


class RecordingAhead:
    """A Recorder whose own thread works one fragment ahead, never more.

    The thread handles requests in order, so weights and filters change between two fragments: the
    one in progress when they arrive is finished with the old ones.
    """

    def __init__(self, recorder: Recorder) -> None:
        """Own ``recorder``: from now on, only the thread touches it."""
        self._recorder = recorder
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="recorder")
        self._ahead: Future[Recording] | None = None
        self._changes: list[Future[None]] = []

    def record(self, num_steps_sampled: int) -> Recording:
        """Return the fragment that was in progress, and begin the next one; raises what recording it raised."""
        ahead = self._ahead or self._begin(num_steps_sampled)
        self._ahead = None
        # No bound: like a call to the env itself, it lasts as long as the env's steps do.
        recording = ahead.result()
        self._raise_errors_of_changes()
        self._ahead = self._begin(num_steps_sampled + recording.num_env_steps)
        return recording

    def set_weights(self, version: int, weights: Weights) -> None:
        self._changes.append(self._thread.submit(self._recorder.set_weights, version, weights))

    def set_filter(self, moments: Moments) -> None:
        self._changes.append(self._thread.submit(self._recorder.set_filter, moments))

    def state(self) -> dict[str, Any] | None:
        """Return None: a fragment is in progress."""
        return None

    def load(self, state: Mapping[str, Any]) -> bool:
        """Return False: there is no state of it."""
        return False

    def stop(self) -> None:
        self._thread.shutdown(cancel_futures=True)
        self._recorder.stop()

    def _begin(self, num_steps_sampled: int) -> Future[Recording]:
        return self._thread.submit(self._recorder.record, num_steps_sampled)

    def _raise_errors_of_changes(self) -> None:
        done = [change for change in self._changes if change.done()]
        self._changes = [change for change in self._changes if not change.done()]
        for change in done:
            change.result()
