"""The replay shards: their places, their turns, the batches on their way to them, and replacements of lost ones."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from rlexp.cluster.pool.pool import Actor, ActorLostError, Lane, Ref, TaskPool
from rlexp.errors import CheckpointError, TrialError
from rlexp.replay.shard import ReplayShard, ShardStats
from rlexp.rollout.fleet import STEADY_S, replacement_delay_s
from rlexp.rollout.source import Sample
from rlexp.states import LazyArray, join_state

R = TypeVar("R")

PlaceShard = Callable[[int, int], Actor[ReplayShard]]
"""A function that places the shard of an index anew. Its attempt (0 at first) selects another random stream."""

MAX_REPLACEMENTS = 10
"""Most replacements of all shards together, in one process of the trial; each costs the rows of the shard."""
STATS_TIMEOUT_S = 60.0
"""Most seconds to wait for a shard's first stats, and so for its start."""
STATS_WAIT_S = 2.0
"""Most seconds to wait for newer stats of all shards; the last ones of a silent shard count."""
SILENT_S = 3.0
"""Seconds without an answer after which a shard is silent: nothing is asked of it, and nothing waits for it."""
STATE_TIMEOUT_S = 60.0
"""Most seconds to wait for a piece of a shard's state; earlier requests are answered first."""
LOAD_TIMEOUT_S = 600.0
"""Most seconds to wait until a shard has loaded its state."""

UNKNOWN = ShardStats(size=0, capacity=1, num_added=0, num_sampled=0, num_stale_priorities=0, nbytes=0)
"""The stats of a shard that was lost before it was asked."""


