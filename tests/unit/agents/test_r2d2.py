"""R2D2: the rescaling of values, the loss on sequences against a slow one, and what replay must not change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rlexp.agents.dqn.learner import DQNLearnerConfig
from rlexp.agents.r2d2.agent import R2D2Learner, R2D2Settings
from rlexp.agents.r2d2.policy import ETA, rescaled, unrescaled
from rlexp.config.keys.r2d2 import R2D2Config
from rlexp.models.memory import PREVIOUS, STATE_IN
from rlexp.models.network_config import MemoryConfig, QNetworkConfig
from rlexp.models.networks import QNetwork
from rlexp.policy import HasMemory
from rlexp.rollout.sequences import NUM_BURNED, NUM_FOLDED, ReplaySequences
from rlexp.sample_batch import ACTIONS, DISCOUNTS, IMPORTANCE_WEIGHTS, OBS, REWARDS, TD_ERRORS, SampleBatch
from rlexp.schedules import PiecewiseSchedule
from tests.lab import r2d2
from tests.lab.agents import checkpoint_of, poll, weights_of
from tests.lab.dqn import NETWORK
from tests.lab.experiment_files import config_of, conflicts, planned
from tests.lab.pixel_games import CATCH

CELLS, PREVIOUS_NUMBERS, EPSILON = 6, 2, 1e-3
FORM = ReplaySequences(length=4, burn_in=3, n_step=2, gamma=0.9)
RECURRENT = replace(NETWORK, memory=MemoryConfig(CELLS, PREVIOUS_NUMBERS))


def make_r2d2(
    form: ReplaySequences = FORM, network: QNetworkConfig = RECURRENT, h_epsilon: float | None = EPSILON, **keys: Any
) -> R2D2Learner:
    settings = {"double_q": True, "target_network_update_freq": 10**9, "target_counts_trained": True, **keys}
    config = DQNLearnerConfig(PiecewiseSchedule(((0, 1e-3),)), 1e-8, None, device="cpu", **settings)
    learner = R2D2Learner(network, config, R2D2Settings(form, h_epsilon), 0, lambda note: None)
    with torch.no_grad():
        next(learner.target.advantage_head.parameters()).add_(0.1)  # the two networks differ
    return learner


def make_sequences(seed: int = 0, count: int = 5) -> SampleBatch:
    """Return random sequences: with and without a burn-in, whole ones and short ones."""
    rng = np.random.default_rng(seed)
    lengths = np.array([4, 4, 1, 3, 4])[:count, None]
    steps = np.arange(FORM.length)
    ends = np.array([False, True, True, True, False])[:count, None]
    folded = np.where(ends, np.minimum(FORM.n_step, lengths - steps), FORM.n_step) * (steps < lengths)
    shape = (count, FORM.length)
    return SampleBatch(
        {
            OBS: rng.normal(size=(count, 3 * FORM.num_obs)).astype(np.float32),
            ACTIONS: rng.integers(NETWORK.num_actions, size=shape),
            REWARDS: (20 * rng.normal(size=shape)).astype(np.float32),
            DISCOUNTS: rng.choice([0.0, 0.81, 0.9], size=shape).astype(np.float32),
            NUM_FOLDED: folded.astype(np.int32),
            NUM_BURNED: np.array([3, 0, 2, 0, 3], np.int32)[:count],
            STATE_IN: rng.normal(size=(count, 2 * CELLS)).astype(np.float32),
            PREVIOUS: rng.normal(size=(count, FORM.num_obs, PREVIOUS_NUMBERS)).astype(np.float32),
            IMPORTANCE_WEIGHTS: rng.uniform(0.1, 1.0, size=count).astype(np.float32),
        }
    )


def doubles(network: QNetwork, config: QNetworkConfig) -> QNetwork:
    copy = QNetwork(config).double()
    copy.torso.seen = lambda obs: obs.double()  # type: ignore[method-assign]
    copy.load_state_dict(network.state_dict())
    return copy


def slow_loss(learner: R2D2Learner, batch: SampleBatch) -> tuple[Tensor, list[float], QNetwork]:
    """Return the loss in float64, step by step, the priorities, and the network that has its gradient."""
    online, target = (doubles(each, RECURRENT) for each in (learner.network, learner.target))
    losses, found = [], []
    for row in range(batch.count):
        rows = {name: torch.as_tensor(column[row]) for name, column in batch.columns.items()}
        obs, count = rows[OBS].view(FORM.num_obs, 3), int(rows[NUM_BURNED])
        values = []
        for network in (online, target):
            state, q = rows[STATE_IN].double()[None], []
            for step in [*range(count), *range(FORM.burn_in, FORM.num_obs)]:
                outputs, state = network.step(obs[step][None], rows[PREVIOUS][step].double()[None], state)
                state = state.detach() if step < FORM.burn_in else state
                q += [outputs[0, :, 0]] if step >= FORM.burn_in else []
            values.append(q)
        errors = []
        for t in range(int((rows[NUM_FOLDED] > 0).sum())):
            later = t + int(rows[NUM_FOLDED][t])
            value = values[1][later][values[0][later].argmax()].detach()
            goal = rescaled(rows[REWARDS][t] + rows[DISCOUNTS][t] * unrescaled(value, EPSILON), EPSILON)
            errors.append(goal - values[0][t][rows[ACTIONS][t]])
            losses.append(
                rows[IMPORTANCE_WEIGHTS] * torch.nn.functional.huber_loss(values[0][t][rows[ACTIONS][t]], goal)
            )
        sizes = torch.stack(errors).detach().abs()
        found.append(float(ETA * sizes.max() + (1 - ETA) * sizes.mean()))
    return torch.stack(losses).mean(), found, online


def test_the_loss_its_gradient_and_priorities_are_those_of_a_slow_one() -> None:
    learner, batch = make_r2d2(), make_sequences()
    expected, priorities, network = slow_loss(learner, batch)
    expected.backward()  # type: ignore[no-untyped-call]
    found = learner.make_gradient().compute(batch)
    assert float(found.figures[0]) == pytest.approx(float(expected.detach()), rel=1e-5)
    np.testing.assert_allclose(found.td_errors, priorities, rtol=1e-4)
    for own, slow in zip(learner.network.parameters(), network.parameters(), strict=True):
        assert own.grad is not None
        assert slow.grad is not None
        torch.testing.assert_close(own.grad.double(), slow.grad, rtol=2e-4, atol=1e-6)


def test_padding_changes_nothing_and_the_burn_in_only_the_state() -> None:
    learner, batch = make_r2d2(), make_sequences()
    before = learner.make_gradient().compute(batch)
    obs = batch[OBS].reshape(batch.count, FORM.num_obs, 3).copy()
    for row, (burned, folded) in enumerate(zip(batch[NUM_BURNED], batch[NUM_FOLDED], strict=True)):
        last = int((np.arange(FORM.length) + folded)[folded > 0].max())
        obs[row, burned : FORM.burn_in] = np.nan
        obs[row, FORM.burn_in + last + 1 :] = np.nan
    padded = batch.with_columns(**{OBS: obs.reshape(batch.count, -1)})
    after = learner.make_gradient().compute(padded)
    torch.testing.assert_close(after.figures, before.figures, rtol=0, atol=0)
    # The same state from another burn-in, or from none, gives the same loss: its rows are not learned.
    state, previous = torch.from_numpy(batch[STATE_IN]), torch.from_numpy(batch[PREVIOUS])
    with torch.no_grad():
        for step in range(FORM.burn_in):
            there = torch.from_numpy(batch[NUM_BURNED] > step)[:, None]
            _, following = learner.network.step(torch.from_numpy(obs[:, step]).nan_to_num(), previous[:, step], state)
            state = torch.where(there, following, state)
    learner.target.load_state_dict(learner.network.state_dict())
    without = padded.with_columns(**{STATE_IN: state.numpy(), NUM_BURNED: np.zeros_like(batch[NUM_BURNED])})
    gradient = learner.make_gradient()
    torch.testing.assert_close(gradient.compute(without).figures, gradient.compute(padded).figures)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("epsilon", [1e-3, 1e-2, 0.0])
def test_the_rescaling_and_its_inverse_are_inverse(dtype: torch.dtype, epsilon: float) -> None:
    x = torch.cat([torch.linspace(-300, 300, 601, dtype=dtype), torch.logspace(-6, 0, 20, dtype=dtype)])
    torch.testing.assert_close(unrescaled(rescaled(x, epsilon), epsilon), x, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(rescaled(unrescaled(x, epsilon), epsilon), x, rtol=1e-6, atol=1e-6)
    assert float(rescaled(torch.tensor(3.0), 1e-3)) == pytest.approx(1.003)


def test_without_h_and_from_zeros() -> None:
    form = replace(FORM, stores_states=False)
    batch = make_sequences()
    zeros = batch.with_columns(**{STATE_IN: np.zeros_like(batch[STATE_IN])})
    without = SampleBatch({name: column for name, column in batch.columns.items() if name != STATE_IN})
    plain = make_r2d2(form, h_epsilon=None).learn_on_batch(without).stats["loss"]
    assert plain == make_r2d2(h_epsilon=None).learn_on_batch(zeros).stats["loss"]
    assert plain != make_r2d2(form).learn_on_batch(without).stats["loss"]


def test_sequences_count_as_their_steps() -> None:
    learner = make_r2d2(steps_per_row=FORM.length, target_network_update_freq=5 * FORM.length + 1)
    for expected in (0, 1):
        learner.learn_on_batch(make_sequences())
        assert learner.stats()["num_target_updates"] == expected


STATELESS = "rllib/StatelessCartPole-v0"
SEES_ALL = {"lstm_use_prev_action": True, "lstm_use_prev_reward": True}
MODEL = {**r2d2.TINY["model"], **SEES_ALL}


@pytest.mark.parametrize("batch_mode", ["truncate_episodes", "complete_episodes"])
def test_a_stored_state_is_the_one_to_which_its_episode_leads(batch_mode: str) -> None:
    agent = r2d2.make_agent(
        STATELESS, num_envs_per_worker=1, zero_init_states=False, model=MODEL, batch_mode=batch_mode, n_step=2
    )
    sent = SampleBatch.concat([batch for _ in range(10) for batch, _ in poll(agent)])
    with agent.optimizer.paused() as learner:
        assert isinstance(learner, R2D2Learner)
        network, form = learner.network, agent.policies.sequences
    states: list[Tensor] = []
    assert np.count_nonzero(sent[NUM_BURNED] == 0) > 2
    for row in range(sent.count):
        burned, learned = int(sent[NUM_BURNED][row]), int(np.count_nonzero(sent[NUM_FOLDED][row]))
        if burned == 0:  # an episode starts
            states = [torch.zeros(1, 2 * r2d2.CELLS)]
        np.testing.assert_allclose(sent[STATE_IN][row], states[-1 - burned][0], rtol=1e-5, atol=1e-6)
        obs, previous = (
            torch.from_numpy(sent[OBS][row].reshape(form.num_obs, -1)),
            torch.from_numpy(sent[PREVIOUS][row]),
        )
        for place in range(form.burn_in, form.burn_in + learned):
            with torch.inference_mode():
                states.append(network.step(obs[place][None], previous[place][None], states[-1])[1])
    assert float(abs(states[-1]).max()) > 0.01


@pytest.mark.parametrize("keys", [{}, {"n_step": 2, "use_h_function": False}], ids=["h", "2 steps without h"])
def test_first_priorities_are_those_of_the_learner(keys: Mapping[str, Any]) -> None:
    own: dict[str, Any] = {
        "zero_init_states": False,
        "worker_side_prioritization": True,
        "prioritized_replay": True,
        "model": MODEL,
    }
    agent = r2d2.make_agent(STATELESS, **own, **keys)
    batch = SampleBatch.concat([batch for _ in range(5) for batch, _ in poll(agent)])
    assert batch.count > 5
    columns = {name: column for name, column in batch.columns.items() if name != TD_ERRORS}
    weights = {IMPORTANCE_WEIGHTS: np.ones(batch.count, np.float32)}
    with agent.optimizer.paused() as learner:  # both networks of the learner are still the worker's
        result = learner.learn_on_batch(SampleBatch({**columns, **weights}))
    assert result.td_errors is not None
    np.testing.assert_allclose(batch[TD_ERRORS], result.td_errors, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("changes", [{}, {"zero_init_states": False, "prioritized_replay": True, "model": MODEL}])
def test_a_resumed_run_is_equal_bit_by_bit(changes: Mapping[str, Any], tmp_path: Path) -> None:
    agent = r2d2.make_agent(STATELESS, **changes)
    agent.train()
    checkpoint = checkpoint_of(agent, tmp_path)
    again = r2d2.make_agent(STATELESS, checkpoint, **changes)
    for each in (agent, again):
        each.train()
    expected, found = weights_of(agent), weights_of(again)
    assert agent.optimizer.num_updates > 20
    assert {name: array.tobytes() for name, array in expected.items()} == {
        name: array.tobytes() for name, array in found.items()
    }


def test_pixels_in_frames_are_learned_from(tmp_path: Path) -> None:
    model = {**r2d2.TINY["model"], "conv_filters": [[4, [8, 8], 4], [4, [5, 5], 1]]}
    keys: dict[str, Any] = {"model": model, "zero_init_states": False, "timesteps_per_iteration": 60}
    agent = r2d2.make_agent(CATCH, **keys, num_envs_per_worker=1, learning_starts=20)
    assert agent.train()["info"]["num_updates"] > 0
    checkpoint = checkpoint_of(agent, tmp_path)
    again = r2d2.make_agent(CATCH, checkpoint, **keys, num_envs_per_worker=1, learning_starts=20)
    assert (again.optimizer.replay_bytes(), again.train()["info"]["num_updates"]) > (0, 2)


def test_in_the_data_path_of_apex_sequences_go_through_shards() -> None:
    agent = r2d2.make_apex(STATELESS, optimizer={"num_replay_buffer_shards": 2}, n_step=3, num_workers=0)
    row = agent.train()
    steps, updates = row["info"]["num_steps_trained"], row["info"]["num_updates"]
    assert updates > 2
    assert steps == updates * r2d2.TINY["train_batch_size"]


def test_an_evaluation_plays_with_a_memory(tmp_path: Path) -> None:
    agent = r2d2.make_agent(STATELESS, model=MODEL)
    policy = agent.policies.make_policy()
    policy.set_weights(weights_of(agent))
    explorer = agent.policies.exploring_player(policy, 2, seed=0)
    assert isinstance(explorer, HasMemory)
    explorer.start_episodes(2)
    obs = np.ones((2, 2), np.float32)
    first = explorer.compute_actions(obs)
    explorer.after_step(np.ones(2), np.array([False, True]))
    assert policy.memory.states[0].any()
    assert not policy.memory.states[1].any()
    # The network sees the action that was taken, which may be a random one.
    assert policy.memory.columns()[PREVIOUS][0].tolist() == [first[0] == 0, first[0] == 1, 1]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"model": {"use_lstm": False}}, "model.use_lstm is false, but R2D2 needs an LSTM"),
        ({"num_atoms": 51}, "num_atoms is 51, but R2D2 learns means"),
        ({"parameter_noise": True}, "parameter_noise is true, but R2D2 does not have noise"),
        ({"burn_in": 20, "replay_sequence_length": 20}, "no step is left to be learned"),
    ],
)
def test_what_r2d2_does_not_have_is_a_conflict(keys: Mapping[str, Any], message: str) -> None:
    (conflict,) = conflicts(R2D2Config, **keys)
    assert message in conflict.message


RLLIB_ENV = "ray.rllib.examples.env.stateless_cartpole.StatelessCartPole"


def of_rllib(keys: str, model: str = "use_lstm: true, lstm_cell_size: 64, max_seq_len: 20") -> R2D2Config:
    text = f"a:\n  run: R2D2\n  env: {RLLIB_ENV}\n  stop: {{timesteps_total: 1}}\n"
    found = config_of(planned(f"{text}  config: {{num_workers: 0, {keys}, model: {{{model}}}}}\n"))
    assert isinstance(found, R2D2Config)
    return found


def test_keys_of_rllib_of_both_ages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    old = of_rllib("burn_in: 20, zero_init_states: true, replay_sequence_length: -1, framework: torch")
    assert (old.burn_in, old.learned_length, old.zero_init_states) == (20, 20, True)
    assert (old.train_batch_size, old.training_intensity, old.target_network_update_freq) == (1280, None, 2500)
    buffer = "type: MultiAgentReplayBuffer, storage_unit: sequences, replay_burn_in: 20, zero_init_states: false"
    new = of_rllib(f"replay_buffer_config: {{{buffer}, capacity: 5000}}, num_rollout_workers: 0")
    assert (new.burn_in, new.zero_init_states, new.buffer_size) == (20, False, 5000)
    assert (new.train_batch_size, new.training_intensity, new.target_network_update_freq) == (1000, 150, 1000)
