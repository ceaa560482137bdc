"""A hundred joined actors on one Redis: what arrives, what it costs at each end, and whether each fragment counts once.

The actors have no envs: each sends the same 512 rows of CartPole through an outbox of its own, at a rate that is
given or as fast as its window lets it. The trainer is that of a run, but for the learner: it takes what comes, checks
it, counts it, and publishes weights. Redis, actors and trainer share this machine; --board names a Redis elsewhere.

    python benchmarks/board_actors.py [--actors 100] [--rate 5] [--seconds 10] [--weights-kb 270] [--json]
"""

from __future__ import annotations

import multiprocessing
import secrets
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import psutil
import redis

from benchmarks.comparison import Column, Table, conditions, options
from benchmarks.pieces import Pieces
from benchmarks.processes import unwind_on_sigterm
from benchmarks.simulated_actors import Load, play
from rlexp.agents.workers import PlayedTrial
from rlexp.board.messages.address import parse_address
from rlexp.board.messages.credentials import password_keys
from rlexp.board.servers import open_board
from rlexp.board.trainer.link import BoardLink
from rlexp.board.trainer.source import BoardSource, board_source
from rlexp.cluster.pool.pool import InlineTaskPool
from rlexp.config.keys.apex import ApexConfig
from rlexp.config.keys.user_code import UserModules
from rlexp.envs.make import spaces_of
from rlexp.envs.registry import env_config_of
from rlexp.sample_batch import SampleBatch
from tests.lab.brokers import running_redis

ENV = "CartPole-v1"
ROWS = 512
ANSWER_TIMEOUT_S = 120.0

COLUMNS = (
    Column("actors", "actors", 6),
    Column("rate", "asked/s", 7, ",.0f"),
    Column("fragments_per_s", "arrive/s", 8, ",.0f"),
    Column("rows_per_s", "rows/s", 8, ",.0f"),
    Column("mb_per_s", "MB/s in", 7, ",.1f"),
    Column("weights_mb_per_s", "MB/s out", 8, ",.1f"),
    Column("beat_p50_ms", "beat p50", 8, ".1f"),
    Column("beat_p99_ms", "p99 ms", 6, ".1f"),
    Column("redis_cpu", "Redis", 6, ".0%"),
    Column("trainer_cpu", "trainer", 7, ".0%"),
    Column("source_cpu", "polls", 6, ".0%"),
    Column("actors_cpu", "all actors", 10, ".0%"),
    Column("trainer_rss_mb", "trainer MB", 10, ",.0f"),
    Column("redis_mb", "Redis MB", 8, ",.0f"),
    Column("lost", "lost", 4),
    Column("doubled", "doubled", 7),
)


class IdlePool(InlineTaskPool):
    """A pool whose calls never run beside the trainer: whoever waits for one waits for actors instead."""

    def wait(self, timeout: float) -> bool:
        return False


@dataclass(frozen=True)
class Trainer:
    """The trainer's end of a task."""

    source: BoardSource
    link: BoardLink
    weights: dict[str, np.ndarray]
    taken: Counter[tuple[int, int]]
    """How often each fragment came, by worker and number."""

    def poll_for(self, seconds: float) -> float:
        """Take what comes; return the CPU seconds of this thread."""
        cpu_s, ends_at = time.thread_time(), time.monotonic() + seconds
        while (left_s := ends_at - time.monotonic()) > 0:
            self.source.wait(min(left_s, 0.05))
            for sample in self.source.poll(ROWS * self.taken.total()):
                self.taken[sample.info.worker_index, sample.info.weights_version] += 1
            if self.source.weights_wanted():
                self.source.publish(self.source.num_weight_syncs + 1, self.weights)
        return time.thread_time() - cpu_s


def config_of(num_actors: int) -> ApexConfig:
    """Return keys with which a fragment has ROWS rows."""
    return ApexConfig.model_validate(
        {
            "num_workers": 0,
            "num_envs_per_worker": 8,
            "sample_batch_size": ROWS // 8,
            "board": {"actors": num_actors, "min_actors": 0},
        }
    )


@contextmanager
def running_trainer(url: str, config: ApexConfig, weights_kb: float) -> Iterator[Trainer]:
    """Have a task on the board, with its first weights."""
    task_id = f"benchmark-{secrets.token_hex(4)}"
    link = BoardLink(open_board(parse_address(url)), task_id, "benchmark", "trainer", password_keys("", task_id))
    env_config = env_config_of(ENV, config, UserModules())
    source = board_source(IdlePool(), link, config, PlayedTrial(env_config, 0, *spaces_of(env_config)))
    weights = {"w": np.random.default_rng(0).standard_normal(int(weights_kb * 250), np.float32)}
    trainer = Trainer(source, link, weights, Counter())
    try:
        trainer.poll_for(0.2)
        yield trainer
    finally:
        source.stop()


