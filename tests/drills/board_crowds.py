"""Drills with many at once: twenty that claim four seats, and a hundred actors."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

from benchmarks.board_actors import measure
from rlexp.board.messages.address import parse_address
from rlexp.board.messages.tasks import Task
from rlexp.board.servers import open_board
from rlexp.board.servers.board import Board, Seat
from tests.drills.scene import Scene, check, drill
from tests.lab.brokers import running_redis

CLAIMERS, SEATS, ROUNDS = 20, 4, 200
LEASE_S = 60.0
ACTORS, FRAGMENTS_PER_S, WEIGHTS_KB, SECONDS = 100, 3.0, 270.0, 10.0
SLOWEST_BEAT_MS = 2000.0
"""Of ninety-nine in a hundred, on two cores that have all of it: actors' beats are due every 2 s."""


@drill(117, "board-claims", pace="fast")
def claims(scene: Scene) -> str:
    """Twenty claim four seats at the same moment, two hundred times."""
    with running_redis() as server, ExitStack() as stack, ThreadPoolExecutor(CLAIMERS) as threads:
        boards = [stack.enter_context(closing(open_board(parse_address(server.url)))) for _ in range(CLAIMERS)]
        boards[0].announce(Task("crowd", "crowd", SEATS))
        check(boards[0].lead("crowd", "trainer", 10 * LEASE_S), "the task cannot be led")
        together = threading.Barrier(CLAIMERS)

        def claim(number: int) -> Seat | None:
            together.wait()
            return boards[number].claim("crowd", f"actor-{number}", LEASE_S)

        epochs: set[tuple[int, int]] = set()
        for _ in range(ROUNDS):
            seats = [seat for seat in threads.map(claim, range(CLAIMERS)) if seat is not None]
            given = sorted(seat.index for seat in seats)
            check(given == list(range(SEATS)), f"seats {given} were given")
            epochs |= {(seat.index, seat.epoch) for seat in seats}
            release(boards[0], seats)
        check(len(epochs) == SEATS * ROUNDS, f"{SEATS * ROUNDS - len(epochs)} epochs were given twice")
    return f"{len(epochs)} seats given in {ROUNDS} rounds, none twice, each with an epoch of its own"


def release(board: Board, seats: list[Seat]) -> None:
    for seat in seats:
        board.release(seat)


@drill(118, "board-hundred")
def hundred(scene: Scene) -> str:
    """A hundred actors without envs send to one trainer, which publishes weights of 270 kB meanwhile."""
    with running_redis() as server:
        started_s = time.monotonic()
        seen = measure(server.url, ACTORS, FRAGMENTS_PER_S, SECONDS, WEIGHTS_KB, 2)
    check(seen["lost"] == seen["doubled"] == 0, f"{seen['lost']} lost, {seen['doubled']} doubled")
    check(seen["beat_p99_ms"] < SLOWEST_BEAT_MS, f"p99 of a beat is {seen['beat_p99_ms']:.0f} ms")
    return (
        f"{seen['fragments_per_s']:,.0f} fragments/s, {seen['mb_per_s']:.1f} MB/s in, {seen['weights_mb_per_s']:.1f}"
        f" MB/s of weights out, beat p99 {seen['beat_p99_ms']:.0f} ms, Redis {seen['redis_cpu']:.0%} of a core; none"
        f" lost, none doubled; {time.monotonic() - started_s:.0f} s"
    )
