"""The process of a learner: what it is like after another trial, and how many threads it computes with."""

from __future__ import annotations

import os
import platform
import random
import resource
import threading
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from rlexp.agents.apex import data_path
from rlexp.agents.dqn.learner import DQNLearner
from rlexp.agents.torch.process import LearnerThreads, ProcessState, TrialLoad, keep_freed_memory
from rlexp.sample_batch import SampleBatch
from tests.lab.dqn import make_batch, make_learner
from tests.unit.agents.apex.test_apex_agent import make_agent

WAITING = TrialLoad(10.0, learner_wait_s=0.0, learning_s=9.0, num_updates=30, workers_busy_s=4.6, num_fragments=80)
"""The learner is busy, and two workers together use half a core."""


@pytest.fixture(autouse=True)
def _same_threads_afterwards() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("load", "number"),
    [
        (WAITING, 2),
        (replace(WAITING, workers_busy_s=7.4), 2),
        (replace(WAITING, workers_busy_s=7.6), 1),  # a quarter of a core would not be free
        (replace(WAITING, workers_busy_s=20.0), 1),
        (replace(WAITING, learner_wait_s=3.0), 1),
        (replace(WAITING, num_updates=900), 1),
        (replace(WAITING, learning_s=0.0, num_updates=0), 1),
    ],
)
def test_a_busy_learner_gets_a_core_that_workers_leave_free(load: TrialLoad, number: int) -> None:
    threads = LearnerThreads(fewest=1, num_cores=2, num_workers=2)
    threads.observe(load)
    assert threads.number == number


@pytest.mark.parametrize("load", [replace(WAITING, workers_busy_s=16.0), replace(WAITING, learner_wait_s=3.0)])
def test_a_thread_is_taken_back_where_workers_need_the_core_or_the_learner_waits(load: TrialLoad) -> None:
    threads = LearnerThreads(fewest=2, num_cores=8, num_workers=2)
    threads.observe(WAITING)
    assert threads.number == 3
    for expected in (2, 2):
        threads.observe(load)
        assert threads.number == expected


def test_a_thread_that_makes_updates_slower_is_taken_back_and_tried_again_later() -> None:
    # Another program has one of two cores: 30 updates in 9 s with one thread, 14 with two. It ends after 16 decisions.
    threads, numbers = LearnerThreads(fewest=1, num_cores=2, num_workers=2), []
    for decision in range(30):
        threads.observe(replace(WAITING, num_updates={1: 30, 2: 14 if decision < 16 else 45}[threads.number]))
        numbers.append(threads.number)
    assert numbers == [2] + 13 * [1] + [2] + 13 * [1] + 2 * [2]


def test_a_thread_is_kept_where_the_whole_machine_is_a_little_slower() -> None:
    threads = LearnerThreads(fewest=1, num_cores=2, num_workers=2)
    for num_updates in (30, 27, 25):
        threads.observe(replace(WAITING, num_updates=num_updates))
        assert threads.number == 2


def test_threads_are_never_more_than_the_cores() -> None:
    threads = LearnerThreads(fewest=1, num_cores=4, num_workers=3)
    for _ in range(10):
        threads.observe(replace(WAITING, workers_busy_s=0.0))
    assert threads.number == 4


def test_fragments_that_are_longer_than_iterations_are_averaged() -> None:
    # Workers that never wait send a fragment in one of five iterations; in the four others they seem to wait.
    threads = LearnerThreads(fewest=1, num_cores=4, num_workers=2)
    silent = TrialLoad(1.0, learner_wait_s=0.0, learning_s=1.0, num_updates=2)
    for number in range(200):
        threads.observe(replace(silent, workers_busy_s=10.0, num_fragments=2) if number % 5 == 4 else silent)
        assert threads.number == 1


def test_a_decision_takes_some_seconds() -> None:
    threads, numbers = LearnerThreads(fewest=1, num_cores=3, num_workers=2), []
    for _ in range(6):
        threads.observe(replace(WAITING, elapsed_s=1.0, learning_s=1.0, num_updates=2, workers_busy_s=0.1))
        numbers.append(threads.number)
    assert numbers == [1, 1, 1, 1, 2, 2]


@pytest.mark.parametrize("busy_workers", [part / 2 for part in range(17)])
def test_a_load_that_stays_does_not_let_the_number_swing(busy_workers: float) -> None:
    threads, numbers = LearnerThreads(fewest=1, num_cores=9, num_workers=8), []
    for _ in range(20):
        threads.observe(replace(WAITING, workers_busy_s=10.0 * busy_workers))
        numbers.append(threads.number)
    assert numbers == sorted(numbers)


@pytest.mark.parametrize(("intensity", "settled"), [(4.0, 2), (1.0, 1)])
def test_the_number_settles_in_a_trial_that_holds_its_ratio(intensity: float, settled: int) -> None:
    # Two cores; an update of 512 rows takes 0.72 s with one thread and 0.44 s with two, an env step 1.3 ms of a core.
    threads, numbers = LearnerThreads(fewest=1, num_cores=2, num_workers=2), []
    for _ in range(20):
        update_s = {1: 0.72, 2: 0.44}[threads.number]
        wanted = 512 / update_s / intensity * 0.0013  # cores for what the learner could be given
        share = min(1.0, max(2.0 - threads.number, 0.5) / wanted)
        busy = wanted * share * (1.5 if threads.number == 2 else 1.0)  # who shares a core takes longer
        learning_s = 10.0 * share
        threads.observe(TrialLoad(10.0, 10.0 - learning_s, learning_s, learning_s / update_s, 10.0 * busy, 80))
        numbers.append(threads.number)
    assert numbers[2:] == [settled] * 18


