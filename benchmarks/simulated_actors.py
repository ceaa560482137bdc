"""Joined actors without envs: each sends one fragment of CartPole again and again, through an outbox of its own."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection

import psutil

from rlexp.board.actor.outbox import Outbox, WeightsFeed
from rlexp.board.messages.address import parse_address
from rlexp.board.messages.basics import MAX_BLOB_BYTES
from rlexp.board.messages.credentials import ActorKeys
from rlexp.board.messages.envelope import Header
from rlexp.board.messages.payloads import seal_fragment
from rlexp.board.servers.board import Beat, Fenced, Seat
from rlexp.board.servers.redis import RedisBoard
from rlexp.config.keys.board import BoardConfig
from rlexp.rollout.fragment import SampleInfo
from rlexp.sample_batch import SampleBatch

MAX_MESSAGE_BYTES = 4 << 20
MAX_WEIGHTS_BYTES = 1 << 30
LEASE_S, BEAT_S = 15.0, 2.0
CLAIM_TIMEOUT_S = 60.0
DRAIN_S = 30.0
NAP_S = 0.002
"""How long the thread that makes fragments waits where nothing is due."""


@dataclass(frozen=True)
class Load:
    """What the actors of one process do."""

    url: str
    task_id: str
    keys: ActorKeys
    num_actors: int
    window: int
    fragments_per_s: float
    """Of each actor; 0: as many as its window takes."""
    rows: SampleBatch
    info: SampleInfo


class TimedBoard(RedisBoard):
    """A board that records how long beats take, and what is fetched."""

    def __init__(self, url: str) -> None:
        super().__init__(parse_address(url))
        self.beats_s: list[float] = []
        self.fetched_bytes = 0

    def beat(self, seat: Seat, messages: Sequence[bytes] = ()) -> Beat | Fenced:
        started = time.perf_counter()
        answer = super().beat(seat, messages)
        self.beats_s.append(time.perf_counter() - started)
        return answer

    def get_blob(self, task_id: str, name: str, max_bytes: int = MAX_BLOB_BYTES) -> bytes | None:
        blob = super().get_blob(task_id, name, max_bytes)
        self.fetched_bytes += len(blob or b"")
        return blob


class SimulatedActor:
    """One seat: an outbox with its thread, as that of ``rlexp join``."""

    def __init__(self, load: Load, number: int) -> None:
        self.board = TimedBoard(load.url)
        self._load = load
        self._seat = self._claim(f"simulated-{number}")
        feed = WeightsFeed(self.board, load.task_id, load.keys, MAX_WEIGHTS_BYTES)
        self._outbox = Outbox(self.board, self._seat, feed, BoardConfig(window=load.window, beat_s=BEAT_S))
        self._due_s = 0.0
        self._outbox.start()

    @property
    def num_put(self) -> int:
        """Fragments so far."""
        return self._outbox.window.next_number

    def begin(self, due_s: float) -> None:
        """Send the first fragment at ``due_s``."""
        self._due_s = due_s

    def send_if_due(self, now_s: float) -> bool:
        """Put a fragment into the window, if one is due and there is room."""
        if now_s < self._due_s or not (self._outbox.wait_for_room(0.0) and self._outbox.put(self._seal)):
            return False
        self._due_s += 1 / self._load.fragments_per_s if self._load.fragments_per_s else 0.0
        return True

    def close(self) -> bool:
        """Give the seat back once all was received; return whether it was."""
        is_drained = self._outbox.drain(DRAIN_S)
        self._outbox.close()
        self.board.close()
        return is_drained and self._outbox.end is None

    def _seal(self, number: int) -> list[bytes]:
        seat = self._seat
        # The number is sent as the version as well: that is what the trainer counts by.
        info = replace(self._load.info, weights_version=number)
        return seal_fragment(
            Header(seat.task_id, seat.index, seat.epoch, number),
            self._load.rows,
            info,
            self._load.keys.key,
            MAX_MESSAGE_BYTES,
        )

    def _claim(self, member: str) -> Seat:
        ends_at = time.monotonic() + CLAIM_TIMEOUT_S
        while time.monotonic() < ends_at:
            seat = self.board.claim(self._load.task_id, member, LEASE_S)
            if seat is not None:
                return seat
            time.sleep(0.1)
        raise TimeoutError("no seat is free")


def play(connection: Connection, load: Load, first_number: int) -> None:
    """Run a process of actors: it says when all have seats, and sends until it is asked to end."""
    actors = [SimulatedActor(load, first_number + number) for number in range(load.num_actors)]
    connection.send("seated")
    connection.recv()
    started_s = time.monotonic()
    for number, actor in enumerate(actors):
        actor.board.beats_s.clear()
        actor.board.fetched_bytes = 0
        actor.begin(started_s + (number / len(actors) / load.fragments_per_s if load.fragments_per_s else 0.0))
    cpu = psutil.Process().cpu_times()
    while not connection.poll():
        now_s = time.monotonic()
        num_sent = sum(actor.send_if_due(now_s) for actor in actors)
        if not num_sent:
            time.sleep(NAP_S)
    seconds, after = time.monotonic() - started_s, psutil.Process().cpu_times()
    figures = {
        "beats_s": [beat_s for actor in actors for beat_s in actor.board.beats_s],
        "fetched_bytes_per_s": sum(actor.board.fetched_bytes for actor in actors) / seconds,
        "cpu": (after.user + after.system - cpu.user - cpu.system) / seconds,
        "rss": psutil.Process().memory_info().rss,
    }
    connection.recv()
    drained = [actor.close() for actor in actors]
    connection.send({**figures, "num_put": sum(actor.num_put for actor in actors), "is_drained": all(drained)})
