"""Joined actors of IMPALA and APPO: whole segments of policies that the trainer knows come in, each step once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rlexp.agents.impala import VTraceAgent
from rlexp.agents.registry import policies_of
from rlexp.board.actor.outbox import SeatEnd
from rlexp.board.messages.credentials import password_keys
from rlexp.board.messages.envelope import Header
from rlexp.board.messages.payloads import TRAINER, seal_fragment
from rlexp.board.servers.board import Board, Seat
from rlexp.board.trainer.admission import Admission, admission_rules
from rlexp.board.trainer.inbox import Inbox
from rlexp.board.trainer.link import BoardLink
from rlexp.board.trainer.row_rules import RefusedError
from rlexp.board.trainer.source import BoardSeats
from rlexp.cluster.pool.pool import InlineTaskPool
from rlexp.config.keys.a2c import A3CConfig
from rlexp.config.keys.evolution import ESConfig
from rlexp.config.keys.impala import APPOConfig, APPOExperiment, IMPALAConfig
from rlexp.config.keys.ppo import PPOConfig
from rlexp.config.keys.pqn import PQNConfig
from rlexp.config.keys.user_code import NO_MODULES
from rlexp.models.memory import PREVIOUS, SEQUENCE_STARTS, STATE_IN
from rlexp.models.network_config import MASKED
from rlexp.rollout.folds import DIST_INPUTS, IS_STEP, LOGP
from rlexp.rollout.fragment import SampleInfo
from rlexp.sample_batch import ACTIONS, DISCOUNTS, OBS, REWARDS, FrameRows, SampleBatch
from tests.lab.board import EPOCH, claimed, eventually, joined, played, state_of, trial_of, worker_of
from tests.lab.envs import COUNTING_ENV, IMAGE_ENV
from tests.lab.impala import AGENTS, CONFIGS, TINY
from tests.lab.masks import MASKED_WORLD
from tests.lab.memory_board import MemoryBoard, MemoryServer

TASK = "task-1"
KEYS = password_keys("", TASK)
MAX_BYTES = 1 << 22
SMALL = {**TINY, "board": {"actors": 2, "min_fragment_steps": 1, "lease_s": 600.0}, "timesteps_per_iteration": 200}


def config_of(**changes: Any) -> APPOConfig:
    return APPOConfig.model_validate({**SMALL, **changes})


LSTM = {
    "fcnet_hiddens": [8],
    "use_lstm": True,
    "lstm_cell_size": 4,
    "max_seq_len": 3,
    "lstm_use_prev_action": True,
    "lstm_use_prev_reward": True,
}
KINDS: list[tuple[str, dict[str, Any]]] = [
    ("CartPole-v1", {}),
    ("CartPole-v1", {"batch_mode": "complete_episodes", "observation_filter": "MeanStdFilter"}),
    ("CartPole-v1", {"gamma": 0.0, "explore": False, "model": {"fcnet_hiddens": [8], "layer_norm": True}}),
    (COUNTING_ENV, {"clip_rewards": True}),
    ("Pendulum-v1", {"model": {"fcnet_hiddens": [8], "free_log_std": True, "vf_share_layers": False}}),
    (IMAGE_ENV, {}),
    ("CartPole-v1", {"model": LSTM}),
    ("Pendulum-v1", {"model": LSTM, "sample_batch_size": 7}),
    (COUNTING_ENV, {"model": LSTM, "batch_mode": "complete_episodes"}),
    (MASKED_WORLD, {}),
    (MASKED_WORLD, {"env_config": {"is_multi": True}}),
    (MASKED_WORLD, {"model": LSTM}),
    ("Taxi-v4", {}),
]
NAMES = ["plain", "episodes", "gamma 0", "clipped", "box", "frames", "LSTM", "LSTM of a box", "LSTM, episodes"]
NAMES += ["masks", "masks of choices", "masks, LSTM", "masks in frames"]


@pytest.mark.parametrize(("env", "changes"), KINDS, ids=NAMES)
def test_fragments_of_every_kind_of_policy_are_admitted(env: str, changes: dict[str, Any]) -> None:
    config = config_of(**changes)
    admission = Admission(admission_rules(config, trial_of(env, config)))
    for number, (rows, info) in enumerate(played(config, env)):
        admission.check(rows, info, number)


SPACES = [
    gym.spaces.Discrete(3, start=5),
    gym.spaces.MultiDiscrete([2, 3], start=[1, 0]),
    gym.spaces.MultiBinary(2),
    gym.spaces.Box(-1, 2, (2,), np.int8),
]


@pytest.mark.parametrize("space", SPACES, ids=lambda space: type(space).__name__)
def test_actions_of_every_finite_space_are_admitted_within_it(space: gym.spaces.Space[Any]) -> None:
    config, trial = config_of(), replace(trial_of("CartPole-v1", config_of()), action_space=space)
    policies = policies_of(APPOExperiment(name="a", run="APPO", env="CartPole-v1", config=config))
    policy = policies(config, trial.observation_space, space, NO_MODULES).seat_players().parts(0, 1, 1).make_policy()
    rules = admission_rules(config, trial)
    inputs = np.zeros((64, rules.columns[DIST_INPUTS].shape[0]), np.float32)
    drawn = policy._actions.draw(inputs, np.random.default_rng(0))  # type: ignore[attr-defined]
    rules.columns[ACTIONS].check(ACTIONS, drawn)
    with pytest.raises(RefusedError, match="above its highest value"):
        rules.columns[ACTIONS].check(ACTIONS, drawn + np.ones_like(drawn) * 3)


def with_column(name: str, change: Callable[[Any], Any]) -> Callable[[SampleBatch, SampleInfo], Any]:
    def changed(rows: SampleBatch, info: SampleInfo) -> Any:
        column = rows[name].copy()
        return rows.with_columns(**{name: change(column)}), info

    return changed


def put(value: Any, row: int = 0) -> Callable[[Any], Any]:
    def changed(column: Any) -> Any:
        column[row] = value
        return column

    return changed


LIES: dict[str, tuple[Callable[[SampleBatch, SampleInfo], Any], str]] = {
    "nan": (with_column(LOGP, put(np.nan)), "logp is not finite"),
    "infinite inputs": (with_column(DIST_INPUTS, put(np.inf)), "dist_inputs is not finite"),
    "nan reward": (with_column(REWARDS, put(np.nan)), "rewards is not finite"),
    "more likely": (with_column(LOGP, put(-0.01)), "logp is not what the policy's outputs give"),
    "less likely": (with_column(LOGP, put(-30.0)), "logp is not what the policy's outputs give"),
    "other inputs": (with_column(DIST_INPUTS, put([9e6, -9e6])), "logp is not what the policy's outputs give"),
    "shape": (with_column(DIST_INPUTS, lambda inputs: inputs[:, :1]), "dist_inputs has another shape"),
    "dtype": (with_column(DIST_INPUTS, lambda inputs: inputs.astype(np.float64)), "dist_inputs has another dtype"),
    "action": (with_column(ACTIONS, put(2)), "actions is above its highest value"),
    "discount": (with_column(DISCOUNTS, put(1.0)), "discounts has a value that cannot be"),
    "open end": (with_column(IS_STEP, put(True, -1)), "a segment is not whole"),
    "no step first": (with_column(IS_STEP, put(False)), "a segment is not whole"),
    "no steps": (with_column(IS_STEP, lambda column: np.zeros_like(column)), "a segment is not whole"),
    "two ends": (with_column(IS_STEP, put(False, -2)), "a segment is not whole"),
    "end inside": (with_column(DISCOUNTS, put(0.0)), "an episode goes on after its end"),
    "is_step of numbers": (with_column(IS_STEP, lambda column: column.astype(np.int8)), "is_step has another dtype"),
    "steps": (lambda rows, info: (rows, replace(info, num_env_steps=info.num_env_steps - 1)), "not the steps"),
    "more columns": (lambda rows, info: (rows.with_columns(new_obs=rows[OBS]), info), "not the columns"),
    "transitions": (lambda rows, info: (SampleBatch({OBS: rows[OBS]}), info), "not the columns"),
}


def first_inputs(change: Callable[[Any, Any], None]) -> Callable[[SampleBatch, SampleInfo], Any]:
    """Return a lie: ``change`` gets the policy's outputs of the first step, and where they are masked."""

    def changed(rows: SampleBatch, info: SampleInfo) -> Any:
        inputs = rows[DIST_INPUTS].copy()
        change(inputs[0], inputs[0] == np.float32(MASKED))
        return rows.with_columns(**{DIST_INPUTS: inputs}), info

    return changed


