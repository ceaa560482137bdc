"""Where the replay shards are, whose turn it is, what is on its way there, and what becomes of one that died."""

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
from rlexp.rollout.source import Sample
from rlexp.states import LazyArray, join_state

R = TypeVar("R")

PlaceShard = Callable[[int, int], Actor[ReplayShard]]
"""Places the shard of an index anew; its attempt, 0 at first, sets its random stream apart."""

MAX_REPLACEMENTS = 10
"""Of all shards together, by one process of the trial; each costs the rows that the shard held."""
STATS_TIMEOUT_S = 60.0
"""Bound of the wait for a shard's first figures, and so for it to start."""
STATS_WAIT_S = 2.0
"""Bound of the wait for newer figures of all shards; where one does not answer, its last ones count."""
SILENT_S = 3.0
"""A shard that has not answered for so long is asked for nothing more, and nothing waits for it."""
STATE_TIMEOUT_S = 60.0
"""Bound of the wait for a piece of what a shard holds, behind all that it was asked before."""
LOAD_TIMEOUT_S = 600.0
"""Bound of the wait for a shard to load all that it held."""
STEADY_S = 10.0
"""A shard that has lived for so long is replaced at once."""
FIRST_DELAY_S, LONGEST_DELAY_S = 1.0, 30.0
"""Before the replacement of one that was lost sooner, doubled each time."""

UNKNOWN = ShardStats(size=0, capacity=1, num_added=0, num_sampled=0, num_stale_priorities=0, nbytes=0)
"""Of a shard that was lost before it was asked."""


class ReplayShards:
    """Owns the shards' places, and the order in which they are asked. Owned by one optimizer, in one thread.

    A shard that is lost is replaced by an empty one. Priorities for its rows go nowhere: they are addressed
    to the actor that handed the rows out, so that its successor's rows never get them.
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
        # Of lost shards that are not replaced yet: when they are.
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
        """Learn that ``shard`` was asked for a batch."""
        self._asked_s.setdefault(shard, self._clock())

    def answered(self, shard: Actor[ReplayShard], is_asked: bool) -> None:
        """Learn that ``shard`` has answered; ``is_asked`` says whether it still has to answer another call."""
        if is_asked and shard in self:
            self._asked_s[shard] = self._clock()
        else:
            self._asked_s.pop(shard, None)

    def is_silent(self, shard: Actor[ReplayShard]) -> bool:
        """Whether ``shard`` is lost, or has not answered for long: nothing more is asked of it, nor waited for."""
        if shard in self._due_s:
            return True
        asked_s = self._asked_s.get(shard)
        return asked_s is not None and self._clock() - asked_s > SILENT_S

    def starve(self, shard: Actor[ReplayShard]) -> None:
        """Learn that ``shard`` holds too few rows: it is not asked before it was fed."""
        self._starved.add(shard)

    def feed(self, shard: Actor[ReplayShard]) -> None:
        """Learn that ``shard`` was given rows."""
        self._starved.discard(shard)

    def take_turn(self, may_be_asked: Callable[[Actor[ReplayShard]], bool]) -> Actor[ReplayShard] | None:
        """Return the shard that was asked least recently of those that hold enough and may be asked, if any."""
        open_shards = (each for each in self._turns if each not in self._starved and not self.is_silent(each))
        shard = next(filter(may_be_asked, open_shards), None)
        if shard is not None:
            self._turns.remove(shard)
            self._turns.append(shard)
        return shard

    def turns(self) -> list[list[int]]:
        """Return the shards, by index, in the order in which they are asked, and those that wait for rows."""
        return [
            [self._actors.index(shard) for shard in shards] for shards in ([*self._turns, *self._due_s], self._starved)
        ]

    def load_turns(self, turns: Sequence[Sequence[int]]) -> None:
        """Go on in the order that ``turns`` returned."""
        order, starved = ([self._actors[index] for index in indices] for indices in turns)
        self._turns, self._starved = deque(order), set(starved)

    def stats(self) -> tuple[ShardStats, ...]:
        """Return the newest figures of every shard; for one that does not answer soon, its last ones.

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
        """Return what each shard holds; a shard in another process is asked for its arrays piece by piece.

        They are to be read before a shard is given anything. Raises ActorLostError, now or then, where a shard is
        found to be lost, which is replaced.
        """
        for shard in tuple(self._due_s):
            self._place_anew(shard)
        return [self._state_of(shard) for shard in tuple(self._actors)]

    def load(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Fill the empty shards with what ``states`` returned; CheckpointError at the first that does not fit."""
        if len(states) != len(self):
            raise CheckpointError(f"a replay state of {len(states)} shards does not fit {len(self)}")
        for shard, state in zip(self._actors, states, strict=True):  # one after the other: what travels is in memory
            self._pool.get(self._pool.call(shard, ReplayShard.load, state), LOAD_TIMEOUT_S)

    def replace(self, shard: Actor[ReplayShard], error: ActorLostError) -> None:
        """Put an empty shard in the place of a lost one; raises TrialError when that has happened too often.

        One that lived for a short time only is replaced later. A shard that was lost with its node is not counted.
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
        """Place anew the lost shards whose delay is over."""
        for shard, due_s in tuple(self._due_s.items()):
            if due_s <= self._clock():
                self._place_anew(shard)

    def drain_events(self) -> list[str]:
        """Return what happened to shards since the last call, a sentence each."""
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
        """Return how long the replacement of a shard waits that lived for ``lived_s`` seconds."""
        self._short_lives = 0 if lived_s >= STEADY_S else self._short_lives + 1
        return 0.0 if self._short_lives < 2 else min(FIRST_DELAY_S * 2.0 ** (self._short_lives - 2), LONGEST_DELAY_S)

    def _report_loss(self, shard: Actor[ReplayShard], error: ActorLostError) -> None:
        index, known, held = self._actors.index(shard), self._stats.get(shard), ""
        if known is not None:
            held = f"; about {known.size:,} of {known.capacity:,} transitions are lost"
        self._stats[shard] = UNKNOWN if known is None else replace(known, size=0)
        self._events.append(f"replay shard {index} failed: {error.message}{held}; an empty shard replaces it")

    def _read_stats(self, shard: Actor[ReplayShard], wait_s: float) -> None:
        """Wait for the figures of a shard at most so long; one found to be lost is replaced."""
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
    """Deals batches to shards at random, each with an equal share of the depth: a silent one fills only its own."""

    def __init__(self, pool: TaskPool, shards: ReplayShards, depth: int, rng: np.random.Generator) -> None:
        """About ``depth`` calls are in flight at most."""
        self.lane = Lane(pool)
        self._shards = shards
        self._share = -(-depth // len(shards))
        self._rng = rng

    @property
    def has_room(self) -> bool:
        """Whether a shard takes more rows."""
        return any(map(self._is_open, self._shards))

    def store(self, sample: Sample) -> None:
        """Send a batch with rows to the shard that it was written for, or to one that takes more."""
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
