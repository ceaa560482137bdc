"""PPO's agent: what it makes of its keys, with workers and with checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlexp.errors import CheckpointError
from rlexp.policy import LearnResult
from rlexp.rollout.evaluation import ShouldStop
from rlexp.runs.checkpoints import read_checkpoint
from rlexp.sample_batch import SampleBatch
from tests.unit.agents.ppo.agents import make_agent

SMALL_CALLS = {"sample_batch_size": 4, "timesteps_per_iteration": 0}
"""A train batch of 128 is 8 calls."""


@pytest.mark.parametrize(("num_workers", "is_async", "in_flight"), [(1, True, 8), (3, True, 8), (1, False, 0)])
def test_workers_that_overlap_sample_a_whole_train_batch_while_the_learner_learns(
    num_workers: int, is_async: bool, in_flight: int
) -> None:
    agent = make_agent("CartPole-v1", {**SMALL_CALLS, "num_workers": num_workers, "sample_async": is_async})
    found: list[int] = []
    with agent.optimizer.paused() as learner:
        learn_on_batch = learner.learn_on_batch

        def learn(batch: SampleBatch, should_stop: ShouldStop) -> LearnResult:
            found.append(agent.source.num_in_flight)
            return learn_on_batch(batch)

        learner.learn_on_batch = learn  # type: ignore[assignment, method-assign]
    for _ in range(3):
        agent.train()
    agent.stop()
    assert found == [in_flight] * 3


@pytest.mark.parametrize(("kl_coeff", "expected"), [(0.5, 0.25), (0.0, 0.0), (1.0, 1.0)])
def test_the_adapted_kl_coeff_is_restored_unless_the_key_was_changed(
    kl_coeff: float, expected: float, tmp_path: Path
) -> None:
    """A divergence far below ``kl_target`` halves it after each train batch."""
    keys = {"timesteps_per_iteration": 0, "kl_target": 1e3}
    first = make_agent("CartPole-v1", {**keys, "kl_coeff": 0.5})
    first.train()
    path = first.save(tmp_path / "checkpoint_000001", {})
    first.stop()
    second = make_agent("CartPole-v1", {**keys, "kl_coeff": kl_coeff}, read_checkpoint(path))
    row = second.train()
    second.stop()
    assert row["info"]["learner"]["cur_kl_coeff"] == expected


def test_a_checkpoint_of_another_model_is_refused_with_the_difference_and_a_remedy(tmp_path: Path) -> None:
    first = make_agent("CartPole-v1", {})
    path = first.save(tmp_path / "checkpoint_000001", {})
    first.stop()
    with pytest.raises(CheckpointError, match=r"size mismatch for policy_torso\.0\.weight") as refused:
        make_agent("CartPole-v1", {"model": {"fcnet_hiddens": [8]}}, read_checkpoint(path))
    assert "\n" not in refused.value.message
    assert refused.value.hint is not None
    assert "same algorithm, env and model" in refused.value.hint
