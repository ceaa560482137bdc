"""BoardSource: the samples of actors that join a trial over a board, wherever they are.

A SeatWatch reports who joined, left or was lost. A SourceGroup joins it and the trial's own workers into one source.
BoardSeats, which a trial's agent is given, makes both.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rlexp.agents.workers import PlayedTrial
from rlexp.board.messages.basics import Task
from rlexp.board.messages.credentials import signed_task
from rlexp.board.messages.payloads import Newer, WeightPrecision
from rlexp.board.servers.board import SeatHolder
from rlexp.board.task import board_keys_of, describe_trial
from rlexp.board.trainer.admission import admission_rules
from rlexp.board.trainer.inbox import Inbox
from rlexp.board.trainer.link import BoardLink, BoardState
from rlexp.board.trainer.thread import BoardThread
from rlexp.cluster.pool.pool import TaskPool
from rlexp.config.keys.board import BoardConfig
from rlexp.config.keys.common import CommonConfig
from rlexp.errors import TrialError
from rlexp.policy import Weights
from rlexp.rollout.filters import Moments
from rlexp.rollout.source import Sample, SampleSource

RELEASED_EARLIER_S: Final = 0.5
"""A lease that ends this many seconds before its time was given back."""
SAMPLES_PER_SEAT: Final = 4
"""Most fragments that one poll returns for each seat: the learner is fed between two polls."""
FETCHED_BYTES_PER_S: Final = 50e6
"""Most bytes per second of weights for all actors: half of a 1 Gbit/s link, as fragments need the rest."""
HOW_TO_JOIN: Final = "start actors with rlexp join and the board's address"


class SeatWatch:
    """Compares each answer of the board with the previous one; owned by one source."""

    def __init__(self) -> None:
        self.num_lost = 0
        """Number of leases that expired."""
        self.num_actors = 0
        """Number of seats that were held at the board's last answer."""
        self._holders: dict[int, SeatHolder] = {}
        self._events: list[str] = []
        self._num_beats = 0
        self._answered_s = 0.0

    def learn(self, state: BoardState) -> None:
        """Take the newest answer, unless it was taken before."""
        if state.num_beats == self._num_beats:
            return
        elapsed_s = state.answered_s - self._answered_s
        for holder in state.seats:
            self._compare(self._holders.get(holder.index), holder, elapsed_s)
        self._holders = {holder.index: holder for holder in state.seats}
        self.num_actors = sum(holder.left_s > 0 for holder in state.seats)
        self._num_beats, self._answered_s = state.num_beats, state.answered_s

    def drain_events(self) -> list[str]:
        events, self._events = self._events, []
        return events

    def _compare(self, before: SeatHolder | None, now: SeatHolder, elapsed_s: float) -> None:
        was_held = before is not None and before.left_s > 0
        same = before is not None and (before.epoch, before.member) == (now.epoch, now.member)
        if was_held and before is not None and not (same and now.left_s > 0):
            if before.left_s - elapsed_s > RELEASED_EARLIER_S:
                self._events.append(f"actor {before.member} has left seat {before.index}")
            else:
                self.num_lost += 1
                self._events.append(f"actor {before.member} is lost: no beat from seat {before.index} within its lease")
        if now.left_s > 0 and not (same and was_held):
            self._events.append(f"actor {now.member} has joined: seat {now.index}")


