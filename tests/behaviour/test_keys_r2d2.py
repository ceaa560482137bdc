"""The keys of R2D2 through its agents; each test fails if its key is ignored."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rlexp.agents.r2d2.agent import R2D2Learner
from rlexp.models.memory import PREVIOUS, STATE_IN
from rlexp.rollout.sequences import NUM_BURNED, NUM_FOLDED
from rlexp.sample_batch import ACTIONS, DISCOUNTS, OBS, REWARDS, TD_ERRORS, SampleBatch
from tests.lab import r2d2
from tests.lab.agents import poll
from tests.lab.envs import COUNTING_ENV

STATELESS = "rllib/StatelessCartPole-v0"


def sent_by(env: str, **keys: Any) -> tuple[SampleBatch, R2D2Learner]:
    """Return rows of an agent's worker, and the learner, which has not learned yet."""
    agent = r2d2.make_agent(env, num_envs_per_worker=1, **keys)
    batch = SampleBatch.concat([batch for _ in range(8) for batch, _ in poll(agent)])
    with agent.optimizer.paused() as learner:
        assert isinstance(learner, R2D2Learner)
        return batch, learner


@pytest.mark.key("burn_in", "replay_sequence_length", "model.max_seq_len")
@pytest.mark.parametrize(
    ("keys", "burn_in", "length"),
    [
        ({"burn_in": 2}, 2, r2d2.LENGTH),
        ({"burn_in": 0}, 0, r2d2.LENGTH),
        ({"burn_in": 2, "replay_sequence_length": 6}, 2, 4),
        ({"burn_in": 1, "model": {**r2d2.TINY["model"], "max_seq_len": 3}}, 1, 3),
    ],
)
def test_sequences_have_their_lengths(keys: dict[str, Any], burn_in: int, length: int) -> None:
    batch, _ = sent_by(COUNTING_ENV, **keys)
    assert batch[NUM_FOLDED].shape[1] == length
    assert batch[OBS].shape[1] == 3 * (burn_in + length + 1)
    assert batch[NUM_BURNED].max() == burn_in
    steps = batch[OBS].reshape(batch.count, -1, 3)[:, burn_in, 2]
    assert sorted({*steps.astype(int)}) == [*range(0, 12, length)]  # the first learned ones of episodes of 3, 7 and 12


@pytest.mark.key("zero_init_states", "model.lstm_cell_size")
def test_states_are_stored_only_if_they_are_used() -> None:
    assert STATE_IN not in sent_by(COUNTING_ENV, zero_init_states=True)[0]
    assert sent_by(COUNTING_ENV, zero_init_states=False)[0][STATE_IN].shape[1] == 2 * r2d2.CELLS


@pytest.mark.key("model.use_lstm", "model.lstm_use_prev_action", "model.lstm_use_prev_reward")
@pytest.mark.parametrize(("action", "reward", "size"), [(False, False, 0), (True, False, 2), (False, True, 1)])
def test_the_network_sees_the_step_before(action: bool, reward: bool, size: int) -> None:
    seen = {"lstm_use_prev_action": action, "lstm_use_prev_reward": reward}
    batch, learner = sent_by(STATELESS, model={**r2d2.TINY["model"], **seen})
    assert learner.network.memory is not None
    assert (batch[PREVIOUS].shape[2] if PREVIOUS in batch else 0) == size
    assert learner.network.memory.lstm.input_size == 8 + size


@pytest.mark.key("use_h_function", "h_function_epsilon")
@pytest.mark.parametrize("keys", [{"h_function_epsilon": 0.5}, {"h_function_epsilon": 0.0}, {"use_h_function": False}])
def test_values_are_rescaled(keys: dict[str, Any]) -> None:
    own = {"model": {**r2d2.TINY["model"], "max_seq_len": 1}, "burn_in": 0, "zero_init_states": False}
    batch, learner = sent_by(STATELESS, worker_side_prioritization=True, prioritized_replay=True, **own, **keys)
    obs = torch.from_numpy(batch[OBS].reshape(batch.count, 2, -1))
    with torch.inference_mode():
        q_tm1, states = learner.network.step(obs[:, 0], None, torch.from_numpy(batch[STATE_IN]))
        q_t, _ = learner.network.step(obs[:, 1], None, states)
    value = q_t.max(dim=1).values[:, 0].double().numpy()
    epsilon = keys.get("h_function_epsilon")
    if epsilon is not None:  # h is inverted by search
        y = np.linspace(-3, 3, 600_001)
        value = np.interp(value, h(y, epsilon), y)
    target = batch[REWARDS][:, 0] + batch[DISCOUNTS][:, 0] * value
    target = target if epsilon is None else h(target, epsilon)
    errors = np.abs(target - q_tm1[:, :, 0].numpy()[np.arange(batch.count), batch[ACTIONS][:, 0]])
    np.testing.assert_allclose(batch[TD_ERRORS], errors, rtol=1e-3, atol=1e-5)


def h(x: Any, epsilon: float) -> Any:
    return np.sign(x) * (np.sqrt(np.abs(x) + 1) - 1) + epsilon * x