def forbidden(rows: SampleBatch, info: SampleInfo) -> Any:
    """Return a lie: some step took an action that its mask forbids."""
    masked = (rows[DIST_INPUTS] == np.float32(MASKED)) & rows[IS_STEP][:, None]
    row, action = np.argwhere(masked)[0]
    actions, logp = rows[ACTIONS].copy(), rows[LOGP].copy()
    actions[row], logp[row] = action, MASKED
    return rows.with_columns(**{ACTIONS: actions, LOGP: logp}), info


MASK_LIES: dict[str, tuple[Callable[[SampleBatch, SampleInfo], Any], str]] = {
    "opened": (first_inputs(lambda inputs, masked: inputs.__setitem__(masked, 0.0)), "do not fit the masks"),
    "closed": (first_inputs(lambda inputs, masked: inputs.__setitem__(~masked, MASKED)), "do not fit the masks"),
    "huge": (first_inputs(lambda inputs, masked: inputs.__setitem__(~masked, 1e29)), "do not fit the masks"),
    "nan": (first_inputs(lambda inputs, masked: inputs.__setitem__(0, np.nan)), "dist_inputs is not finite"),
    "forbidden": (forbidden, "an action is not allowed"),
}


@pytest.mark.parametrize("lie", MASK_LIES)
def test_what_does_not_fit_the_masks_is_refused(lie: str) -> None:
    change, why = MASK_LIES[lie]
    config = config_of()
    ((rows, info),) = played(config, MASKED_WORLD, count=1)
    false_rows, false_info = change(rows, info)
    with pytest.raises(RefusedError, match=why):
        Admission(admission_rules(config, trial_of(MASKED_WORLD, config))).check(false_rows, false_info, 0)


