"""Weights in shared memory: taken when they are due, whole whatever the writer does meanwhile, and gone at the end."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from multiprocessing.connection import Connection

import numpy as np
import pytest

from rlexp.rollout.shared_weights import MOST_READS, SharedWeights, WeightsReader
from rlexp.sample_batch import Array
from tests.lab.rollout import PATIENCE_S, kill_9, process, received, users_of

NUM_TAKEN = 100


def weights(version: int, size: int = 5) -> dict[str, Array]:
    """Return arrays of different forms, of which every number is ``version``."""
    return {
        "layer": np.full((size, 3), version, np.float32),
        "bias": np.full(size, version, np.float64),
        "scale": np.array(version),
        "none": np.zeros((0, 4), np.float32),
        "kernel": np.full((2, size, 3), version, np.float32).transpose(1, 0, 2),
    }


def check_whole(taken: Mapping[str, Array], version: int, size: int = 5) -> None:
    expected = weights(version, size)
    assert list(taken) == list(expected)
    for name, array in expected.items():
        assert taken[name].dtype == array.dtype
        np.testing.assert_array_equal(taken[name], array, strict=True)


def opened(shared: SharedWeights, index: int = 0) -> WeightsReader:
    assert shared.reader(index).open() is None, "weights are not copied within a process"
    reader = shared.reader(index).open_anywhere()
    assert reader is not None
    return reader


def check_takes(reader: WeightsReader, version: int) -> None:
    """Check that the reader is given whole weights of this version."""
    taken = reader.take()
    assert taken is not None
    check_whole(taken, version)


@pytest.fixture
def shared() -> Iterator[SharedWeights]:
    made = SharedWeights(num_readers=2, max_delay=10)
    yield made
    made.close()


def test_reader_finds_the_newest_weights(shared: SharedWeights) -> None:
    reader = opened(shared)
    assert reader.take() is None
    for version in (0, 1, 7):
        shared.publish(version, weights(version))
    check_takes(reader, 7)
    assert reader.version == 7


def test_reader_owns_what_it_takes(shared: SharedWeights) -> None:
    reader = opened(shared)
    shared.publish(1, weights(1))
    taken = reader.take()
    assert taken is not None
    for version in (2, 3, 4):
        shared.publish(version, weights(version))
    check_whole(taken, 1)


def test_reader_takes_weights_only_when_it_is_due(shared: SharedWeights) -> None:
    reader = opened(shared)
    shared.publish(1, weights(1))
    assert reader.take() is not None
    shared.publish(2, weights(2))
    reader.sampled(9)
    assert reader.take() is None
    reader.sampled(1)
    check_takes(reader, 2)
    reader.sampled(9)
    assert reader.take() is None


def test_weights_that_were_sent_count_as_taken(shared: SharedWeights) -> None:
    reader = opened(shared)
    shared.publish(1, weights(1))
    reader.given(1)
    reader.sampled(10)
    assert reader.take() is None
    shared.publish(2, weights(2))
    assert reader.take() is not None


def test_weights_are_wanted_while_a_reader_is_due_and_finds_none(shared: SharedWeights) -> None:
    first, second = opened(shared, 0), opened(shared, 1)
    shared.publish(3, weights(3))
    assert first.take() is not None
    assert second.take() is not None
    assert not shared.is_wanted
    second.sampled(10)
    assert second.take() is None
    assert shared.is_wanted
    shared.publish(4, weights(4))
    assert not shared.is_wanted
    assert second.take() is not None
    assert first.take() is None  # it is not due
    assert not shared.is_wanted


class InterruptedWeights(dict[str, Array]):
    """Weights whose second array cannot be read: the copy ends in between, as if its process was killed."""

    def __getitem__(self, name: str) -> Array:
        if name != "layer":
            raise KeyboardInterrupt
        return super().__getitem__(name)


def test_publication_that_was_not_completed_is_never_read(shared: SharedWeights) -> None:
    reader = opened(shared)
    for version in (1, 2):
        shared.publish(version, weights(version))
    with pytest.raises(KeyboardInterrupt):
        shared.publish(3, InterruptedWeights(weights(3)))
    check_takes(reader, 2)


class OvertakenSlot:
    """A slot that is written while it is copied; the copy has a part of each publication."""

    def __init__(self, slot: Array, write: Callable[[], None]) -> None:
        self._slot = slot
        self._write = write

    def copy(self) -> Array:
        part = self._slot[: len(self._slot) // 2].copy()
        self._write()
        return np.concatenate([part, self._slot[len(part) :]])


def overtaken(shared: SharedWeights, publications: int, times: int) -> WeightsReader:
    """Return a reader during whose first copies, so many ``times``, others are published."""
    reader, versions, left = opened(shared), iter(range(2, 100)), iter(range(times))

    def overtake() -> None:
        if next(left, None) is not None:
            for version in islice(versions, publications):
                shared.publish(version, weights(version))

    shared.publish(1, weights(1))
    reader._memory.find_layout()
    reader._memory.slots = [OvertakenSlot(slot, overtake) for slot in reader._memory.slots]  # type: ignore[misc]
    return reader


@pytest.mark.parametrize("publications", [1, 2, 3])
def test_copy_that_was_overtaken_is_made_again(shared: SharedWeights, publications: int) -> None:
    reader = overtaken(shared, publications, times=2)
    taken = reader.take()
    assert taken is not None
    check_whole(taken, reader.version)
    assert reader.version == (1 if publications == 1 else 2 * publications + 1)


def test_reader_that_is_always_overtaken_goes_on_with_its_own(shared: SharedWeights) -> None:
    reader = overtaken(shared, publications=2, times=MOST_READS)
    assert reader.take() is None
    assert reader.version == -1


def test_weights_of_another_form_are_refused(shared: SharedWeights) -> None:
    shared.publish(1, weights(1))
    with pytest.raises(ValueError, match="another form"):
        shared.publish(2, weights(2, size=6))
    check_takes(opened(shared), 1)


def test_memory_of_another_machine_has_no_reader(shared: SharedWeights) -> None:
    handle = shared.reader(0)
    for elsewhere in (replace(handle.segment, name="rlexp-other"), replace(handle.segment, pid=2**22 + 1)):
        assert replace(handle, segment=elsewhere).open_anywhere() is None
    with pytest.raises(ValueError, match="no 2"):
        shared.reader(2)


def publish_for_ever(size: int, told: Connection) -> None:
    """Be the learner's process: publish as fast as possible."""
    shared = SharedWeights(num_readers=2, max_delay=0)
    told.send([shared.reader(index) for index in range(2)])
    version = 0
    while True:
        shared.publish(version, weights(version, size))
        version += 1


def test_closed_weights_give_their_memory_back_while_their_owner_lives() -> None:
    shared = SharedWeights(num_readers=1, max_delay=10)
    name = shared.reader(0).segment.name
    shared.publish(1, weights(1))
    assert users_of(name)
    shared.close()
    shared.close()
    assert users_of(name) == []
    assert not shared.is_wanted
    with pytest.raises(ValueError, match="closed"):
        shared.publish(2, weights(2))


def test_weights_are_never_torn_and_outlive_their_killed_writer() -> None:
    size = 1_000
    with process(publish_for_ever, size) as (writer, told):
        handles = received(told)
        reader, late = (handle.open() for handle in handles)
        deadline, num_taken = time.monotonic() + PATIENCE_S, 0
        while num_taken < NUM_TAKEN:
            assert time.monotonic() < deadline
            taken, before = reader.take(), reader.version
            if taken is not None:
                check_whole(taken, before, size)
                num_taken += 1
        kill_9(writer)
    last = late.take()
    assert last is not None
    check_whole(last, late.version, size)
    assert late.version >= reader.version
    assert handles[0].open() is None  # nobody comes in after the owner's end
    name = handles[0].segment.name
    assert users_of(name)
    del reader, late
    gc.collect()
    assert users_of(name) == []