class ReplayShards:
    """Owns the shards' places, and the order in which they are asked. Owned by one optimizer, in one thread.

    A lost shard is replaced by an empty one. Priorities for its rows are dropped: they are addressed to the actor that
    drew the rows, so the successor's rows never get them.
    """

    def __init__(
        self, pool: TaskPool, place: PlaceShard, num_shards: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Place ``num_shards``; ``clock`` returns seconds that never decrease."""
        self._pool = pool
        self._place = place
        self._actors = [place(index, 0) for index in range(num_shards)]
        self._turns = deque(self._actors)
        self._starved: set[Actor[ReplayShard]] = set()
        self._stats: dict[Actor[ReplayShard], ShardStats] = {}
        self._stats_asked: dict[Actor[ReplayShard], Ref[ShardStats]] = {}
        self._clock = clock
        self._placed_s = dict.fromkeys(self._actors, clock())
        self._asked_s: dict[Actor[ReplayShard], float] = {}
        # For each lost shard that is not replaced yet: the time of its replacement.
        self._due_s: dict[Actor[ReplayShard], float] = {}
        self._num_replaced = 0
        self._num_placed = 0
        self._short_lives = 0
        self._events: list[str] = []

    def __len__(self) -> int:
        return len(self._actors)

    def __iter__(self) -> Iterator[Actor[ReplayShard]]:
        return iter(self._actors)

    def __contains__(self, shard: object) -> bool:
        return shard in self._actors and shard not in self._due_s

    def __getitem__(self, index: int) -> Actor[ReplayShard]:
        return self._actors[index]

    @property
    def all_starved(self) -> bool:
        """Whether every shard waits for rows."""
        return all(shard in self._starved or shard in self._due_s for shard in self._actors)

    def asked(self, shard: Actor[ReplayShard]) -> None:
        """Note that ``shard`` was asked for a batch."""
        self._asked_s.setdefault(shard, self._clock())

    def answered(self, shard: Actor[ReplayShard], is_asked: bool) -> None:
        """Note that ``shard`` has answered; ``is_asked`` says whether it still has to answer another call."""
        if is_asked and shard in self:
            self._asked_s[shard] = self._clock()
        else:
            self._asked_s.pop(shard, None)

    def is_silent(self, shard: Actor[ReplayShard]) -> bool:
        """Whether ``shard`` is lost or has not answered for long, so that nothing is asked of it or waits for it."""
        if shard in self._due_s:
            return True
        asked_s = self._asked_s.get(shard)
        return asked_s is not None and self._clock() - asked_s > SILENT_S

    def starve(self, shard: Actor[ReplayShard]) -> None:
        """Note that ``shard`` holds too few rows: it is not asked before it gets more."""
        self._starved.add(shard)

    def feed(self, shard: Actor[ReplayShard]) -> None:
        """Note that ``shard`` got rows."""
        self._starved.discard(shard)

    def take_turn(self, may_be_asked: Callable[[Actor[ReplayShard]], bool]) -> Actor[ReplayShard] | None:
        """Return the shard asked least recently that holds enough rows and may be asked, if any."""
        open_shards = (each for each in self._turns if each not in self._starved and not self.is_silent(each))
        shard = next(filter(may_be_asked, open_shards), None)
        if shard is not None:
            self._turns.remove(shard)
            self._turns.append(shard)
        return shard

    def turns(self) -> list[list[int]]:
        """Return the indices of the shards in the order of their turns, and of the shards that wait for rows."""
        return [
            [self._actors.index(shard) for shard in shards] for shards in ([*self._turns, *self._due_s], self._starved)
        ]

    def load_turns(self, turns: Sequence[Sequence[int]]) -> None:
        """Continue in the order that ``turns`` returned."""
        order, starved = ([self._actors[index] for index in indices] for indices in turns)
        self._turns, self._starved = deque(order), set(starved)

    def stats(self) -> tuple[ShardStats, ...]:
        """Return the newest stats of every shard; the last ones if it does not answer soon.

        A shard found to be lost is replaced.
        """
        asked_before = set(self._stats_asked)
        for shard in self._actors:
            if shard not in asked_before and shard in self:
                self._stats_asked[shard] = self._pool.call(shard, ReplayShard.stats)
        deadline_s = time.monotonic() + STATS_WAIT_S
        for shard in tuple(self._stats_asked):
            wait_s = 0.0 if shard in asked_before else max(deadline_s - time.monotonic(), 0.0)
            self._read_stats(shard, wait_s if shard in self._stats else STATS_TIMEOUT_S)
        return tuple(self._stats[shard] for shard in self._actors)

    def states(self) -> list[dict[str, Any]]:
        """Return the state of each shard; a shard in another process is asked for its arrays piece by piece.

        Read them before a shard gets new rows. Raises ActorLostError, now or then, if a shard is lost; it is replaced.
        """
        for shard in tuple(self._due_s):
            self._place_anew(shard)
        return [self._state_of(shard) for shard in tuple(self._actors)]

    def load(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Fill the empty shards with what ``states`` returned; CheckpointError at the first that does not fit."""
        if len(states) != len(self):
            raise CheckpointError(f"a replay state of {len(states)} shards does not fit {len(self)}")
        for shard, state in zip(self._actors, states, strict=True):  # one by one: a state on its way is in memory
            self._pool.get(self._pool.call(shard, ReplayShard.load, state), LOAD_TIMEOUT_S)

    def replace(self, shard: Actor[ReplayShard], error: ActorLostError) -> None:
        """Replace a lost shard by an empty one; TrialError if that has happened too often.

        An unsteady shard is replaced later. A shard that was lost with its node is not counted.
        """
        lost_node = self._pool.cluster_state().lost.get(shard)
        self._num_replaced += lost_node is None
        if self._num_replaced > MAX_REPLACEMENTS:
            raise TrialError(
                f"replay shards failed {self._num_replaced} times; the last one: {error.message}",
                "usually the machine is out of memory: lower buffer_size, or set compress_observations: true",
            )
        self._pool.remove(shard)
        self._turns.remove(shard)
        self._starved.discard(shard)
        self._asked_s.pop(shard, None)
        self._stats_asked.pop(shard, None)
        now = self._clock()
        self._due_s[shard] = now + self._delay_s(now - self._placed_s.pop(shard))
        self._report_loss(shard, error)
        self.place_replacements()

    def place_replacements(self) -> None:
        """Place the lost shards whose delay is over."""
        for shard, due_s in tuple(self._due_s.items()):
            if due_s <= self._clock():
                self._place_anew(shard)

    def drain_events(self) -> list[str]:
        """Return the events of shards since the last call, a sentence each."""
        events, self._events = self._events, []
        return events

    def _place_anew(self, lost: Actor[ReplayShard]) -> None:
        del self._due_s[lost]
        index = self._actors.index(lost)
        self._num_placed += 1
        shard = self._actors[index] = self._place(index, self._num_placed)
        self._placed_s[shard] = self._clock()
        self._turns.append(shard)
        self._stats[shard] = self._stats.pop(lost)

    def _delay_s(self, lived_s: float) -> float:
        """Return the seconds until the replacement of a shard that lived for ``lived_s`` seconds."""
        self._short_lives = 0 if lived_s >= STEADY_S else self._short_lives + 1
        return replacement_delay_s(self._short_lives)

    def _report_loss(self, shard: Actor[ReplayShard], error: ActorLostError) -> None:
        index, known, held = self._actors.index(shard), self._stats.get(shard), ""
        if known is not None:
            held = f"; about {known.size:,} of {known.capacity:,} transitions are lost"
        self._stats[shard] = UNKNOWN if known is None else replace(known, size=0)
        self._events.append(f"replay shard {index} failed: {error.message}{held}; an empty shard replaces it")

    def _read_stats(self, shard: Actor[ReplayShard], wait_s: float) -> None:
        """Wait at most ``wait_s`` seconds for a shard's stats; replace the shard if it is lost."""
        try:
            self._stats[shard] = self._pool.get(self._stats_asked[shard], wait_s)
        except TimeoutError:
            if shard not in self._stats:
                raise
            return
        except ActorLostError as error:
            self.replace(shard, error)
            return
        del self._stats_asked[shard]

    def _state_of(self, shard: Actor[ReplayShard]) -> dict[str, Any]:
        values, forms = self._ask(shard, ReplayShard.outline)
        arrays = {
            name: LazyArray(shape, dtype, partial(self._ask, shard, ReplayShard.piece, name))
            for name, (shape, dtype) in forms.items()
        }
        return join_state(arrays, values)

    def _ask(self, shard: Actor[ReplayShard], method: Callable[..., R], *args: object) -> R:
        try:
            return self._pool.get(self._pool.call(shard, method, *args), STATE_TIMEOUT_S)
        except TimeoutError as error:
            lost = ActorLostError(f"it did not answer for {STATE_TIMEOUT_S:g} s")
            self.replace(shard, lost)
            raise lost from error
        except ActorLostError as error:
            self.replace(shard, error)
            raise


class StoreCalls:
    """Deals batches to shards at random. Each has an equal share of the depth, so a silent shard fills only its own."""

    def __init__(self, pool: TaskPool, shards: ReplayShards, depth: int, rng: np.random.Generator) -> None:
        """Allow about ``depth`` calls in flight."""
        self.lane = Lane(pool)
        self._shards = shards
        self._share = -(-depth // len(shards))
        self._rng = rng

    @property
    def has_room(self) -> bool:
        """Whether a shard takes more rows."""
        return any(map(self._is_open, self._shards))

    def store(self, sample: Sample) -> None:
        """Send a batch with rows to the shard for which it was written, or to one that has room."""
        shard = self._any_shard() if sample.info.shard is None else self._shards[sample.info.shard]
        self.lane.submit(shard, ReplayShard.add_batch, sample.batch)
        self._shards.feed(shard)

    def _any_shard(self) -> Actor[ReplayShard]:
        shard = self._shards[int(self._rng.integers(len(self._shards)))]
        if self._is_open(shard):
            return shard
        return min(filter(self._is_open, self._shards), key=self.lane.in_flight, default=shard)

    def _is_open(self, shard: Actor[ReplayShard]) -> bool:
        return self.lane.in_flight(shard) < self._share and not self._shards.is_silent(shard)
