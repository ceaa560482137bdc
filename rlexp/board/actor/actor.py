"""JoinedActor: plays one seat of a task, from its claim until the task ends, the seat is lost, or it is stopped."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from rlexp.board.actor.outbox import Outbox, SeatEnd, WeightsFeed
from rlexp.board.messages.credentials import ActorKeys
from rlexp.board.messages.envelope import Header
from rlexp.board.messages.payloads import TRAINER, Shapes, seal_fragment
from rlexp.board.servers.board import Board, Seat
from rlexp.config.keys.board import BoardConfig
from rlexp.rollout.evaluation import ShouldStop
from rlexp.rollout.fragment import SampleInfo
from rlexp.rollout.worker import RolloutWorker
from rlexp.sample_batch import FrameRows, SampleBatch, WrittenRows

DRAIN_S: Final = 10.0
"""Seconds that a stopped actor waits until the trainer has the next one of its last fragments."""
LOOK_S: Final = 0.1
"""Seconds of one wait, after which it checks whether it must stop."""


@dataclass(frozen=True)
class ActorFigures:
    """The counters of an actor so far."""

    seat: int
    num_env_steps: int
    num_fragments: int
    """Fragments that were sent for the first time."""
    num_sent_again: int
    num_bytes: int
    num_dropped: int
    """Fragments that were dropped, since another actor had the seat."""
    num_waiting: int
    """Fragments in the window, which the trainer has not confirmed."""
    window: int
    weights_version: int
    wait_share: float
    """Share of the time since its start during which the window had no room."""
    seconds: float
    is_connected: bool
    mean_return: float | None
    """Mean return of the episodes that ended since the last report; None if there were none."""
    weights_refusal: str = ""
    """Why weights on the board were last refused; empty if none were."""


Report = Callable[[ActorFigures], Any]


class JoinedActor:
    """Owns a worker and an outbox; used by one thread."""

    def __init__(
        self,
        board: Board,
        seat: Seat,
        config: BoardConfig,
        keys: ActorKeys,
        make_worker: Callable[[Seat], RolloutWorker],
        weights_shapes: Shapes | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Keep ``seat``, which was claimed, from now on.

        Messages are signed and verified with ``keys``. ``weights_shapes`` are the shapes of the acting network's
        weights; None: they are not compared.
        """
        self._seat, self._keys, self._clock = seat, keys, clock
        self._feed = WeightsFeed(board, seat.task_id, keys, int(config.max_weights_mb * 1e6), weights_shapes)
        self._outbox = Outbox(board, seat, self._feed, config, clock)
        self._make_worker = make_worker
        self._began_s = clock()
        self._waited_s = 0.0
        self._num_env_steps = 0
        self._version: int | None = None
        self._trainer_epoch = -1
        self._steps_of_all = 0
        self._returns: list[float] = []

    def run(self, should_stop: ShouldStop, report: Report) -> SeatEnd:
        """Play until the end and return its reason.

        ``report`` is called after each fragment, while the window has no room, and while the first weights are refused.
        ``should_stop`` is called at least once in LOOK_S and once per fragment. Raises errors of the env and the board.
        """
        self._outbox.start()
        try:
            if self._wait_for_weights(should_stop, report):
                worker = self._make_worker(self._seat)
                try:
                    self._play(worker, should_stop, report)
                finally:
                    worker.stop()
            self._outbox.check()
            if self._outbox.end is None:
                self._outbox.drain(DRAIN_S)
        finally:
            self._outbox.close()
        self._outbox.check()
        return self._outbox.end or SeatEnd.STOPPED

    def figures(self) -> ActorFigures:
        window, seconds = self._outbox.window, max(self._clock() - self._began_s, 1e-9)
        returns, self._returns = self._returns, []
        return ActorFigures(
            seat=self._seat.index,
            num_env_steps=self._num_env_steps,
            num_fragments=window.num_sent,
            num_sent_again=window.num_sent_again,
            num_bytes=self._outbox.num_bytes,
            num_dropped=self._outbox.num_dropped,
            num_waiting=window.num_kept,
            window=window.size,
            weights_version=-1 if self._version is None else self._version,
            wait_share=self._waited_s / seconds,
            seconds=seconds,
            is_connected=self._outbox.is_connected,
            mean_return=sum(returns) / len(returns) if returns else None,
            weights_refusal=self._feed.refusal,
        )

    def _wait_for_weights(self, should_stop: ShouldStop, report: Report) -> bool:
        while not self._feed.wait(LOOK_S):
            if self._feed.refusal:
                report(self.figures())
            self._outbox.check()
            if self._outbox.end is not None or should_stop():
                return False
        return True

    def _play(self, worker: RolloutWorker, should_stop: ShouldStop, report: Report) -> None:
        while self._wait_for_room(should_stop, report):
            self._take_weights(worker)  # the newest ones: no fragment waits here for room
            rows, info = worker.sample(self._steps_of_all)
            assert not isinstance(rows, WrittenRows)  # a joined actor shares no memory with replay
            self._steps_of_all += info.num_env_steps
            self._num_env_steps += info.num_env_steps
            self._returns += info.episodes.returns.tolist()
            if self._outbox.put(partial(self._seal, rows, info)):
                report(self.figures())

    def _take_weights(self, worker: RolloutWorker) -> None:
        newer = self._feed.newest(self._version)
        if newer is None:
            return
        worker.set_weights(newer.version, newer.weights)
        if newer.moments is not None:
            worker.set_filter(newer.moments)
        self._version, self._trainer_epoch = newer.version, newer.epoch
        self._steps_of_all = max(self._steps_of_all, newer.num_steps_sampled)

    def _wait_for_room(self, should_stop: ShouldStop, report: Report) -> bool:
        """Return whether a fragment may be played: True once the window has room, False if playing ends."""
        while self._outbox.end is None and not should_stop():
            started = self._clock()
            has_room = self._outbox.wait_for_room(LOOK_S)
            self._waited_s += self._clock() - started
            if has_room:
                return True
            report(self.figures())
        return False

    def _seal(self, rows: SampleBatch | FrameRows, info: SampleInfo, number: int) -> list[bytes]:
        seat, keys = self._seat, self._keys
        weights = {TRAINER: self._trainer_epoch}
        header = Header(seat.task_id, seat.index, seat.epoch, number, info=weights, actor=keys.actor)
        return seal_fragment(header, rows, info, keys.key, self._outbox.max_message_bytes)