class BoardSource:
    """A SampleSource whose workers are elsewhere, join and leave, and get no requests.

    They send whenever their windows have room. Fragments that are not polled wait with them, so that none is dropped.
    """

    def __init__(
        self,
        pool: TaskPool,
        thread: BoardThread,
        inbox: Inbox,
        config: BoardConfig,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start at once; the source owns ``thread``."""
        self.num_weight_syncs = 0
        self._pool, self._thread, self._inbox, self._config, self._clock = pool, thread, inbox, config, clock
        self._watch = SeatWatch()
        self._has_begun = config.min_actors == 0
        self._made_s = clock()
        self._precision = WeightPrecision(config.weights_dtype)
        self._moments: Moments | None = None
        self._offered: tuple[int, Weights] | None = None
        self._published_s = -math.inf
        self._num_steps_sampled = 0
        self._num_seen = 0
        self._was_connected = False
        thread.start()

    @property
    def num_worker_restarts(self) -> int:
        """Number of leases that expired."""
        return self._watch.num_lost

    num_in_flight = 0

    @property
    def has_waiting(self) -> bool:
        return self._has_begun and self._thread.has_messages

    def poll(self, num_steps_sampled: int, wanted: int | None = None) -> list[Sample]:
        self._num_steps_sampled = max(num_steps_sampled, self._num_steps_sampled)
        self._send_weights_when_due()
        self._watch.learn(self._thread.state)
        self._check_actors()
        limit = SAMPLES_PER_SEAT * self._config.actors if wanted is None else self._room(wanted)
        messages = self._thread.take(limit if self._has_begun else 0)
        inbox = self._inbox
        taken = inbox.open(messages, self._thread.state)
        self._thread.put_received(inbox.got(), inbox.banned, names_are_missing=inbox.num_waiting > 0)
        return [Sample(self._pool.keep(rows), info) for rows, info in taken]

    def _room(self, wanted: int) -> int:
        """Return how many fragments are taken if ``wanted`` more will not be too old, with those in actors' windows.

        Each taken one lets its actor play another, so the windows stay full.
        """
        held = self._watch.num_actors * self._config.window
        return max(wanted - held, min(wanted, 1))

    def wait(self, timeout: float) -> bool:
        """Return when a message has arrived since the last call, or a call of the pool has completed.

        Messages that wait for a poll do not end further waits, as the optimizer may be unable to store their rows.
        """
        seen, self._num_seen = self._num_seen, self._thread.num_received
        if self._num_seen > seen:
            return True
        if not self._pool.wait(timeout):
            self._thread.wait(self._num_seen, timeout)
        return True

    @property
    def weights_period_s(self) -> float:
        """Seconds between two versions of the weights: more if all actors together would fetch too much."""
        fetched = self._thread.weights.num_bytes * self._watch.num_actors
        return max(self._config.weights_period_s, fetched / FETCHED_BYTES_PER_S)

    def weights_wanted(self) -> bool:
        return self._clock() - self._published_s >= self.weights_period_s

    def publish(self, version: int, weights: Weights) -> None:
        """Send ``weights`` once their period has begun, unless newer ones have come by then."""
        self._offered = version, weights
        self._send_weights_when_due()

    def _send_weights_when_due(self) -> None:
        if self._offered is None or not self.weights_wanted():
            return
        (version, weights), self._offered = self._offered, None
        self._published_s = self._clock()
        self._inbox.publish(version)
        self.num_weight_syncs += max(self._watch.num_actors, 1)
        rounded = self._precision.rounded(weights)
        self._thread.put_weights(Newer(version, rounded, self._moments, self._num_steps_sampled))

    def set_filter(self, moments: Moments) -> None:
        """Publish ``moments`` with the next weights."""
        self._moments = moments

    def state(self) -> dict[str, Any]:
        return {
            "num_weight_syncs": self.num_weight_syncs,
            "num_lost_leases": self._watch.num_lost,
            "inbox": self._inbox.state(),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        self.num_weight_syncs = state["num_weight_syncs"]
        if "inbox" in state:
            self._watch.num_lost = state["num_lost_leases"]
            self._inbox.load(state["inbox"])

    def drain_events(self) -> list[str]:
        events = self._watch.drain_events() + self._inbox.drain_events() + self._precision.drain_events()
        return self._connection_events() + events + self._thread.unreadable.drain_events()

    def _connection_events(self) -> list[str]:
        """Return an event if the board was lost, or is back, since the last call."""
        state, before = self._thread.state, self._was_connected
        self._was_connected = state.is_connected
        if before and not state.is_connected:
            patience = f"{self._config.patience_s:g} s (board.patience_s)"
            return [f"the board is away: actors wait until it is back; tried again for {patience}"]
        if state.is_connected and not before and state.num_lost_connections:
            return ["the board is back"]
        return []

    def figures(self) -> dict[str, Any]:
        """Return the actors' and the board's stats since the last call, for the results."""
        thread = self._thread
        figures = {
            "actors": self._watch.num_actors,
            "seats": self._config.actors,
            "num_lost_leases": self._watch.num_lost,
            "num_lost_connections": thread.state.num_lost_connections,
            "is_connected": thread.state.is_connected,
            "num_unreadable": thread.unreadable.count,
            "num_weights_published": thread.weights.num_published,
            "weights_bytes": thread.weights.num_bytes,
            "weights_period_s": self.weights_period_s,
            **self._inbox.figures(),
        }
        thread.put_figures(figures)
        return figures

    def stop(self) -> None:
        self._thread.stop()

    def _check_actors(self) -> None:
        """Return samples only after enough actors have joined; raise if none join."""
        found, wanted, patience_s = self._watch.num_actors, self._config.min_actors, self._config.patience_s
        self._has_begun |= found >= max(wanted, 1)
        if not self._has_begun and self._clock() - self._made_s > patience_s:
            message = f"only {found} of {wanted} actors have joined in {patience_s:g} s (board.patience_s)"
            raise TrialError(message, HOW_TO_JOIN)


class SourceGroup:
    """Joins several SampleSources, for optimizers that take whatever has arrived; owns them."""

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
        """Poll each source; the first ones are asked for all ``wanted`` batches."""
        samples: list[Sample] = []
        for source in self.sources:
            samples += source.poll(num_steps_sampled, None if wanted is None else wanted - len(samples))
        return samples

    def wait(self, timeout: float) -> bool:
        """Wait with an equal share of ``timeout`` for each source, in turn, until one may have samples."""
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
        """Load the state of a group; a state of another source is ignored."""
        for source in self.sources:
            own_state = state.get("sources", {}).get(type(source).__name__)
            if own_state is not None:
                source.load(own_state)

    def drain_events(self) -> list[str]:
        return [event for source in self.sources for event in source.drain_events()]

    def stop(self) -> None:
        for source in self.sources:
            source.stop()


@dataclass(frozen=True)
class BoardSeats:
    """The seats of a trial on its board, for its agent: :class:`~rlexp.agents.workers.JoinedActors`."""

    link: BoardLink

    def num_players(self, config: CommonConfig) -> int:
        seats = 0 if config.board_keys is None else config.board_keys.actors
        return max(config.num_workers + seats, 1)

    def beside(
        self, own: SampleSource | None, pool: TaskPool, config: CommonConfig, trial: PlayedTrial
    ) -> SampleSource:
        joined = board_source(pool, self.link, config, trial)
        return joined if own is None else SourceGroup([own, joined])

    def figures(self, source: SampleSource) -> dict[str, Any]:
        sources = source.sources if isinstance(source, SourceGroup) else (source,)
        return {"board": next(each.figures() for each in sources if isinstance(each, BoardSource))}


def board_source(pool: TaskPool, link: BoardLink, config: CommonConfig, trial: PlayedTrial) -> BoardSource:
    """Return the source of joined actors; if they cannot join, the run was refused before."""
    board = board_keys_of(config)
    inbox = Inbox(link.task_id, link.keys, admission_rules(config, trial), board, config.num_workers)
    description = {**describe_trial(config, trial), "queue": link.board.queue_kind}
    task = Task(link.task_id, link.name, board.actors, description, link.file)
    return BoardSource(pool, BoardThread(link, signed_task(task, link.keys), board), inbox, board)
