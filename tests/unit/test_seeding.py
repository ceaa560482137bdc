from __future__ import annotations

import itertools

import numpy as np

from rlexp.schedules import derive_seed


def test_the_same_stream_has_the_same_seed_on_every_machine() -> None:
    # Written down once: a change here makes every recorded experiment another one.
    assert derive_seed(0, "learner") == 242458952
    assert derive_seed(42, "worker", 3, "env") == 1957126330


def test_streams_differ_by_seed_by_name_and_by_index() -> None:
    names = [(), ("learner",), ("worker", 0, "env"), ("worker", 0, "exploration"), ("worker", 1, "env"), ("replay", 1)]
    seeds = [derive_seed(seed, *name) for seed, name in itertools.product(range(50), names)]
    assert len(set(seeds)) == len(seeds)


def test_parts_of_a_name_do_not_run_together() -> None:
    assert derive_seed(1, 2) != derive_seed(12)
    assert derive_seed(1, "worker", 11) != derive_seed(1, "worker1", 1)


def test_seeds_fill_31_bits_evenly() -> None:
    seeds = np.array([derive_seed(0, "worker", index) for index in range(4000)])
    assert seeds.min() >= 0
    assert seeds.max() < 2**31
    # Each bit is set in half of them: 2000, with a standard deviation of 31.6.
    bits = (seeds[:, None] >> np.arange(31)) & 1
    assert np.abs(bits.sum(axis=0) - 2000).max() < 5 * 31.6