@pytest.mark.parametrize("lie", LIES)
def test_false_segments_are_refused_with_the_reason(lie: str) -> None:
    change, why = LIES[lie]
    config = config_of()
    ((rows, info),) = played(config, count=1)
    admission = Admission(admission_rules(config, trial_of("CartPole-v1", config)))
    admission.check(rows, info, 0)
    false_rows, false_info = change(rows, info)
    with pytest.raises(RefusedError, match=why):
        admission.check(false_rows, false_info, 1)


LSTM_LIES: dict[str, tuple[Callable[[SampleBatch, SampleInfo], Any], str]] = {
    "output": (with_column(STATE_IN, put(1.5)), "state_in is above its highest value"),
    "cell": (with_column(STATE_IN, put([0.0] * 4 + [-2e6] * 4)), "state_in is below its lowest value"),
    "nan": (with_column(STATE_IN, put(np.nan)), "state_in is not finite"),
    "cells": (with_column(STATE_IN, lambda states: states[:, :6]), "state_in has another shape"),
    "action": (with_column(PREVIOUS, put([2.0, 0.0, 1.0])), "previous is above its highest value"),
    "reward": (with_column(PREVIOUS, put([1.0, 0.0, -6.0])), "previous is below its lowest value"),
    "no start": (with_column(SEQUENCE_STARTS, put(False)), "a sequence does not begin where it has to"),
    "longer": (with_column(SEQUENCE_STARTS, put(False, 3)), "a sequence does not begin where it has to"),
    "shorter": (with_column(SEQUENCE_STARTS, put(True, 1)), "a sequence does not begin where it has to"),
    "no states": (lambda rows, info: (rows.exchange({STATE_IN: (OBS, rows[OBS])}), info), "not the columns"),
}


