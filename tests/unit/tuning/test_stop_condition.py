"""

A trial whose episodes do not end says so once, and which key cuts them.

Rows say which process made them, and what it has done since it began from a checkpoint, as Tune's do.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from rlexp.agents.agent import Agent
from rlexp.config.keys.agents import experiment_class
from rlexp.errors import EnvError
from rlexp.rollout.evaluation import PlayedEpisodes, ReportProgress, ShouldStop, ignore_progress, never
from rlexp.runs.rows import scalars
from rlexp.tuning.stop_condition import (
    SHARE,
    STEPS_OF_AN_ENV,
    CheckpointEvaluation,
    Reached,
    RowOrigin,
    ended_by,
    row_notes,
)
from tests.lab.trials import assigned, rows_of

GOAL = Reached("episode_reward_mean", 476.0, 475.0)


@dataclass
class Player:
    """An agent whose evaluations have these mean rewards, one after the other, and take so many seconds each."""

    rewards: list[float]
    seconds: float = 1.0
    now: float = 100.0
    is_held: bool = False
    events: list[str] = field(default_factory=list)
    config: Any = field(default_factory=lambda: SimpleNamespace(evaluation_timeout_s=180.0))

    @property
    def optimizer(self) -> Player:
        return self

    @contextmanager
    def paused(self) -> Iterator[None]:
        self.is_held = True
        yield
        self.is_held = False

    def prepare_evaluation(self, should_stop: ShouldStop) -> None:
        assert not self.is_held  # the learner goes on until the process is there

    def evaluate(self, num_episodes: int, should_stop: ShouldStop, report: ReportProgress) -> PlayedEpisodes:
        assert self.is_held
        if not self.rewards:
            raise EnvError("env x: step raised RuntimeError: it is broken")
        ended = 0
        while ended < num_episodes and not should_stop():
            self.now += self.seconds / num_episodes
            ended += 1
        returns = np.full(ended, self.rewards.pop(0) if ended == num_episodes else 0.0)
        return PlayedEpisodes(returns, np.ones(ended, np.int64), num_episodes, ended, self.seconds)

    def add_event(self, event: str) -> None:
        self.events.append(event)


def evaluation_of(player: Player, num_episodes: int = 20, should_stop: ShouldStop = never) -> CheckpointEvaluation:
    return CheckpointEvaluation(
        cast(Agent[Any], player), num_episodes, should_stop, ignore_progress, lambda: player.now
    )


def test_a_reward_that_the_weights_reach_too_ends_a_trial() -> None:
    player, row = Player([500.0]), dict[str, Any]()
    evaluation = evaluation_of(player)
    assert evaluation.confirms(GOAL, row)
    assert row["evaluation"]["episode_reward_mean"] == 500.0
    assert player.is_held  # what is saved now are the weights that were played
    player.now += 1_000
    evaluation.add_figures(row)
    assert player.events == []  # a row that was evaluated is not played again, which would fail
    evaluation.release()
    assert not player.is_held


def test_a_reward_that_the_weights_do_not_reach_does_not_and_is_said() -> None:
    player = Player([297.0])
    assert not evaluation_of(player).confirms(GOAL, {})
    assert player.events == [
        "episode_reward_mean 476.0 reached 475, but 20 episodes of an evaluation had 297.0: training continues"
    ]


def test_the_next_try_waits_until_evaluations_take_a_small_share_of_the_time() -> None:
    player = Player([297.0, 500.0])
    evaluation = evaluation_of(player)
    assert not evaluation.confirms(GOAL, {})
    evaluation.release()
    player.now += 0.9 * player.seconds / SHARE
    assert not evaluation.confirms(GOAL, {})
    assert len(player.events) == 1  # it was not played again
    player.now += 0.2 * player.seconds / SHARE
    assert evaluation.confirms(GOAL, {})


def test_the_evaluation_of_a_checkpoint_delays_no_confirmation() -> None:
    player = Player([300.0, 500.0])
    evaluation = evaluation_of(player)
    player.now += 1.1 * player.seconds / SHARE
    evaluation.add_figures({})
    evaluation.release()
    assert evaluation.confirms(GOAL, {})


def test_the_lowest_reward_is_compared_with_the_lowest() -> None:
    row: dict[str, Any] = {}
    assert not evaluation_of(Player([400.0])).confirms(Reached("episode_reward_min", 480.0, 475.0), row)
    assert evaluation_of(Player([480.0])).confirms(Reached("episode_reward_mean_all", 480.0, 475.0), row)


def test_without_episodes_every_reward_counts() -> None:
    player, row = Player([]), dict[str, Any]()
    evaluation = evaluation_of(player, num_episodes=0)
    assert evaluation.confirms(GOAL, row)
    evaluation.add_figures(row)
    assert (row, player.is_held) == ({}, False)


def test_what_cannot_be_played_in_time_counts_with_a_word() -> None:
    player, row = Player([500.0], seconds=1_000.0), dict[str, Any]()
    assert evaluation_of(player).confirms(GOAL, row)
    assert player.events == [
        "episode_reward_mean 476.0 reached 475; its evaluation was not over in time, so the reward alone counts"
    ]
    assert row == {}


def test_an_env_that_fails_in_evaluations_does_not_fail_the_trial() -> None:
    player, row = Player([]), dict[str, Any]()
    evaluation = evaluation_of(player)
    assert evaluation.confirms(GOAL, row)
    player.now += 1_000
    evaluation.add_figures(row)
    assert row == {}
    assert player.events == ["checkpoints are not evaluated any more: env x: step raised RuntimeError: it is broken"]


def test_a_stop_that_was_asked_for_confirms_nothing() -> None:
    player = Player([500.0])
    assert not evaluation_of(player, should_stop=lambda: True).confirms(GOAL, {})
    assert player.events == []


def test_checkpoints_are_evaluated_where_it_takes_a_small_share_of_the_time() -> None:
    player = Player([10.0])
    evaluation = evaluation_of(player)
    rows: list[dict[str, Any]] = []
    for elapsed in (0.5, 0.9, 2.1):  # of the time for which one second is the share
        player.now += elapsed / SHARE
        rows.append({})
        evaluation.add_figures(rows[-1])
        evaluation.release()
    played = [row["evaluation"]["episode_reward_mean"] if row else None for row in rows]
    # The first was cut off after half a second: then it might take twice as long. The second waits for that.
    assert played == [None, None, 10.0]


@pytest.mark.parametrize(
    ("row", "is_over"),
    [
        ({"timesteps_total": 100, "done": False}, True),  # a counter; the stop may be an earlier one than before
        ({"episode_reward_mean": 476.0, "done": True}, True),
        ({"episode_reward_mean": 476.0, "done": False}, False),  # its evaluation did not reach it
        ({"evaluation": {"episode_reward_mean": 480.0}, "done": False}, False),  # that of a checkpoint
        ({"timesteps_total": 99, "episode_reward_mean": 474.0, "done": False}, False),
    ],
)
def test_a_killed_trial_is_over_where_its_last_row_ended_it(row: dict[str, Any], is_over: bool) -> None:
    stop = {"timesteps_total": 100.0, "episode_reward_mean": 475.0, "evaluation/episode_reward_mean": 475.0}
    assert ended_by(stop, row) is is_over


LONG = 2 * 3 * STEPS_OF_AN_ENV


def said(steps: int, before: int | None, episodes: int = 0, done: bool = False, **config: Any) -> list[str]:
    keys = {"num_workers": 2, "num_envs_per_worker": 3, **config}
    given = {"name": "e", "run": "DQN", "env": "CartPole-v1", "config": keys}
    row = {"timesteps_total": steps, "episodes_total": episodes, "done": done}
    earlier = {} if before is None else {"timesteps_total": before}
    return row_notes(experiment_class("DQN").model_validate(given), row, earlier)


def test_key_that_cuts_episodes_is_named() -> None:
    (sentence,) = said(LONG, LONG - 1)
    assert sentence.startswith("no episode has ended in 30,000 env steps")
    assert sentence.endswith("config.horizon cuts episodes")


@pytest.mark.parametrize(
    ("steps", "before", "options", "number"),
    [
        (LONG - 1, None, {}, 0),
        (LONG, None, {}, 1),
        (LONG + 1, LONG, {}, 0),
        (LONG, LONG - 1, {"episodes": 1}, 0),
        (LONG, LONG - 1, {"horizon": 10**6}, 0),
        (100, 50, {"done": True}, 1),
        (LONG + 1, LONG, {"done": True}, 0),
        (LONG, None, {"num_workers": 0, "num_envs_per_worker": 1}, 1),
        (STEPS_OF_AN_ENV - 1, None, {"num_workers": 0, "num_envs_per_worker": 1}, 0),
    ],
)
def test_it_is_said_once(steps: int, before: int | None, options: dict[str, Any], number: int) -> None:
    assert len(said(steps, before, **options)) == number


ROW = {"training_iteration": 5, "timesteps_total": 900, "time_total_s": 12.5, "trial_name": "a"}
BEFORE = {"training_iteration": 3, "timesteps_total": 500, "time_total_s": 8.0, "trial_name": "a"}
ID = "0123456789abcdef" * 2


def test_process_of_a_row() -> None:
    facts = RowOrigin("a", None).facts(ROW)
    assert (facts["hostname"], facts["pid"], facts["trial_name"]) == (socket.gethostname(), os.getpid(), "a")
    assert facts["node_ip"].count(".") == 3
    assert facts["date"].startswith("20")


def test_counts_begin_at_the_checkpoint() -> None:
    facts = RowOrigin("a", BEFORE).facts(ROW)
    assert [facts[f"{name}_since_restore"] for name in ("iterations", "timesteps", "time")] == [2, 400, 4.5]
    facts = RowOrigin("a", None).facts(ROW)
    assert [facts[f"{name}_since_restore"] for name in ("iterations", "timesteps", "time")] == [5, 900, 12.5]


@pytest.mark.parametrize(
    ("name", "given", "is_kept"), [("a", ID, True), ("b", ID, False), ("a", "x" * 10_000, False), ("a", None, False)]
)
def test_experiment_id_is_kept_by_a_checkpoint_of_the_trial_itself(name: str, given: Any, is_kept: bool) -> None:
    found = RowOrigin(name, {**BEFORE, "experiment_id": given}).facts(ROW)["experiment_id"]
    assert (found == ID) == is_kept
    assert len(found) == len(ID)


def test_trial_that_continues_has_its_id_and_new_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with assigned(tmp_path, {"timesteps_per_iteration": 100}, checkpoint_freq=1) as assignment:
        first = rows_of(assignment, monkeypatch, at_most=2)
        again = rows_of(assignment, monkeypatch, at_most=2)
    assert [row["training_iteration"] for row in (*first, *again)] == [1, 2, 3, 4]
    assert [row["iterations_since_restore"] for row in (*first, *again)] == [1, 2, 1, 2]
    assert [row["timesteps_since_restore"] for row in again] == [row["timesteps_total"] - 200 for row in again]
    assert len({row["experiment_id"] for row in (*first, *again)}) == 1


def test_process_and_restore_are_no_figures() -> None:
    row = {**ROW, **RowOrigin("a", BEFORE).facts(ROW)}
    assert {name for name, _ in scalars(row)} == {"training_iteration", "timesteps_total", "time_total_s"}
