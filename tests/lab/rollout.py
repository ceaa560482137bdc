"""Short ways to the WorkerSpecs that tests need, to fleets of workers that are there, and to what these send."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np

from rlexp.cluster.pool.pool import Actor, TaskPool
from rlexp.envs.make import make_vector_env
from rlexp.envs.registry import EnvConfig
from rlexp.rollout.fleet import Fleet, FleetLimits
from rlexp.rollout.folds import Fold, NStep
from rlexp.rollout.recorder import RolloutConfig
from rlexp.rollout.shared_weights import WeightsHandle, WeightsReader
from rlexp.rollout.worker import MakePolicy, RolloutWorker, WorkerSpec
from rlexp.sample_batch import FRAME_IDS, NEW_FRAME_IDS, Array, FrameRows, SampleBatch, SentRows

PLAIN = RolloutConfig(
    fragment_length=10,
    clip_rewards=False,
    batch_mode="truncate_episodes",
    sample_async=False,
)
ONE_STEP = NStep(1, 0.9)


def spec_of(
    env: str,
    make_policy: MakePolicy,
    num_envs: int = 2,
    fold: Fold = ONE_STEP,
    env_config: Mapping[str, Any] | None = None,
    **rollout: Any,
) -> WorkerSpec:
    """Return worker 0 with seed 0; ``rollout`` differs from PLAIN, and a test may ``replace`` the rest."""
    make_env = partial(make_vector_env, EnvConfig(env, env_config or {}), num_envs)
    return WorkerSpec(0, 0, make_env, make_policy, fold, replace(PLAIN, **rollout))


def fleet_of(pool: TaskPool, workers: Sequence[Actor[RolloutWorker]]) -> Fleet:
    """Return a fleet of ``workers`` that replaces none of them."""
    limits = FleetLimits(max_restarts=0, sample_timeout_s=60.0)
    return Fleet(pool, lambda index, attempt: workers[index], len(workers), limits)


def whole(sent: SentRows) -> SampleBatch:
    """Return rows that were sent with whole observations; AssertionError where they were not."""
    assert isinstance(sent, SampleBatch)
    return sent


def assert_same_batch(found: SampleBatch, expected: SampleBatch) -> None:
    """Fail where columns, their order or dtypes, or any number differ."""
    assert list(found) == list(expected)
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name])
        assert found[name].dtype == expected[name].dtype


def stacked_rows(
    first: int, frames: Array, columns: Mapping[str, Array], stacked: int = 2, n_step: int = 1
) -> FrameRows:
    """Return the rows of one env from its step ``first`` on, which shows stacks of ``frames [F, ...]``, one by one."""
    count = len(frames) - (stacked - 1) - n_step
    ids = (np.arange(count)[:, None] + np.arange(stacked)).astype(np.int32)
    rows = SampleBatch({FRAME_IDS: ids, NEW_FRAME_IDS: ids + np.int32(n_step), **columns})
    return FrameRows(rows, frames, np.arange(first, first + len(frames)))


SPAWN = multiprocessing.get_context("spawn")
PATIENCE_S = 60.0
"""Bound of every wait for a process."""


@contextmanager
def process(target: Callable[..., None], *args: Any) -> Iterator[tuple[BaseProcess, Connection]]:
    """Run ``target(*args, connection)`` in a process of its own, which does not outlive the block."""
    here, there = SPAWN.Pipe()
    child = SPAWN.Process(target=target, args=(*args, there), daemon=True)
    child.start()
    try:
        yield child, here
    finally:
        child.kill()
        child.join(PATIENCE_S)
        here.close()
        there.close()


def received(connection: Connection) -> Any:
    """Return what comes next; AssertionError where nothing does in time."""
    assert connection.poll(PATIENCE_S)
    return connection.recv()


def kill_9(child: BaseProcess) -> None:
    """Kill a process and wait for its end."""
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    child.join(PATIENCE_S)
    assert child.exitcode == -signal.SIGKILL


def users_of(name: str) -> list[str]:
    """Return the descriptors and mappings, as links below ``/proc``, of the memory called ``name``."""
    found = []
    processes = [entry for entry in os.listdir("/proc") if entry.isdecimal()]
    for folder in (Path("/proc", process, kind) for process in processes for kind in ("fd", "map_files")):
        with suppress(OSError):  # the process has ended meanwhile, or is somebody else's
            for link in map(folder.joinpath, os.listdir(folder)):
                with suppress(OSError):
                    if name in os.readlink(link):
                        found.append(str(link))
    return found


class ReadHere(WeightsHandle):
    """Opens the memory in the writer's own process."""

    def open(self) -> WeightsReader | None:
        return self.open_anywhere()


def read_here(handle: WeightsHandle) -> ReadHere:
    """Return ``handle`` for a reader in this process."""
    return ReadHere(**{field.name: getattr(handle, field.name) for field in fields(handle)})
