"""What benchmarks measure in, as most of them are too slow to be run by tests."""

from __future__ import annotations

import os

from benchmarks.processes import in_own_process


def test_work_is_done_in_a_process_of_its_own() -> None:
    assert in_own_process(60, os.getpid) != os.getpid()
