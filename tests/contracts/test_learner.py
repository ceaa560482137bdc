"""What every Learner promises, for those of the algorithms and for the double of tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import pytest

from rlexp.policy import Learner, LearnResult
from rlexp.sample_batch import Array, SampleBatch
from tests.doubles.scripted import ScriptedLearner, rows
from tests.unit.agents.batches import make_batch, make_learner
from tests.unit.agents.ppo import batches as ppo


class Subject(NamedTuple):
    """A kind of learner, and numbered batches for it."""

    make: Callable[[], Learner]
    batch: Callable[[int], SampleBatch]
    updates: int = 1
    """In each of them."""


SUBJECTS = {
    "DQN": Subject(lambda: make_learner(target_network_update_freq=64), make_batch),
    "PPO, choices": Subject(ppo.make_learner, ppo.make_batch, updates=4),
    "PPO, numbers": Subject(
        lambda: ppo.make_learner(ppo.NUMBERS, num_sgd_iter=3, sgd_minibatch_size=128),
        lambda number: ppo.make_batch(number, space=ppo.NUMBERS),
        updates=3,
    ),
    "scripted": Subject(ScriptedLearner, lambda number: rows(float(number), count=4)),
}


@pytest.fixture(params=SUBJECTS.values(), ids=tuple(SUBJECTS))
def subject(request: pytest.FixtureRequest) -> Subject:
    found: Subject = request.param
    return found


def learned(subject: Subject, learner: Learner, numbers: range) -> list[LearnResult]:
    return [learner.learn_on_batch(subject.batch(number)) for number in numbers]


def as_bytes(arrays: Mapping[str, Array]) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in arrays.items()}


def test_batches_of_one_length_are_equally_many_updates(subject: Subject) -> None:
    learner = subject.make()
    versions = []
    for number in range(3):
        versions.append(learner.num_updates)
        learned(subject, learner, range(number, number + 1))
    assert versions == [0, subject.updates, 2 * subject.updates]
    assert learner.num_updates == 3 * subject.updates


def test_results_have_figures_of_the_same_names_and_a_priority_for_each_row(subject: Subject) -> None:
    results = learned(subject, subject.make(), range(4))
    assert {frozenset(result.stats) for result in results} == {frozenset(results[0].stats)}
    assert all(isinstance(figure, float) for result in results for figure in result.stats.values())
    for number, result in enumerate(results):
        if result.td_errors is not None:
            assert result.td_errors.shape == (len(subject.batch(number)),)
            assert (result.td_errors >= 0).all()


def test_stats_keep_their_names(subject: Subject) -> None:
    learner = subject.make()
    names = set(learner.stats())
    learned(subject, learner, range(4))
    assert set(learner.stats()) == names


def test_weights_and_state_are_copies(subject: Subject) -> None:
    learner = subject.make()
    learned(subject, learner, range(2))
    weights, state = learner.get_weights(), learner.state_dict()
    before = as_bytes(weights), as_bytes(state)
    learned(subject, learner, range(2, 4))
    assert (as_bytes(weights), as_bytes(state)) == before
    assert as_bytes(learner.get_weights()) != before[0]


def test_a_learner_continues_from_the_state_of_another(subject: Subject) -> None:
    learner, other = subject.make(), subject.make()
    learner.observe_progress(1000)
    learned(subject, learner, range(5))
    other.load_state_dict(learner.state_dict())
    assert other.num_updates == learner.num_updates == 5 * subject.updates
    expected, found = (learned(subject, each, range(5, 10)) for each in (learner, other))
    assert [result.stats for result in found] == [result.stats for result in expected]
    assert as_bytes(other.state_dict()) == as_bytes(learner.state_dict())
    assert as_bytes(other.get_weights()) == as_bytes(learner.get_weights())
