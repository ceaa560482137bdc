"""Where the replay shards are, whose turn it is, and what becomes of one whose process died."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from rlexp.checkpoint.state_codec import LazyArray, join_state
from rlexp.errors import CheckpointError, TrialError
from rlexp.replay.shard import ReplayShard, ShardStats
from rlexp.task_pool import Actor, ActorLostError, TaskPool

R = TypeVar("R")

PlaceShard = Callable[[int, int], Actor[ReplayShard]]
"""Places the shard of an index anew; its attempt, 0 at first, sets its random stream apart."""

MAX_REPLACEMENTS = 10
"""Of all shards together, by one process of the trial; each costs the rows that the shard held."""
STATS_TIMEOUT_S = 60.0
"""Bound of the wait for a shard's figures, and for its replacement to start."""
STATE_TIMEOUT_S = 600.0
"""Bound of the wait for a piece of what a shard holds, behind all that it was asked before, and for it to load all."""


class ReplayShards:
    """Owns the shards' places, and the order in which they are asked. Owned by one optimizer, in one thread.

    A shard that is lost is replaced by an empty one. Priorities for its rows go nowhere: they are addressed
    to the actor that handed the rows out, so that its successor's rows never get them.
    """

    def __init__(self, pool: TaskPool, place: PlaceShard, num_shards: int) -> None:
        """Place ``num_shards``."""
        self._pool = pool
        self._place = place
        self._actors = [place(index, 0) for index in range(num_shards)]
        self._turns = deque(self._actors)
        self._starved: set[Actor[ReplayShard]] = set()
        self._stats: dict[Actor[ReplayShard], ShardStats] = {}
        self._num_replaced = 0
        self._events: list[str] = []

    def __len__(self) -> int:
        return len(self._actors)

    def __iter__(self) -> Iterator[Actor[ReplayShard]]:
        return iter(self._actors)

    def __contains__(self, shard: object) -> bool:
        return shard in self._actors

    def __getitem__(self, index: int) -> Actor[ReplayShard]:
        return self._actors[index]

    @property
    def all_starved(self) -> bool:
        """Whether every shard waits for rows."""
        return len(self._starved) == len(self._actors)

    def starve(self, shard: Actor[ReplayShard]) -> None:
        """Learn that ``shard`` holds too few rows: it is not asked before it was fed."""
        self._starved.add(shard)

    def feed(self, shard: Actor[ReplayShard]) -> None:
        """Learn that ``shard`` was given rows."""
        self._starved.discard(shard)

    def take_turn(self, may_be_asked: Callable[[Actor[ReplayShard]], bool]) -> Actor[ReplayShard] | None:
        """Return the shard that was asked least recently of those that hold enough and may be asked, if any."""
        shard = next((each for each in self._turns if each not in self._starved and may_be_asked(each)), None)
        if shard is not None:
            self._turns.remove(shard)
            self._turns.append(shard)
        return shard

    def turns(self) -> list[list[int]]:
        """Return the shards, by index, in the order in which they are asked, and those that wait for rows."""
        return [[self._actors.index(shard) for shard in shards] for shards in (self._turns, self._starved)]

    def load_turns(self, turns: Sequence[Sequence[int]]) -> None:
        """Go on in the order that ``turns`` returned."""
        order, starved = ([self._actors[index] for index in indices] for indices in turns)
        self._turns, self._starved = deque(order), set(starved)

    def stats(self) -> tuple[ShardStats, ...]:
        """Return the figures of every shard; one found to be lost is replaced, and asked again."""
        refs = [self._pool.call(shard, ReplayShard.stats) for shard in self._actors]
        for shard, ref in zip(tuple(self._actors), refs, strict=True):
            try:
                self._stats[shard] = self._pool.get(ref, STATS_TIMEOUT_S)
            except ActorLostError as error:
                self.replace(shard, error)
                return self.stats()
        return tuple(self._stats[shard] for shard in self._actors)

    def states(self) -> list[dict[str, Any]]:
        """Return what each shard holds; a shard in another process is asked for its arrays piece by piece.

        They are to be read before a shard is given anything. Raises ActorLostError, now or then, where a shard is
        found to be lost, which is replaced.
        """
        return [self._state_of(shard) for shard in tuple(self._actors)]

    def load(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Fill the empty shards with what ``states`` returned; CheckpointError at the first that does not fit."""
        if len(states) != len(self):
            raise CheckpointError(f"a replay state of {len(states)} shards does not fit {len(self)}")
        for shard, state in zip(self._actors, states, strict=True):  # one after the other: what travels is in memory
            self._pool.get(self._pool.call(shard, ReplayShard.load, state), STATE_TIMEOUT_S)

    def replace(self, shard: Actor[ReplayShard], error: ActorLostError) -> None:
        """Put an empty shard in the place of a lost one; raises TrialError when that has happened too often."""
        self._num_replaced += 1
        if self._num_replaced > MAX_REPLACEMENTS:
            raise TrialError(
                f"replay shards failed {self._num_replaced} times; the last one: {error.message}",
                "usually the machine is out of memory: lower buffer_size, or set compress_observations: true",
            )
        index = self._actors.index(shard)
        self._pool.remove(shard)
        self._turns.remove(shard)
        self._starved.discard(shard)
        self._actors[index] = self._place(index, self._num_replaced)
        self._turns.append(self._actors[index])
        known = self._stats.pop(shard, None)
        held = "" if known is None else f"; about {known.size:,} of {known.capacity:,} transitions are lost"
        self._events.append(f"replay shard {index} failed: {error.message}{held}; an empty shard replaces it")

    def drain_events(self) -> list[str]:
        """Return what happened to shards since the last call, a sentence each."""
        events, self._events = self._events, []
        return events

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
        except ActorLostError as error:
            self.replace(shard, error)
            raise