@pytest.mark.parametrize("lie", LSTM_LIES)
def test_false_states_and_sequences_of_an_lstm_are_refused_with_the_reason(lie: str) -> None:
    change, why = LSTM_LIES[lie]
    config = config_of(model=LSTM, board={**SMALL["board"], "max_abs_reward": 5.0})
    ((rows, info),) = played(config, count=1)
    admission = Admission(admission_rules(config, trial_of("CartPole-v1", config)))
    admission.check(rows, info, 0)
    false_rows, false_info = change(rows, info)
    with pytest.raises(RefusedError, match=why):
        admission.check(false_rows, false_info, 1)


def test_segments_without_episodes_between_them_are_refused() -> None:
    config = config_of()
    ((rows, info),) = played(config, count=1)
    assert len(info.episodes.returns) == 0
    step = np.arange(0, len(rows), 2)
    short = SampleBatch({name: column[step.repeat(2)] for name, column in rows.columns.items()})
    short = short.with_columns(**{IS_STEP: np.tile([True, False], len(step))})
    rules = admission_rules(config, trial_of("CartPole-v1", config))
    with pytest.raises(RefusedError, match="more segments than episodes"):
        Admission(rules).check(short, replace(info, num_env_steps=len(step)), 0)


def versions_taken(*sent: tuple[int, int | None], published: tuple[int, ...] = (10, 20)) -> tuple[list[int], Inbox]:
    """Return the versions of fragments that an inbox took, sent with weights of a version and a trainer's epoch."""
    config = config_of()
    box = Inbox(TASK, KEYS, admission_rules(config, trial_of("CartPole-v1", config)), config.board, first_index=0)
    for version in published:
        box.publish(version)
    worker, taken = worker_of("CartPole-v1", config), []
    state = replace(state_of(EPOCH), first_epoch=5)
    for number, (version, epoch) in enumerate(sent):
        rows, info = worker.sample(0)
        assert isinstance(rows, SampleBatch | FrameRows)
        header = Header(TASK, 0, EPOCH, number, info={} if epoch is None else {TRAINER: epoch})
        messages = seal_fragment(header, rows, replace(info, weights_version=version), KEYS.key, MAX_BYTES)
        taken += [each.weights_version for _, each in box.open(messages, state)]
    worker.stop()
    return taken, box


def test_weights_of_this_trainer_keep_their_version() -> None:
    assert versions_taken((10, 5), (15, 5), (20, 9))[0] == [10, 15, 20]


def test_weights_of_an_earlier_trainer_are_as_old_as_the_beginning_of_this_one() -> None:
    """They were learned from the same checkpoint on, but not by this learner, so their number says too little."""
    assert versions_taken((900, 4), (15, 4), (3, 4), (15, None))[0] == [10, 10, 3, 10]


def test_weights_that_nobody_published_are_refused_with_a_strike() -> None:
    taken, box = versions_taken((21, 5), (-1, 5), (2**40, 6))
    assert taken == []
    assert box.figures()["num_refused"] == 3
    assert "weights that this trainer has not published" in box.figures()["last_refusal"]
    assert box.banned == ("actor-0",)


@contextmanager
def trial(run: str, **changes: Any) -> Iterator[tuple[VTraceAgent[Any], Board]]:
    """Provide an agent without workers of its own, whose trial is on a board in memory."""
    server = MemoryServer()
    link = BoardLink(MemoryBoard(server), TASK, "small", "trainer", KEYS)
    config = CONFIGS[run].model_validate({**SMALL, **changes})
    agent = AGENTS[run]("CartPole-v1", config, InlineTaskPool(), 1, board=BoardSeats(link))
    board = MemoryBoard(server)
    try:
        eventually(lambda: board.describe(TASK) is not None and board.tasks()[0].trainer is not None)
        yield agent, board
    finally:
        agent.stop()


