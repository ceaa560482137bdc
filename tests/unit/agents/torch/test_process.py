"""What a process is like after another trial."""

from __future__ import annotations

import os
import platform
import random
import resource
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from rlexp.agents.torch.process import ProcessState, keep_freed_memory

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
