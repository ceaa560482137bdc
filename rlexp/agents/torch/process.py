"""A CPU learner's process: the number of its threads, the memory that it keeps, and the state that it leaves.

More threads help if workers that wait for the learner leave cores idle. Freed memory is kept, so that no update gets it
from the system again. Process-wide changes by envs and libraries are undone between trials.
"""

from __future__ import annotations

import ctypes
import os
import random
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rlexp.optimizers.learner_thread import BUSY_WAIT_SHARE
from rlexp.rollout.fragment import SampleInfo

WINDOW_S = 5.0
"""Least seconds over which a load is averaged before a decision."""


FRAGMENTS_PER_WORKER = 8
"""Least mean number of each worker's fragments in that time; a fragment's time counts as a whole when it ends."""


FREE_CORES = 0.25
"""Idle cores from which another thread helps. With fewer, it would take its core from the workers. Less than half of
one, as workers are busy for longer than they compute, on cores that they share with the learner."""


IDLE_WAIT_SHARE, SCARCE_WAIT_SHARE = 0.5, 0.25
"""Workers whose waiting share is above the first wait for the learner; workers below the second need the cores. They
are far apart, since each thread makes workers wait less, and compute longer."""


LONG_UPDATE_S = 0.05
"""Least seconds of an update for another thread. In shorter updates, one thread does too much of the work anyway.
The others spin between operations, on cores that replay and workers could use."""


SLOWER_SHARE = 0.8
"""Share of the speed with a thread fewer. Below it, the loss is not noise: other programs have the cores."""


WINDOWS_BEFORE_RETRY = 12
"""Decisions without a further thread after a thread made updates slower."""


@dataclass(frozen=True)
class TrialLoad:
    """The work of a trial's processes during some time."""

    elapsed_s: float = 0.0
    learner_wait_s: float = 0.0
    """Seconds that the learner waited for data."""
    learning_s: float = 0.0
    """Seconds that it computed updates."""
    num_updates: float = 0.0
    workers_busy_s: float = 0.0
    """Seconds that the workers worked, summed over them."""
    num_fragments: int = 0
    """Number of fragments from the workers."""

    def __add__(self, later: TrialLoad) -> TrialLoad:
        return TrialLoad(
            self.elapsed_s + later.elapsed_s,
            self.learner_wait_s + later.learner_wait_s,
            self.learning_s + later.learning_s,
            self.num_updates + later.num_updates,
            self.workers_busy_s + later.workers_busy_s,
            self.num_fragments + later.num_fragments,
        )


def trial_load(row: Mapping[str, Any], infos: Sequence[SampleInfo], train_batch_size: int) -> TrialLoad:
    """Return the work of learner and workers in an iteration, from its ``row`` and the reports ``infos``."""
    elapsed_s, info = row["time_this_iter_s"], row["info"]
    return TrialLoad(
        elapsed_s,
        learner_wait_s=elapsed_s * info["learner_time_share"]["wait"],
        learning_s=elapsed_s * info["learner_time_share"]["learning"],
        num_updates=elapsed_s * info["train_throughput"] / train_batch_size,
        workers_busy_s=sum(info.time.total_s for info in infos),
        num_fragments=len(infos),
    )


