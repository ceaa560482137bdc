"""The LSTM over sequences of rows, its step in NumPy and in torch, and the memory of an episode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiDiscrete, Space

from rlexp.models.action_distributions import actions_of
from rlexp.models.lstm import LSTM, Sequences
from rlexp.models.memory import PREVIOUS, STATE_IN, EpisodeMemory, NumpyLSTM, PreviousStep
from rlexp.models.network_config import MemoryConfig

SIZE, FEATURES, PREVIOUS_NUMBERS = 5, 3, 2
CONFIG = MemoryConfig(SIZE, PREVIOUS_NUMBERS)


def lstm_of(dtype: torch.dtype = torch.float32) -> LSTM:
    torch.manual_seed(0)
    return LSTM(FEATURES, CONFIG).to(dtype)


def sequences_of(lengths: Sequence[int], dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, Sequences]:
    """Return features of rows, and the sequences of the given lengths that they are."""
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(sum(lengths), FEATURES, generator=generator, dtype=dtype)
    states = torch.randn(len(lengths), 2 * SIZE, generator=generator, dtype=dtype)
    previous = torch.randn(sum(lengths), PREVIOUS_NUMBERS, generator=generator, dtype=dtype)
    return features, Sequences(torch.tensor(lengths), states, previous)


def one_by_one(lstm: LSTM, features: torch.Tensor, sequences: Sequences) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what ``forward`` returns, from a step for each row."""
    outputs, last = [], []
    assert sequences.previous is not None
    for start, first, length in zip(sequences.starts, sequences.states, sequences.lengths, strict=True):
        state = first[None]
        for row in range(int(start), int(start + length)):
            output, state = lstm.step(features[row : row + 1], sequences.previous[row : row + 1], state)
            outputs.append(output)
        last.append(state)
    return torch.cat(outputs), torch.cat(last)


@pytest.mark.parametrize("lengths", [(1,), (4,), (2, 5, 1, 5, 3)])
def test_sequences_of_any_lengths_give_what_steps_give_and_the_same_gradient(lengths: tuple[int, ...]) -> None:
    lstm = lstm_of(torch.float64)
    features, sequences = sequences_of(lengths, torch.float64)
    weights = torch.randn(sum(lengths), SIZE, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    gradients = []
    for outputs, last in (lstm(features, sequences), one_by_one(lstm, features, sequences)):
        loss = (weights * outputs).sum() + last.sum()
        gradients.append([outputs, last, *torch.autograd.grad(loss, list(lstm.parameters()))])
    for together, apart in zip(*gradients, strict=True):
        torch.testing.assert_close(together, apart, rtol=1e-12, atol=1e-12)


def test_a_part_of_the_sequences_has_their_rows_and_states() -> None:
    lstm, (features, sequences) = lstm_of(), sequences_of((2, 5, 1, 3))
    whole, last = lstm(features, sequences)
    rows, part = sequences.part(torch.tensor([3, 1]))
    assert rows.tolist() == [8, 9, 10, 2, 3, 4, 5, 6]
    outputs, part_last = lstm(features[rows], part)
    torch.testing.assert_close(outputs, whole[rows])
    torch.testing.assert_close(part_last, last[[3, 1]])


def test_numpy_steps_through_the_same_states() -> None:
    lstm, (features, sequences) = lstm_of(), sequences_of((6, 6, 6))
    acting = NumpyLSTM({f"memory.{name}": weight.numpy() for name, weight in lstm.state_dict().items()})
    with torch.inference_mode():
        expected, last = lstm(features, sequences)
    assert sequences.previous is not None
    shape = (3, 6, -1)
    seen, previous = features.reshape(shape).numpy(), sequences.previous.reshape(shape).numpy()
    states = sequences.states.numpy()
    for step in range(6):
        outputs, states = acting.step(seen[:, step], previous[:, step], states)
        np.testing.assert_allclose(outputs, expected.reshape(shape)[:, step], rtol=1e-5, atol=1e-6)
    assert states.dtype == np.float32
    np.testing.assert_allclose(states, last, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("space", "actions", "numbers"),
    [
        (Discrete(3, start=-1), [1, -1], [[0, 0, 1, 0], [1, 0, 0, 0]]),
        (MultiDiscrete([2, 3]), [[1, 0], [0, 2]], [[0, 1, 1, 0, 0, 0], [1, 0, 0, 0, 1, 0]]),
        (Box(-1, 1, (2,)), [[0.5, -2.0], [0.0, 1.0]], [[0.5, -2, 0], [0, 1, 0]]),
    ],
)
def test_an_action_becomes_numbers_beside_its_reward(
    space: Space[Any], actions: list[float], numbers: list[list[float]]
) -> None:
    previous = PreviousStep(actions_of(space), has_reward=True)
    np.testing.assert_array_equal(previous.of_actions(np.array(actions)), np.array(numbers, np.float32))


def test_an_episode_starts_with_zeros_and_others_go_on() -> None:
    memory = EpisodeMemory(MemoryConfig(1, 3), PreviousStep(actions_of(Discrete(2)), has_reward=True))
    memory.start(2)
    before = memory.columns()
    memory.acted(np.array([[1, 2], [3, 4]], np.float32), np.array([0, 1]))
    memory.stepped(np.array([5.0, 6.0]), np.array([False, True]))
    np.testing.assert_array_equal(memory.states, [[1, 2], [0, 0]])
    np.testing.assert_array_equal(memory.columns()[PREVIOUS], [[1, 0, 5], [0, 0, 0]])
    assert not before[STATE_IN].any()
    assert not before[PREVIOUS].any()
    packed = memory.packed()
    np.testing.assert_array_equal(packed, [[1, 2, 1, 0], [0, 0, 0, 0]])
    memory.unpack(packed, np.array([7.0, 8.0]))
    np.testing.assert_array_equal(memory.columns()[PREVIOUS], [[1, 0, 7], [0, 0, 8]])