@contextmanager
def actor_processes(load: Load, counts: Sequence[int]) -> Iterator[list[Connection]]:
    """Yield a connection to each process of actors; ``counts`` are their numbers of actors."""
    context = multiprocessing.get_context("spawn")
    connections, processes = [], []
    for index, count in enumerate(counts):
        ours, theirs = context.Pipe()
        own = Load(**{**vars(load), "num_actors": count})
        processes.append(context.Process(target=play, args=(theirs, own, 1000 * index), daemon=True))
        connections.append(ours)
        processes[-1].start()
    try:
        yield connections
    finally:
        for process in processes:
            process.join(5.0)
            process.kill()


def answers(trainer: Trainer, connections: Sequence[Connection]) -> list[Any]:
    """Return what each process says, and take fragments meanwhile."""
    said, ends_at = [], time.monotonic() + ANSWER_TIMEOUT_S
    for connection in connections:
        while not connection.poll():
            if time.monotonic() > ends_at:
                raise TimeoutError("a process of actors does not answer")
            trainer.poll_for(0.02)
        said.append(connection.recv())
    return said


def tell(connections: Sequence[Connection], word: str) -> None:
    for connection in connections:
        connection.send(word)


def measure(
    url: str, num_actors: int, rate: float, seconds: float, weights_kb: float, processes: int
) -> dict[str, Any]:
    """Return a line of the table."""
    config = config_of(num_actors)
    rows, info = Pieces(ENV, config).worker().sample(0)
    assert isinstance(rows, SampleBatch)
    counts = [len(range(index, num_actors, processes)) for index in range(processes)]
    with running_trainer(url, config, weights_kb) as trainer, closing(redis.Redis.from_url(url)) as server:
        link = trainer.link
        keys = password_keys("", link.task_id)
        load = Load(url, link.task_id, keys, 0, config.board.window, rate, rows, info)
        with actor_processes(load, counts) as connections:
            answers(trainer, connections)
            trainer.source.figures()  # rates are those since the last call
            tell(connections, "begin")
            trainer.poll_for(1.0)
            before, server_before = psutil.Process().cpu_times(), server.info()
            taken, started_s = trainer.taken.total(), time.monotonic()
            source_s = trainer.poll_for(seconds)
            elapsed_s, after, server_after = time.monotonic() - started_s, psutil.Process().cpu_times(), server.info()
            arrived, figures = trainer.taken.total() - taken, trainer.source.figures()
            tell(connections, "stop")
            tell(connections, "close")
            said = answers(trainer, connections)
            assert all(each["is_drained"] for each in said), "a window was not emptied"
    beats_ms = sorted(1000 * beat_s for each in said for beat_s in each["beats_s"])
    cpu_keys = ("used_cpu_user", "used_cpu_sys")
    return {
        "actors": num_actors,
        "rate": rate * num_actors or None,
        "fragments_per_s": arrived / elapsed_s,
        "rows_per_s": arrived * info.num_rows / elapsed_s,
        "mb_per_s": figures["bytes_per_s"] / 1e6,
        "weights_mb_per_s": sum(each["fetched_bytes_per_s"] for each in said) / 1e6,
        "beat_p50_ms": statistics.median(beats_ms),
        "beat_p99_ms": beats_ms[int(0.99 * len(beats_ms))],
        "beats_per_s": len(beats_ms) / elapsed_s,
        "redis_cpu": sum(server_after[key] - server_before[key] for key in cpu_keys) / elapsed_s,
        "trainer_cpu": (after.user + after.system - before.user - before.system) / elapsed_s,
        "source_cpu": source_s / elapsed_s,
        "actors_cpu": sum(each["cpu"] for each in said),
        "trainer_rss_mb": psutil.Process().memory_info().rss / 1e6,
        "redis_mb": server_after["used_memory_peak"] / 1e6,
        "lost": sum(each["num_put"] for each in said) - len(trainer.taken),
        "doubled": sum(count > 1 for count in trainer.taken.values()),
        "weights_period_s": figures["weights_period_s"],
    }


@contextmanager
def started_redis() -> Iterator[str]:
    """Yield the address of a Redis that ends with the body."""
    with running_redis() as server:
        yield server.url


def main() -> None:
    """Print a line for each rate."""
    parser = options(__doc__)
    parser.add_argument("--board", metavar="URL", help="a Redis without a password; without it, one is started here")
    parser.add_argument("--actors", type=int, default=100, metavar="N")
    parser.add_argument(
        "--rate", type=float, nargs="+", default=[5.0, 0.0], metavar="R", help="fragments/s of an actor"
    )
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--weights-kb", type=float, default=270.0)
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="of actors")
    given = parser.parse_args()
    unwind_on_sigterm()
    if not given.json:
        print(conditions())
    table = Table(COLUMNS, given.json)
    with nullcontext(given.board) if given.board else started_redis() as url:
        for rate in given.rate:
            table.add(measure(url, given.actors, rate, given.seconds, given.weights_kb, given.processes))


if __name__ == "__main__":
    main()