class LearnerThreads:
    """Decides on the number of threads, one more or one fewer at a time; an agent owns it and calls it each iteration.

    If the ratio of trained to sampled steps is held and the learner is busy, its workers wait, and one more thread
    makes them wait less. If neither side waits for the other, the number stays. A thread that makes updates slower is
    removed: each operation waits for all its threads, and a thread without a core delays the others.
    """

    number: int
    """Number of threads from now on."""

    def __init__(self, fewest: int, num_cores: int, num_workers: int) -> None:
        """Begin with the ``fewest``; learner and ``num_workers`` workers have ``num_cores`` together."""
        self.number = fewest
        self._fewest = fewest
        self._num_cores = num_cores
        self._num_workers = num_workers
        self._load = TrialLoad()
        self._speeds: dict[int, float] = {}
        """Updates per second of learning by the number of threads, each as last measured."""
        self._windows_to_wait = 0

    def observe(self, load: TrialLoad) -> None:
        """Add the load of an iteration; when there is enough, change ``number`` by at most one and start anew."""
        self._load += load
        enough = FRAGMENTS_PER_WORKER * self._num_workers
        if self._load.elapsed_s < WINDOW_S or self._load.num_fragments < enough:
            return
        self.number += self._change(self._load)
        self._load = TrialLoad()

    def _change(self, load: TrialLoad) -> int:
        busy_workers = load.workers_busy_s / load.elapsed_s
        learner_is_busy = load.learner_wait_s <= BUSY_WAIT_SHARE * load.elapsed_s
        workers_wait_share = 1.0 - busy_workers / self._num_workers
        speed = self._speeds[self.number] = load.num_updates / load.learning_s if load.learning_s else 0.0
        if self.number > self._fewest:
            if not learner_is_busy or workers_wait_share < SCARCE_WAIT_SHARE:
                return -1
            if speed < SLOWER_SHARE * self._speeds[self.number - 1]:
                self._windows_to_wait = WINDOWS_BEFORE_RETRY
                return -1
        if self._windows_to_wait:
            self._windows_to_wait -= 1
            return 0
        has_core = self._num_cores - self.number - busy_workers >= FREE_CORES
        is_long = load.learning_s >= LONG_UPDATE_S * max(load.num_updates, 1.0)
        return int(learner_is_busy and workers_wait_share >= IDLE_WAIT_SHARE and has_core and is_long)


# Names and numbers of glibc's <malloc.h>.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8


LARGEST_BLOCK = 1 << 28
"""Bytes of the largest block that is kept: more than any tensor of an update."""


LARGEST_BLOCK_OF_OLD = 1 << 25
"""The largest value that an older glibc allows, which refuses the other one."""


MOST_KEPT = 1 << 30
"""Most bytes that are kept, all blocks together."""


def keep_freed_memory() -> None:
    """Let this process keep as much freed memory as an update takes; does nothing without glibc.

    By default glibc returns large blocks to the system and gets them back page by page, each cleared first. For
    convolutions over 512 stacks of Atari frames, that takes more than half of an update's time.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    if any(mallopt(M_MMAP_THRESHOLD, size) for size in (LARGEST_BLOCK, LARGEST_BLOCK_OF_OLD)):
        mallopt(M_TRIM_THRESHOLD, MOST_KEPT)
        mallopt(M_ARENA_MAX, 1)  # the heaps of other threads are small, and are returned whatever the thresholds are


class ProcessState:
    """Owns the state that a process had when this was made; a trial's process makes one before its first agent.

    State in the user's own modules is not part of it: only a new process imports them anew.
    """

    def __init__(self) -> None:
        self._folder = os.getcwd()
        self._environment = dict(os.environ)
        self._numpy_errors = np.geterr()
        self._dtype = torch.get_default_dtype()
        self._num_threads = torch.get_num_threads()
        self._has_gradients = torch.is_grad_enabled()
        self._is_deterministic = torch.are_deterministic_algorithms_enabled()
        self._warnings = warnings.catch_warnings()
        self._warnings.__enter__()

    def restore(self) -> None:
        """Set all of it as it was; the generators of Python, NumPy and PyTorch get new seeds, as in a new process."""
        os.chdir(self._folder)
        self._restore_environment()
        self._warnings.__exit__(None, None, None)
        self._warnings = warnings.catch_warnings()
        self._warnings.__enter__()
        np.seterr(**self._numpy_errors)
        torch.set_default_dtype(self._dtype)
        torch.set_num_threads(self._num_threads)
        torch.set_grad_enabled(self._has_gradients)
        if torch.are_deterministic_algorithms_enabled() != self._is_deterministic:  # the next call imports a compiler
            torch.use_deterministic_algorithms(self._is_deterministic)
        random.seed()
        np.random.seed()
        torch.seed()
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.empty_cache()

    def _restore_environment(self) -> None:
        for name in os.environ.keys() - self._environment.keys():
            del os.environ[name]
        for name, value in self._environment.items():
            if os.environ.get(name) != value:
                os.environ[name] = value
