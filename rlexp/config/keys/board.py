"""The keys under ``config.board``: how a trial trains with actors that join it over a board. None is the URL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from rlexp.config.keys.fields import ActorIds, Conflict, Count, CountOrZero, KeyGroup, Positive, UpToADay


class BoardConfig(KeyGroup):
    """What is under ``board:``; it has an effect with ``rlexp run --board URL`` only."""

    actors: Count = 1
    """Seats: the most joined actors that play for the trial at the same time. The ε ladder covers the trial's own
    workers and all seats."""

    min_actors: CountOrZero = 1
    """Seats that must be taken before learning starts. Actors that leave later do not stop it."""

    window: Count = 32
    """Fragments that an actor sends before the trainer has confirmed the first of them. A larger window keeps an actor
    busy over slow networks; its weights may be older, and it keeps so many fragments in memory."""

    min_fragment_steps: Count = 32
    """Least env steps of an actor's fragment: if ``sample_batch_size`` makes shorter ones, they are lengthened, since
    each is a message. ``sample_batch_size`` still decides how often the learner learns."""

    beat_s: UpToADay = 2.0
    """Seconds between two heartbeats of an actor that has nothing to send. Each heartbeat renews its lease and brings
    news of weights."""

    lease_s: UpToADay = 15.0
    """Seconds without a heartbeat after which an actor loses its seat, and another one may take it."""

    patience_s: Positive = 600.0
    """Seconds that the trainer continues without the board, or waits for ``min_actors`` before learning starts; then it
    writes a checkpoint and ends with an error. While the board is away it learns from replay. Actors leave a task that
    was without a trainer for so long."""

    weights_period_s: Positive = 1.0
    """Least seconds between two versions of the weights that actors get. With many actors or large weights it is
    longer, so that all actors together fetch at most 50 MB/s; ``info/board/weights_period_s`` has the actual value."""

    weights_dtype: Literal["float32", "float16"] = "float32"
    """How weights are sent to actors, which act in float32 in any case. ``float16`` halves the bytes that they fetch,
    and rounds each weight to 11 significant bits; the learner's own weights do not change. An array with a value beyond
    65,504 is sent as float32, and a note names it."""

    recovery_period_s: Positive = 60.0
    """Least seconds between two checkpoints without replay that the trial puts on the board. A trainer that replaces a
    dead one begins from the newest of them; what was learned since is lost."""

    max_fragment_mb: Positive = 4.0
    """Largest fragment that the trainer accepts, in MB before compression."""

    max_weights_mb: Positive = 64.0
    """Largest weights that an actor accepts, in MB."""

    max_strikes: Count = 3
    """Invalid fragments of an actor after which it is banned from the task: it loses its seat, and gets no other one.
    """

    max_abs_reward: Positive | None = None
    """Largest absolute reward that one env step can give, before ``clip_rewards``. Fragments with larger rewards are
    refused, as are episodes with larger returns than their length allows. Null: any reward is accepted."""

    refused_actors: ActorIds = ()
    """Ids of actors whose join tokens are not accepted any more; see ``rlexp board keys``."""

    def conflicts(self) -> Iterator[Conflict]:
        """Yield a minimum that is never reached, and leases that end between two heartbeats."""
        yield from super().conflicts()
        if self.min_actors > self.actors:
            message = f"{self.stated('min_actors')}, more than actors, which is {self.actors}"
            yield Conflict(("min_actors", "actors"), message, "lower min_actors or raise actors")
        if self.lease_s < 3 * self.beat_s:
            message = f"{self.stated('lease_s')}, less than three times beat_s, which is {self.beat_s:g}"
            hint = "raise lease_s: an actor whose heartbeats are late would lose its seat"
            yield Conflict(("lease_s", "beat_s"), message, hint)
