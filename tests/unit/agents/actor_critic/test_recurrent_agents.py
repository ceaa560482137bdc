"""Agents with an LSTM: what their workers send, what their learners see of it, and how the memory lives on."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from rlexp.agents.agent import Agent
from rlexp.agents.checkpoint import EvaluationRequest, LoadedCheckpoint, evaluate_checkpoint
from rlexp.agents.trained_policy import TrainedPolicy
from rlexp.config.keys.agents import AGENTS
from rlexp.errors import UsageError
from rlexp.models.lstm import sequences_of
from rlexp.models.memory import PREVIOUS, SEQUENCE_STARTS, STATE_IN
from rlexp.models.networks import ActorCritic
from rlexp.models.torsos import load_arrays
from rlexp.policy import Weights
from rlexp.rollout.folds import ADVANTAGES, DIST_INPUTS, IS_STEP, VALUE_TARGETS, VF_PREDS
from rlexp.sample_batch import ACTIONS, OBS, Array, SampleBatch
from tests.lab import ppo
from tests.lab.agents import agent_for, checkpoint_of, delivered, saved, updates_of, weights_of
from tests.lab.envs import PIXEL_ENV
from tests.lab.masks import MASKED_WORLD
from tests.lab.parallel import LIVES, RELAY

CLOCK_ENV = "tests.unit.agents.actor_critic.test_recurrent_agents:ClockEnv"
SIZE, NUM_ACTIONS = 4, 3
LSTM = {"fcnet_hiddens": [5], "use_lstm": True, "lstm_cell_size": SIZE, "max_seq_len": 3}
SEEING = {**LSTM, "lstm_use_prev_action": True, "lstm_use_prev_reward": True}
WORKER = {"num_workers": 0, "num_envs_per_worker": 3, "clip_rewards": True, "min_iter_time_s": 0.0}


class ClockEnv(gym.Env[Any, Any]):
    """Shows the step of the episode and pays ten times the action; episodes have 1 to 8 steps, and end or are cut."""

    def __init__(self) -> None:
        self.observation_space = Box(0.0, 9.0, (1,), np.float32)
        self.action_space = Discrete(NUM_ACTIONS)
        self._step = self._length = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self._step, self._length = 0, int(self.np_random.integers(1, 9))
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self._step += 1
        is_over = self._step == self._length
        ends = self._length % 2 == 0
        return np.full(1, self._step, np.float32), 10.0 * action, is_over and ends, is_over and not ends, {}


def agent_of(run: str, model: Any = SEEING, checkpoint: Any = None, env: str = CLOCK_ENV, **config: Any) -> Agent[Any]:
    keys = {**WORKER, "sample_batch_size": 7, "model": model, **config}
    experiment = AGENTS[run].model_validate({"name": "small", "run": run, "env": env, "config": keys})
    return agent_for(experiment, checkpoint)


def network_of(agent: Agent[Any], weights: Weights | None = None) -> ActorCritic:
    network = ActorCritic(agent.policies.network)  # type: ignore[attr-defined]
    load_arrays(network, weights_of(agent) if weights is None else weights)
    return network


def tensors(batch: SampleBatch) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(column) for name, column in batch.columns.items()}


@pytest.mark.parametrize("length", [1, 2, 5, 16])
@pytest.mark.parametrize(("run", "mode"), [("PPO", "truncate_episodes"), ("PPO", "complete_episodes"), ("IMPALA", "")])
def test_the_learner_computes_what_the_workers_computed(run: str, mode: str, length: int) -> None:
    """The memory begins with the episode, at any cut of fragments and sequences, in each env of a vector env."""
    keys: dict[str, Any] = {"batch_mode": mode} if mode else {}
    agent = agent_of(run, sample_batch_size=length, **keys)
    network, seen = network_of(agent), 0
    for batch, _ in delivered(agent, 24 // length + 2):
        columns = tensors(batch)
        with torch.inference_mode():
            inputs, _ = network(columns[OBS], sequences_of(columns))
        np.testing.assert_allclose(inputs, batch[DIST_INPUTS], rtol=1e-4, atol=1e-5)
        is_step = batch[IS_STEP] if IS_STEP in batch else np.ones(len(batch), bool)
        begins = (batch[OBS][:, 0] == 0) & is_step
        assert not batch[STATE_IN][begins].any()
        assert not batch[PREVIOUS][begins].any()
        within = ~begins[1:] & ~batch[SEQUENCE_STARTS][1:]
        steps = np.flatnonzero(within) + 1
        chosen = batch[ACTIONS][steps - 1]
        np.testing.assert_array_equal(batch[PREVIOUS][steps, :-1], np.eye(NUM_ACTIONS)[chosen])
        np.testing.assert_array_equal(batch[PREVIOUS][steps, -1], 10.0 * chosen)
        lengths = sequences_of(columns).lengths  # type: ignore[union-attr]
        assert lengths.max() <= 3 + (IS_STEP in batch)
        assert batch[SEQUENCE_STARTS][begins].all()
        seen += int(begins.sum())
    assert seen > 3


@pytest.mark.parametrize("length", [1, 3, 16])
@pytest.mark.parametrize("mode", ["truncate_episodes", "complete_episodes"])
def test_each_agent_of_an_env_has_a_memory_of_its_own_life(mode: str, length: int) -> None:
    agent = agent_of("PPO", env=RELAY, sample_batch_size=length, batch_mode=mode)
    network, seen = network_of(agent), 0
    for batch, _ in delivered(agent, 24 // length + 2):
        if not len(batch):  # in this step every agent rested
            continue
        columns = tensors(batch)
        with torch.inference_mode():
            inputs, _ = network(columns[OBS], sequences_of(columns))
        np.testing.assert_allclose(inputs, batch[DIST_INPUTS], rtol=1e-4, atol=1e-5)
        number, step, _ = batch[OBS].T
        begins = step == np.array([first for first, *_ in LIVES.values()])[number.astype(int)]
        assert not batch[STATE_IN][begins].any()
        assert not batch[PREVIOUS][begins].any()
        assert batch[SEQUENCE_STARTS][begins].all()
        assert batch[STATE_IN][~begins].any(axis=1).all()
        seen += int(begins.sum())
    assert seen > 3


@pytest.mark.parametrize("env", [PIXEL_ENV, MASKED_WORLD])
def test_images_and_masks_pass_the_memory(env: str) -> None:
    filters = {"conv_filters": [[2, [4, 4], 2], [3, [5, 5], 1]]} if env == PIXEL_ENV else {}
    agent = agent_of("PPO", {**SEEING, **filters}, env=env)
    for batch, _ in delivered(agent, 3):
        columns = tensors(batch)
        with torch.inference_mode():
            inputs, values = network_of(agent)(columns[OBS], sequences_of(columns))
        np.testing.assert_allclose(inputs, batch[DIST_INPUTS], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(values, batch[VF_PREDS], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("use_lstm", [True, False])
def test_an_env_that_asks_for_the_step_before_needs_a_memory(use_lstm: bool) -> None:
    model = {"fcnet_hiddens": [16], "use_lstm": use_lstm, "lstm_cell_size": 32}
    sizes = {"num_envs_per_worker": 8, "sample_batch_size": 20, "train_batch_size": 320, "sgd_minibatch_size": 160}
    learning = {"num_sgd_iter": 4, "lr": 3e-3, "gamma": 0.5, "kl_coeff": 0, "timesteps_per_iteration": 2500}
    agent = agent_of("PPO", model, env="rllib/RepeatAfterMeEnv-v0", **sizes, **learning)
    reward = [agent.train()["episode_reward_mean"] for _ in range(3)][-1]
    assert reward > 35 if use_lstm else reward < 15  # of 101; 0 by chance


def test_the_value_after_a_fragment_is_of_the_state_there() -> None:
    keys: dict[str, Any] = {"sample_batch_size": 1, "gamma": 0.5, "lambda": 0.0}
    agent = agent_of("PPO", **keys)
    compared = 0
    for before, after in pairwise([batch for batch, _ in delivered(agent, 12)]):
        if len(before) == len(after) == 3:  # each env made a step in both
            goes_on = after[OBS][:, 0] > before[OBS][:, 0]
            expected = np.sign(before[ACTIONS]) + 0.5 * after[VF_PREDS]
            np.testing.assert_allclose(before[VALUE_TARGETS][goes_on], expected[goes_on], rtol=1e-5)
            compared += int(goes_on.sum())
    assert compared > 3


def test_ppo_s_update_is_that_of_its_equations() -> None:
    agent = agent_of("PPO", train_batch_size=63, sgd_minibatch_size=63, num_sgd_iter=3, lr=1e-2)
    update = updates_of(agent, 1)[0]
    assert ppo.distance(agent, update, ppo.reference(agent, update)) < 1e-6  # type: ignore[arg-type]


def test_minibatches_are_whole_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = ppo.watched_minibatches(monkeypatch)
    agent = agent_of("PPO", train_batch_size=63, sgd_minibatch_size=8, num_sgd_iter=1, lr=1e-2)
    batch = updates_of(agent, 1)[0].batch
    assert sum(map(len, seen)) == len(batch)
    assert max(map(len, seen)) <= 8 + 3
    advantages = batch[ADVANTAGES]
    whole = (advantages - advantages.mean()) / advantages.std()
    firsts = np.flatnonzero(batch[SEQUENCE_STARTS])
    parts = {tuple(np.round(part, 3)) for part in np.split(whole, firsts[1:])}
    for minibatch in seen:
        rows = list(np.round(minibatch, 3))
        while rows:
            size = next(size for size in range(len(rows), 0, -1) if tuple(rows[:size]) in parts)
            rows = rows[size:]


@pytest.mark.parametrize("run", ["A2C", "A3C", "APPO", "IMPALA", "PG", "PPO"])
def test_a_resumed_run_goes_on_bit_by_bit(run: str, tmp_path: Path) -> None:
    sizes: dict[str, Any] = {} if run == "A3C" else {"train_batch_size": 21}
    sizes |= {"sgd_minibatch_size": 8, "num_sgd_iter": 2} if run == "PPO" else {}
    agent = agent_of(run, lr=1e-2, **sizes)
    agent.train()
    resumed = agent_of(run, checkpoint=checkpoint_of(agent, tmp_path), lr=1e-2, **sizes)
    for each in (agent, resumed):
        for _ in range(3):
            each.train()
    for name, weights in weights_of(agent).items():
        np.testing.assert_array_equal(weights, weights_of(resumed)[name])


def saved_clock(tmp_path: Path, **config: Any) -> Path:
    agent = agent_of("PPO", train_batch_size=63, sgd_minibatch_size=32, num_sgd_iter=2, lr=0.1, **config)
    agent.train()
    experiment = AGENTS["PPO"].model_validate(
        {"name": "small", "run": "PPO", "env": CLOCK_ENV, "config": agent.config.model_dump(by_alias=True)}
    )
    return saved(agent, experiment, tmp_path)


@pytest.mark.parametrize("explore", [False, True])
def test_a_program_carries_the_state(explore: bool, tmp_path: Path) -> None:
    """Episodes that a program plays with states pay what the evaluation's episodes pay."""
    path = saved_clock(tmp_path)
    policy = TrainedPolicy(LoadedCheckpoint.load(path), explore, 0)
    assert policy.is_recurrent
    obs, states, rewards = np.zeros((1, 1), np.float32), np.zeros((1, 2 * SIZE + NUM_ACTIONS), np.float32), 0.0
    state, one_by_one, together = None, [], []
    greedy = policy if not explore else TrainedPolicy(LoadedCheckpoint.load(path), explore, 0)
    for step in range(5):
        action, state = policy.act(obs[0], state, reward=rewards)
        actions, states = greedy.act_batch(obs, states, rewards=[rewards])
        one_by_one.append(action)
        together.append(actions[0])
        np.testing.assert_array_equal(state, states[0])
        obs, rewards = np.full((1, 1), step + 1, np.float32), 10.0 * action
    assert one_by_one == together