def test_a_learner_computes_with_the_threads_that_it_is_given() -> None:
    learner, batch = make_learner(), make_batch()
    torch.set_num_threads(1)
    learner.learn_on_batch(batch)
    assert torch.get_num_threads() == 1
    learner.num_threads = 2
    learner.learn_on_batch(batch)
    assert torch.get_num_threads() == 2


def test_an_agent_gives_threads_to_the_thread_that_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_path, "available_cpus", lambda: 2)
    monkeypatch.setattr(data_path, "trial_load", lambda row, infos, rows: WAITING)
    seen: dict[str, set[int]] = {}
    learn = DQNLearner.submit

    def submit(learner: DQNLearner, batch: SampleBatch) -> object:
        update = learn(learner, batch)
        seen.setdefault(threading.current_thread().name, set()).add(torch.get_num_threads())
        return update

    monkeypatch.setattr(DQNLearner, "submit", submit)
    agent = make_agent(num_workers=2)
    reported = [agent.train()["info"]["num_learner_threads"] for _ in range(4)]
    agent.stop()
    assert reported == [1, 2, 2, 2]
    assert seen == {"learner": {1, 2}}


@pytest.mark.parametrize(("cpus_per_worker", "available", "most"), [(0.5, 8, 2), (1.0, 8, 3), (1.0, 2, 2), (0.0, 8, 1)])
def test_a_learner_uses_only_what_its_trial_reserves(
    cpus_per_worker: float, available: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_path, "available_cpus", lambda: available)
    idle = replace(WAITING, workers_busy_s=0.0)
    monkeypatch.setattr(data_path, "trial_load", lambda row, infos, rows: idle)
    agent = make_agent(num_workers=2, num_cpus_per_worker=cpus_per_worker, timesteps_per_iteration=1)
    numbers = [agent.train()["info"]["num_learner_threads"] for _ in range(5)]
    agent.stop()
    assert numbers == [min(number, most) for number in (1, 2, 3, 4, 5)]


def test_a_repeatable_run_keeps_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_path, "available_cpus", lambda: 8)
    monkeypatch.setattr(data_path, "trial_load", lambda row, infos, rows: WAITING)
    agent = make_agent(num_workers=0)
    assert "num_learner_threads" not in agent.train()["info"]
    agent.stop()


def test_the_load_is_that_of_the_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[TrialLoad] = []
    monkeypatch.setattr(LearnerThreads, "observe", lambda threads, load: loads.append(load))
    agent = make_agent(num_workers=2)
    rows = [agent.train() for _ in range(3)]
    agent.stop()
    steps_per_fragment = 4 * 4 / 2  # each second step of this env resets it, and does not count
    for row, load in zip(rows, loads, strict=True):
        info = row["info"]
        assert load.elapsed_s == row["time_this_iter_s"]
        assert load.learner_wait_s == pytest.approx(info["learner_wait_share"] * load.elapsed_s)
        assert load.num_updates == pytest.approx(info["train_throughput"] * load.elapsed_s / 32)
        assert load.workers_busy_s == pytest.approx(2 * load.elapsed_s * (1 - info["worker_wait_share"]), abs=1e-6)
        assert load.num_fragments == row["timesteps_this_iter"] / steps_per_fragment


NUM_BYTES = 40 << 20
"""More than glibc ever keeps by itself."""


def page_faults_of(allocations: int) -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(allocations):
        torch.ones(NUM_BYTES, dtype=torch.uint8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def glibc_version() -> tuple[int, ...]:
    name, version = platform.libc_ver()
    return tuple(int(part) for part in version.split(".")) if name == "glibc" else ()


@pytest.mark.skipif(glibc_version() < (2, 36), reason="needs a glibc that may keep blocks of this size")
def test_freed_memory_is_used_again() -> None:
    keep_freed_memory()
    assert page_faults_of(50) < 50 * NUM_BYTES / resource.getpagesize() / 2


@pytest.fixture
def state() -> Iterator[ProcessState]:
    state = ProcessState()
    yield state
    state.restore()


def test_restore_sets_everything_as_it_was(tmp_path: Path) -> None:
    state = ProcessState()
    folder, environment, filters = Path.cwd(), dict(os.environ), list(warnings.filters)
    threads = torch.get_num_threads()
    os.chdir(tmp_path)
    os.environ["NEW"] = "1"
    del os.environ["PATH"]
    os.environ["HOME"] = "elsewhere"
    warnings.simplefilter("ignore")
    np.seterr(all="raise")
    torch.set_num_threads(threads + 1)
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    state.restore()
    assert Path.cwd() == folder
    assert dict(os.environ) == environment
    assert list(warnings.filters) == filters
    assert np.geterr()["divide"] == "warn"
    assert torch.get_num_threads() == threads
    assert torch.get_default_dtype() is torch.float32
    assert torch.is_grad_enabled()


def test_restore_seeds_global_generators_anew(state: ProcessState) -> None:
    drawn = []
    for _ in range(2):
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)
        state.restore()
        drawn.append((random.random(), np.random.random(), float(torch.rand(()))))
    assert all(first != second for first, second in zip(*drawn, strict=True))


def test_restore_can_be_called_again(state: ProcessState) -> None:
    filters = list(warnings.filters)
    for _ in range(2):
        warnings.simplefilter("ignore")
        state.restore()
        assert list(warnings.filters) == filters
