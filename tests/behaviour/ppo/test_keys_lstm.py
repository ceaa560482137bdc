"""The keys of an LSTM under ``config.model``; each test fails if its key is ignored."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlexp.models.memory import PREVIOUS, SEQUENCE_STARTS
from rlexp.sample_batch import ACTIONS, SampleBatch
from tests.lab.agents import weights_of
from tests.lab.ppo import LENGTH, NUM_ENVS, make_ppo, sample_ppo


def first_rows(**model: Any) -> SampleBatch:
    """Return the rows of one fragment, which has no end of an episode."""
    ((batch, _),) = sample_ppo(1, model={"fcnet_hiddens": [8], "use_lstm": True, **model})
    return batch


@pytest.mark.key("model.use_lstm", "model.lstm_cell_size")
def test_a_network_has_an_lstm_of_that_size() -> None:
    assert "memory.lstm.weight_hh_l0" not in weights_of(make_ppo())
    recurrent = make_ppo(model={"fcnet_hiddens": [8], "use_lstm": True, "lstm_cell_size": 6})
    assert weights_of(recurrent)["memory.lstm.weight_hh_l0"].shape == (4 * 6, 6)


@pytest.mark.key("model.max_seq_len")
@pytest.mark.parametrize(("longest", "starts"), [(4, [0, 4, 8]), (20, [0])])
def test_fragments_are_cut_into_sequences(longest: int, starts: list[int]) -> None:
    found = np.flatnonzero(first_rows(max_seq_len=longest)[SEQUENCE_STARTS])
    assert found.tolist() == [env * LENGTH + start for env in range(NUM_ENVS) for start in starts]


@pytest.mark.key("model.lstm_use_prev_action", "model.lstm_use_prev_reward")
def test_the_lstm_sees_the_action_and_the_reward_before() -> None:
    assert PREVIOUS not in first_rows()
    actions = first_rows(lstm_use_prev_action=True)
    width = actions[PREVIOUS].shape[1]
    seen = np.eye(width, dtype=np.float32)[actions[ACTIONS][: LENGTH - 1]]
    np.testing.assert_array_equal(actions[PREVIOUS][1:LENGTH], seen)
    rewards = first_rows(lstm_use_prev_reward=True)
    assert rewards[PREVIOUS].shape == (NUM_ENVS * LENGTH, 1)
    assert not rewards[PREVIOUS][0].any()
    assert rewards[PREVIOUS][1:LENGTH].any()