def test_evaluations_forget_at_the_end_of_an_episode(tmp_path: Path) -> None:
    path = saved_clock(tmp_path)
    played = evaluate_checkpoint(path, EvaluationRequest(num_episodes=12, seed=1)).played
    policy = TrainedPolicy(LoadedCheckpoint.load(path), False, 0)
    returns_of_length = {}
    for length in range(1, 9):
        state, reward, total = None, 0.0, 0.0
        for step in range(length):
            action, state = policy.act(np.full(1, step, np.float32), state, reward=reward)
            reward = 10.0 * action
            total += reward
        returns_of_length[length] = total
    assert [returns_of_length[length] for length in played.lengths.tolist()] == played.returns.tolist()


def test_a_wrong_state_is_answered(tmp_path: Path) -> None:
    policy = TrainedPolicy(LoadedCheckpoint.load(saved_clock(tmp_path)), False, 0)
    with pytest.raises(UsageError, match=r"state: expected 11 numbers for each observation, float32; given shape \(3"):
        policy.act(np.zeros(1, np.float32), np.zeros(3, np.float32))
    plain = TrainedPolicy(LoadedCheckpoint.load(saved_clock(tmp_path, model={"fcnet_hiddens": [4]})), False, 0)
    with pytest.raises(UsageError, match="this policy has no memory"):
        plain.act(np.zeros(1, np.float32), np.zeros(3, np.float32))


def test_an_lstm_changes_nothing_without_it() -> None:
    without = network_of(agent_of("PPO", {"fcnet_hiddens": [5]}))
    assert not [name for name, _ in without.named_parameters() if name.startswith("memory")]
