"""Joined actors of R2D2: whole sequences of steps of an episode come in, and its learner learns from them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rlexp.agents.r2d2.agent import ApexR2D2Agent, R2D2Agent
from rlexp.board.actor.outbox import SeatEnd
from rlexp.board.messages.credentials import password_keys
from rlexp.board.trainer.admission import Admission, admission_rules
from rlexp.board.trainer.link import BoardLink
from rlexp.board.trainer.row_rules import RefusedError
from rlexp.board.trainer.source import BoardSeats
from rlexp.cluster.pool.pool import InlineTaskPool
from rlexp.config.keys.r2d2 import ApexR2D2Config, R2D2Config
from rlexp.models.memory import PREVIOUS, STATE_IN
from rlexp.rollout.sequences import NUM_BURNED, NUM_FOLDED
from rlexp.sample_batch import ACTIONS, DISCOUNTS, OBS, REWARDS, TD_ERRORS, FrameRows, SampleBatch
from tests.lab.agents import ONE_SHARD
from tests.lab.board import joined, played, trial_of
from tests.lab.envs import COUNTING_ENV, IMAGE_ENV
from tests.lab.memory_board import MemoryBoard, MemoryServer
from tests.lab.r2d2 import BURN_IN, CELLS, LENGTH, TINY

TASK = "task-1"
KEYS = password_keys("", TASK)
BOARD = {"actors": 2, "min_fragment_steps": 1, "lease_s": 600.0, "max_abs_reward": 100.0}
STEP_BEFORE = {**TINY["model"], "lstm_use_prev_action": True, "lstm_use_prev_reward": True}
SMALL = {
    **TINY,
    "model": STEP_BEFORE,
    "zero_init_states": False,
    "board": BOARD,
    "num_envs_per_worker": 2,
    "sample_batch_size": 24,
}
LENGTHS_SEEN = BURN_IN + LENGTH + 2


def config_of(**changes: Any) -> R2D2Config:
    return R2D2Config.model_validate({**SMALL, "n_step": 2, **changes})


KINDS: dict[str, tuple[str, type[R2D2Config], dict[str, Any]]] = {
    "plain": ("CartPole-v1", R2D2Config, {}),
    "priorities": ("CartPole-v1", ApexR2D2Config, {"optimizer": ONE_SHARD}),
    "episodes": ("CartPole-v1", R2D2Config, {"batch_mode": "complete_episodes"}),
    "no states": ("CartPole-v1", R2D2Config, {"zero_init_states": True, "model": TINY["model"]}),
    "no burn-in": ("CartPole-v1", R2D2Config, {"burn_in": 0, "gamma": 0.0}),
    "short episodes": (COUNTING_ENV, R2D2Config, {"n_step": 7, "clip_rewards": True}),
    "frames": (IMAGE_ENV, R2D2Config, {}),
    "filter": ("CartPole-v1", R2D2Config, {"observation_filter": "MeanStdFilter"}),
}


@pytest.mark.parametrize("name", KINDS)
def test_sequences_of_every_kind_are_admitted(name: str) -> None:
    env, kind, changes = KINDS[name]
    config = kind.model_validate({**SMALL, "n_step": 2, **changes})
    admission, num_rows = Admission(admission_rules(config, trial_of(env, config))), 0
    for number, (rows, info) in enumerate(played(config, env)):
        assert isinstance(rows, FrameRows) is (name == "frames")
        admission.check(rows, info, number)
        num_rows += rows.count
    assert num_rows > 0


def with_column(name: str, change: Callable[[Any], Any]) -> Callable[[SampleBatch], SampleBatch]:
    return lambda rows: rows.with_columns(**{name: change(rows[name].copy())})


def put(value: Any, *place: int) -> Callable[[Any], Any]:
    def changed(column: Any) -> Any:
        column[place] = value
        return column

    return changed


LIES: dict[str, tuple[Callable[[SampleBatch], SampleBatch], str]] = {
    "output": (with_column(STATE_IN, put(1.5, 0, 0)), "state_in is above its highest value"),
    "cell": (with_column(STATE_IN, put(-2e6, 0, CELLS)), "state_in is below its lowest value"),
    "nan": (with_column(STATE_IN, put(np.nan, 0, 0)), "state_in is not finite"),
    "cells": (with_column(STATE_IN, lambda states: states[:, :-1]), "state_in has another shape"),
    "observation": (with_column(OBS, put(9.0, 0, 4 * (LENGTHS_SEEN - 1))), "obs is above its highest value"),
    "observations": (with_column(OBS, lambda obs: obs[:, 4:]), "obs has another shape"),
    "previous action": (with_column(PREVIOUS, put(2.0, 0, 1, 0)), "previous is above its highest value"),
    "previous reward": (with_column(PREVIOUS, put(-101.0, 0, 1, 2)), "previous is below its lowest value"),
    "action": (with_column(ACTIONS, put(2, 0, 1)), "actions is above its highest value"),
    "actions": (with_column(ACTIONS, lambda actions: actions[:, 0]), "actions has another shape"),
    "reward": (with_column(REWARDS, put(201.0, 0, 1)), "rewards is above its highest value"),
    "discount": (with_column(DISCOUNTS, put(0.5, 0, 1)), "discounts has a value that cannot be"),
    "discount of one step": (with_column(DISCOUNTS, put(0.997, 0, 0)), "a discount does not fit the steps"),
    "burned": (with_column(NUM_BURNED, put(BURN_IN + 1, 0)), "num_burned is above its highest value"),
    "burned before": (with_column(NUM_BURNED, put(-1, 0)), "num_burned is below its lowest value"),
    "folded": (with_column(NUM_FOLDED, put(3, 0, 0)), "num_folded is above its highest value"),
    "no steps": (with_column(NUM_FOLDED, put(0, 0)), "a sequence has no steps"),
    "hole": (with_column(NUM_FOLDED, put(0, 0, 1)), "a return has not the steps"),
    "less": (with_column(NUM_FOLDED, put(1, 0, 0)), "a return has not the steps"),
    "cut": (with_column(NUM_FOLDED, put(0, 0, LENGTH - 1)), "a sequence is short, and its episode goes on"),
    "dtype": (with_column(NUM_FOLDED, lambda folded: folded.astype(np.float32)), "num_folded has another dtype"),
    "more columns": (lambda rows: rows.with_columns(**{TD_ERRORS: np.ones(len(rows))}), "not the columns"),
}


@pytest.mark.parametrize("lie", LIES)
def test_false_sequences_are_refused_with_the_reason(lie: str) -> None:
    change, why = LIES[lie]
    config = config_of()
    rows, info = played(config, count=1)[0]
    assert (rows[NUM_FOLDED][0] == 2).all()
    admission = Admission(admission_rules(config, trial_of("CartPole-v1", config)))
    admission.check(rows, info, 0)
    with pytest.raises(RefusedError, match=why):
        admission.check(change(rows), info, 1)


def test_more_steps_than_were_played_are_refused() -> None:
    config = config_of()
    rows, info = played(config, count=1)[0]
    many = SampleBatch.concat([rows] * 4)
    rules = replace(admission_rules(config, trial_of("CartPole-v1", config)), max_rows=len(many))
    with pytest.raises(RefusedError, match="not the steps that it reports"):
        Admission(rules).check(many, info, 0)


@pytest.mark.parametrize(("kind", "agent_class"), [(R2D2Config, R2D2Agent), (ApexR2D2Config, ApexR2D2Agent)])
def test_learner_learns_from_joined_actors_alone(kind: type[R2D2Config], agent_class: type[R2D2Agent[Any]]) -> None:
    keys = {**SMALL, "optimizer": ONE_SHARD} if kind is ApexR2D2Config else SMALL
    config = kind.model_validate({**keys, "num_workers": 0, "timesteps_per_iteration": 200})
    server, ends = MemoryServer(), list[SeatEnd]()
    link = BoardLink(MemoryBoard(server), TASK, "small", "trainer", KEYS)
    agent = agent_class("CartPole-v1", config, InlineTaskPool(), 1, board=BoardSeats(link))

    def play(member: str) -> None:
        ends.append(joined(MemoryBoard(server), member, TASK, KEYS).run(lambda: False, lambda figures: None))

    threads = [threading.Thread(target=play, args=(member,), daemon=True) for member in "ab"]
    try:
        for thread in threads:
            thread.start()
        row = agent.train()
        while row["info"]["num_updates"] < 20:
            row = agent.train()
        assert row["info"]["board"]["num_refused"] == 0
        assert isinstance(row["info"]["learner"]["loss"], float)
    finally:
        agent.stop()
    for thread in threads:
        thread.join(60.0)
    assert ends == [SeatEnd.TASK_OVER] * 2
