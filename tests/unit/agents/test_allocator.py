from __future__ import annotations

import platform
import resource

import pytest
import torch

from rlexp.agents.torch.process import keep_freed_memory

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