@pytest.mark.parametrize("model", [TINY["model"], LSTM], ids=["layers", "LSTM"])
@pytest.mark.parametrize("run", sorted(AGENTS))
def test_learner_learns_from_joined_actors_alone(run: str, model: dict[str, Any]) -> None:
    ends: list[SeatEnd] = []
    with trial(run, model=model, replay_proportion=1e-9, replay_buffer_num_slots=10_000) as (agent, board):
        actors = [joined(board, member, TASK, KEYS) for member in "ab"]
        threads = [
            threading.Thread(target=lambda actor=actor: ends.append(actor.run(lambda: False, lambda figures: None)))
            for actor in actors
        ]
        for thread in threads:
            thread.start()
        row = agent.train()
        while not row["info"]["num_updates"] or row["info"]["board"]["num_weights_published"] < 2:
            row = agent.train()
        info = row["info"]
        assert (info["board"]["num_refused"], info["num_steps_dropped"]) == (0, 0)
        kept = agent.optimizer.state()["old_fragments"]["kept"]
    for thread in threads:
        thread.join(60.0)
    assert ends == [SeatEnd.TASK_OVER] * 2
    steps = [step for part in kept for step in part["columns"][OBS][part["columns"][IS_STEP]].tolist()]
    assert len({tuple(step) for step in steps}) == len(steps) == row["timesteps_total"]


def test_no_step_older_than_the_limit_is_learned_and_the_dropped_ones_are_counted() -> None:
    """An actor that stood still sends what it played with the first weights after eight updates of others."""
    with trial("APPO", max_policy_lag=4, timesteps_per_iteration=0) as (agent, board):
        late, early = (claimed(board, member, task_id=TASK) for member in ("late", "early"))
        workers = {seat.index: worker_of("CartPole-v1", agent.config) for seat in (late, early)}

        def send(seat: Seat, number: int) -> None:
            version = 0 if seat is late else agent.source._inbox._versions[1]  # type: ignore[attr-defined]
            rows, info = workers[seat.index].sample(0)
            assert isinstance(rows, SampleBatch)
            header = Header(TASK, seat.index, seat.epoch, number, info={TRAINER: 2**60})
            sent = seal_fragment(header, rows, replace(info, weights_version=version), KEYS.key, MAX_BYTES)
            board.queue(TASK).send(sent)

        number, lags = 0, []
        board.beat(early)
        while agent.optimizer.num_updates < 8:
            send(early, number)
            number += 1
            lags.append(agent.train()["info"]["policy_lag"]["max"])
        for index in range(4):
            send(late, index)
        dropped = 0
        while not dropped:
            send(early, number)
            number += 1
            info = agent.train()["info"]
            dropped = info["num_steps_dropped"]
            lags.append(info["policy_lag"]["max"])
        for worker in workers.values():
            worker.stop()
    assert dropped > 0
    assert max(lag for lag in lags if lag is not None) <= 4
    assert info["board"]["num_refused"] == 0


@pytest.mark.parametrize(
    ("keys", "window"),
    [
        ({}, 32),
        ({"max_policy_lag": 4}, 2),
        ({"max_policy_lag": 40}, 20),
        ({"max_policy_lag": 4000}, 32),
        ({"max_policy_lag": 1}, 1),
        ({"max_policy_lag": 40, "num_sgd_iter": 4, "minibatch_buffer_size": 2}, 4),
    ],
)
def test_windows_hold_what_is_learned_within_half_of_the_limit(keys: dict[str, Any], window: int) -> None:
    """A train batch of 40 steps is two fragments of two envs and ten steps, and there are two actors."""
    assert config_of(**keys).board_keys.window == window


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (PPOConfig(), "use APPO, which can be joined"),
        (PQNConfig(), "use DQN or APEX, which can be joined"),
        (ESConfig(), "use APPO"),
        (A3CConfig(), "use IMPALA or APPO, which do"),
        (APPOConfig.model_validate({"vtrace": False}), "vtrace is false"),
    ],
    ids=["PPO", "PQN", "ES", "A3C", "APPO"],
)
def test_agents_that_cannot_be_joined_say_which_can(config: Any, said: str) -> None:
    assert said in config.board_obstacle


def test_impala_and_appo_can_be_joined() -> None:
    assert [config.board_obstacle for config in (IMPALAConfig(), APPOConfig())] == [None, None]
