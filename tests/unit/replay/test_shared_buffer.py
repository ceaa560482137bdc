"""The library's shared buffer with explorers in other processes: started in any way, too fast, killed."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.context import ForkContext, SpawnContext
from pathlib import Path

import numpy as np
import pytest

from rlexp.errors import CheckpointError, ResourceError
from rlexp.replay import NStepConfig, ReplayWriter, SharedPrioritizedReplayBuffer
from rlexp.sample_batch import Array
from tests.lab.rollout import PATIENCE_S, SPAWN, kill_9, process

COLUMNS = {"obs": ((40,), np.float32), "number": ((), np.int64)}


def make_buffer(capacity: int = 100, num_writers: int = 2, **options: float) -> SharedPrioritizedReplayBuffer:
    return SharedPrioritizedReplayBuffer(capacity, COLUMNS, num_writers, seed=0, **options)  # type: ignore[arg-type]


def rows(numbers: Array) -> dict[str, Array]:
    return {"obs": np.repeat(numbers[:, None], 40, axis=1).astype(np.float32), "number": numbers}


def check_whole(batch: dict[str, Array]) -> None:
    np.testing.assert_array_equal(batch["obs"], rows(batch["number"])["obs"])


def write_some(writer: ReplayWriter, first: int, count: int) -> None:
    for start in range(first, first + count, 7):
        writer.add(**rows(np.arange(start, min(start + 7, first + count))))


def write_for_ever(writer: ReplayWriter, told: Connection) -> None:
    while True:
        writer.add(**rows(np.arange(50)))


def has_rows(buffer: SharedPrioritizedReplayBuffer, count: int) -> bool:
    return len(buffer) == count


def learn_until(buffer: SharedPrioritizedReplayBuffer, is_done: Callable[[], bool]) -> int:
    """Take rows in and check those that are drawn; return how many came."""
    deadline, added = time.monotonic() + PATIENCE_S, 0
    while not is_done():
        assert time.monotonic() < deadline
        added += buffer.poll()
        if len(buffer):
            check_whole(buffer.sample(64))
    return added


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("context", [SPAWN, multiprocessing.get_context("fork")], ids=["spawn", "fork"])
def test_shared_buffer_gets_rows_of_processes(context: SpawnContext | ForkContext) -> None:
    buffer = make_buffer(capacity=5000, headroom=20)
    writers = [buffer.writer(index) for index in range(2)]
    writers[0].add(**rows(np.arange(5)))  # so the one that is copied by fork has its memory open
    for first in (0, 400):  # those of the second round continue by the same writers
        explorers = [
            context.Process(target=write_some, args=(writer, first + 1000 * index, 400), daemon=True)
            for index, writer in enumerate(writers)
        ]
        for explorer in explorers:
            explorer.start()
        learn_until(buffer, partial(has_rows, buffer, 5 + 2 * (first + 400)))
        for explorer in explorers:
            explorer.join(PATIENCE_S)
            assert explorer.exitcode == 0
    everything = buffer.get_all_transitions()
    check_whole(everything)
    assert sorted(everything["number"].tolist()) == sorted([*range(5), *range(800), *range(1000, 1800)])
    for share in (everything["number"] < 1000, everything["number"] >= 1000):
        in_order = everything["number"][share]
        assert in_order[-700:].tolist() == sorted(in_order[-700:].tolist())


@pytest.mark.parametrize("seed", range(2))
def test_shared_buffer_survives_a_killed_explorer(seed: int) -> None:
    before = set(os.listdir("/dev/shm"))
    buffer = make_buffer(capacity=200, headroom=60)
    with process(write_for_ever, buffer.writer(0)) as (explorer, _):
        learn_until(buffer, lambda: len(buffer) == 100)
        time.sleep(0.01 * seed)
        kill_9(explorer)
    buffer.poll()
    assert buffer.poll() == 0
    check_whole(buffer.get_all_transitions())
    for _ in range(20):  # another one takes its place, more rows than fit
        buffer.writer(0).add(**rows(np.arange(500, 540)))
        assert buffer.poll() == 40
        check_whole(buffer.sample(64))
    assert set(buffer.get_all_transitions()["number"].tolist()) == set(range(500, 540))
    assert set(os.listdir("/dev/shm")) <= before


def test_shared_memory_is_freed_with_the_buffer() -> None:
    buffer = make_buffer()
    writer = buffer.writer(0)
    writer.add(**rows(np.arange(3)))
    handle = writer._spec.segment
    assert handle.name in Path("/proc/self/maps").read_text()
    fresh = buffer.writer(1)
    del buffer, writer
    gc.collect()
    assert handle.name not in Path("/proc/self/maps").read_text()
    with pytest.raises(ResourceError, match="cannot reach the memory"):
        fresh.add(**rows(np.arange(3)))


def test_writer_waits_only_so_long_for_the_learner() -> None:
    buffer = make_buffer(capacity=10, num_writers=1, headroom=5, full_timeout_s=0.05)
    writer = buffer.writer(0)
    writer.add(**rows(np.arange(15)))
    for _ in range(2):
        with pytest.raises(TimeoutError, match=r"replay took no rows from ring 0 for 0\.05 s"):
            writer.add(**rows(np.arange(15, 16)))
    assert buffer.poll() == 15
    assert writer.add(**rows(np.arange(15, 20))) == 5
    with pytest.raises(TimeoutError):  # the ten rows that are held are not written over
        writer.add(**rows(np.arange(20, 21)))
    assert buffer.get_all_transitions()["number"].tolist() == list(range(10, 20))


def test_shared_buffer_first_priorities() -> None:
    buffer = make_buffer(alpha=1.0, eps=0.0)
    first, second = buffer.writer(0), buffer.writer(1)
    first.add(**rows(np.array([1, 4])), priorities=[1, 4])
    second.add(**{name: column[0] for name, column in rows(np.array([2])).items()}, priorities=2)
    buffer.poll()
    second.add(**rows(np.array([4])))  # the highest so far
    batch = buffer.sample(300, beta=1.0)
    np.testing.assert_allclose(batch["weights"], 1 / batch["number"])
    assert set(batch["number"].tolist()) == {1, 2, 4}
    keys = batch["keys"][batch["number"] == 2][:1]
    assert buffer.update_priorities(keys, [8]) == 0
    batch = buffer.sample(300, beta=1.0)
    np.testing.assert_allclose(batch["weights"][batch["keys"] == keys], 1 / 8)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0, 1e60])
def test_writer_refuses_bad_priorities(bad: float) -> None:
    buffer = make_buffer()
    with pytest.raises(ValueError, match="priority of row 1 is"):
        buffer.writer(0).add(**rows(np.arange(2)), priorities=[1.0, bad])
    with pytest.raises(ValueError, match=r"shape \[1\] for 2 rows"):
        buffer.writer(0).add(**rows(np.arange(2)), priorities=1.0)
    with pytest.raises(ValueError, match="missing: obs"):
        buffer.writer(0).add(number=[1])
    assert len(buffer) == 0
    assert buffer.get_all_transitions()["obs"].shape == (0, 40)


def test_shared_buffer_drops_stale_priorities() -> None:
    buffer = make_buffer(capacity=4, alpha=1.0, eps=0.0)
    writer = buffer.writer(1)
    writer.add(**rows(np.arange(2)))
    old = buffer.sample(10)["keys"]
    buffer.clear()
    assert len(buffer) == 0
    writer.add(**rows(np.arange(2, 4)))
    assert buffer.poll() == 2
    assert buffer.update_priorities(old, np.full(10, 50.0)) == 10
    assert buffer.num_stale_priorities == 10
    assert set(buffer.sample(50, beta=1.0)["weights"].tolist()) == {1.0}


STEP = {"rewards": 1.0, "terminated": 0.0, "new_obs": 9.0}


def make_folding_buffer() -> SharedPrioritizedReplayBuffer:
    columns = dict.fromkeys(("obs", *STEP), ((), np.float32))
    return SharedPrioritizedReplayBuffer(20, columns, 2, n_step=NStepConfig(2, gamma=0.5))


def test_writer_folds_n_step_transitions_and_travels_without_waiting_steps() -> None:
    buffer = make_folding_buffer()
    writer = buffer.writer(0)
    assert [writer.add(obs=number, **STEP) for number in range(3)] == [0, 1, 1]
    copy: ReplayWriter = pickle.loads(pickle.dumps(writer))  # noqa: S301
    assert copy.on_episode_end() == 0
    assert writer.on_episode_end() == 1
    rows = buffer.get_all_transitions()
    assert rows["rewards"].tolist() == [1.5, 1.5, 1.0]
    assert rows["discounts"].tolist() == [0.25, 0.25, 0.5]


def test_each_writer_needs_a_row() -> None:
    with pytest.raises(ValueError, match="capacity is 2, and each of 4 writers needs one row"):
        make_buffer(capacity=2, num_writers=4)
    buffer = make_buffer(capacity=4, num_writers=4)
    for index in range(4):
        buffer.writer(index).add(**rows(np.array([index])))
    assert buffer.get_all_transitions()["number"].tolist() == [0, 1, 2, 3]


def open_segments() -> set[str]:
    """Return the descriptors and mappings of shared memory that this process has."""
    links = [os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    mappings = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return {line for line in (*links, *mappings) if "/memfd:rlexp-" in line}


def test_closed_buffer_gives_its_memory_back() -> None:
    gc.collect()
    before = open_segments()
    with make_buffer() as buffer:
        writer = buffer.writer(0)
        buffer.writer(1).add(**rows(np.arange(3)))
        batch = buffer.sample(5)
        assert open_segments() > before
    buffer.close()
    check_whole(batch)
    for use in (buffer.poll, buffer.clear, buffer.get_all_transitions, partial(buffer.sample, 1)):
        with pytest.raises(ValueError, match="the buffer is closed"):
            use()
    with pytest.raises(ResourceError, match="cannot reach the memory"):
        writer.add(**rows(np.arange(1)))
    gc.collect()
    assert open_segments() <= before, "although the buffer is still there"


def test_cleared_writer_begins_another_episode() -> None:
    buffer = make_folding_buffer()
    writer = buffer.writer(0)
    for number in (100, 101):
        writer.add(obs=number, **STEP)
    buffer.clear()
    writer.clear()
    for number in (0, 1):
        writer.add(obs=number, **STEP)
    assert buffer.get_all_transitions()["obs"].tolist() == [0]


def test_shared_buffer_saves_and_loads(tmp_path: Path) -> None:
    original = make_buffer(capacity=10, headroom=20, alpha=1.0, eps=0.0)
    for index in range(2):
        numbers = np.arange(10 * index + 1, 10 * index + 8)
        original.writer(index).add(**rows(numbers), priorities=numbers)
    original.save(tmp_path / "replay.npz")
    copy = make_buffer(capacity=10, num_writers=3, headroom=20, alpha=1.0, eps=0.0)
    copy.load(tmp_path / "replay.npz")
    batch = copy.sample(500, beta=1.0)
    check_whole(batch)
    assert set(batch["number"].tolist()) == {3, 4, 5, 6, 7, 13, 14, 15, 16, 17}
    np.testing.assert_allclose(batch["weights"], 3 / batch["number"])
    copy.writer(2).add(**rows(np.array([99])))
    assert 99 in copy.get_all_transitions()["number"]
    with pytest.raises(CheckpointError, match="before explorers write"):
        copy.load(tmp_path / "replay.npz")
    assert 99 in copy.get_all_transitions()["number"]


def test_shared_buffer_has_writers_by_number() -> None:
    buffer = make_buffer(num_writers=2)
    for index in (-1, 2):
        with pytest.raises(ValueError, match="writers 0 to 1"):
            buffer.writer(index)
