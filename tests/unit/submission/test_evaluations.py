"""Evaluations while a task is trained elsewhere: the newest weights, not too often, and what a trainer cannot break."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from rlexp.board.actor.outbox import WeightsFeed
from rlexp.board.client.evaluations import EvaluationThread, WeightsPlayer
from rlexp.board.client.run import SubmittedTask
from rlexp.board.messages.credentials import SharedKeys
from rlexp.board.messages.payloads import Newer
from rlexp.errors import TrialError
from rlexp.rollout.evaluation import PlayedEpisodes, ShouldStop, never
from rlexp.rollout.filters import Moments
from tests.doubles.memory_board import MemoryBoard, MemoryServer
from tests.submitted_tasks import EXPERIMENT, KEY, ToldTrainer, submitted_task

WAIT_S = 10.0


class TimedPlayer:
    """Plays at once what it is given, and keeps its version."""

    def __init__(self) -> None:
        self.versions: list[int] = []
        self.error: Exception | None = None
        self.played = threading.Condition()

    def play(self, newer: Newer, num_episodes: int, should_stop: ShouldStop) -> PlayedEpisodes:
        with self.played:
            self.versions.append(newer.version)
            self.played.notify_all()
        if self.error is not None:
            raise self.error
        ones = np.ones(num_episodes)
        return PlayedEpisodes(ones, ones, num_episodes, num_episodes, 0.0)

    def wait_for(self, versions: list[int]) -> None:
        with self.played:
            assert self.played.wait_for(lambda: self.versions == versions, WAIT_S), self.versions


class Scene:
    def __init__(self, folder: Path, period_s: float) -> None:
        board = MemoryBoard(MemoryServer())
        task = submitted_task(folder).task
        board.submit(task)
        self.trainer, self.player = ToldTrainer(board, task), TimedPlayer()
        feed = WeightsFeed(board, task.id, SharedKeys(KEY), 1 << 20)
        self.thread = EvaluationThread(self.player, feed, 3, period_s)  # type: ignore[arg-type]


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path, period_s=3600.0)
    yield made
    made.thread.stop()
    made.thread.stop()


def test_newest_weights_are_evaluated_once_and_the_last_ones_at_the_end(scene: Scene) -> None:
    for version in (1, 2, 3):
        scene.trainer.put_weights(version)
    scene.thread.want(1)
    scene.player.wait_for([1])
    scene.thread.want(2)  # within the period
    scene.thread.end_with(3)
    scene.player.wait_for([1, 3])
    scene.thread._thread.join(WAIT_S)
    results, notes = scene.thread.take()
    assert scene.thread.is_over
    assert [(result.version, result.figures["episodes_this_iter"]) for result in results] == [(1, 3), (3, 3)]
    assert notes == []
    assert scene.thread.take() == ([], [])


def test_last_weights_are_not_evaluated_twice(scene: Scene) -> None:
    scene.trainer.put_weights(1)
    scene.thread.want(1)
    scene.player.wait_for([1])
    scene.thread.end_with(1)
    scene.thread._thread.join(WAIT_S)
    assert scene.player.versions == [1]


def test_weights_that_are_gone_or_forged_are_left_out(scene: Scene) -> None:
    scene.trainer.put_weights(2, b"other")
    scene.thread.want(1)
    scene.thread.want(2)
    scene.trainer.put_weights(3)
    scene.thread.want(3)
    scene.player.wait_for([3])


def test_env_that_fails_is_told_and_ends_nothing(tmp_path: Path) -> None:
    scene = Scene(tmp_path, period_s=0.0)
    scene.player.error = OSError("no display")
    for version in (1, 2):
        scene.trainer.put_weights(version)
        scene.thread.want(version)
        scene.player.wait_for([1, 2][:version])
    scene.thread.stop()
    assert scene.thread.take() == ([], ["no evaluation: OSError: no display"] * 2)


def player(submitted: SubmittedTask) -> WeightsPlayer:
    return WeightsPlayer(submitted.trial.experiment, submitted.plan.modules)


def weights(num_observations: int = 4) -> dict[str, np.ndarray]:
    shapes = {"torso.0": (4, num_observations), "advantage_head.0": (4, 4), "advantage_head.2": (2, 4)}
    shapes |= {"value_head.0": (4, 4), "value_head.2": (1, 4)}
    made = {f"{name}.weight": np.zeros(shape, np.float32) for name, shape in shapes.items()}
    return made | {f"{name}.bias": np.zeros(shape[0], np.float32) for name, shape in shapes.items()}


def test_weights_of_a_board_play_the_same_episodes_each_time_without_torch(tmp_path: Path) -> None:
    had_torch = "torch" in sys.modules
    plays = player(submitted_task(tmp_path, EXPERIMENT))
    first, second = (plays.play(Newer(7, weights(), None, 0), 2, never) for _ in range(2))
    assert first.is_complete
    assert first.returns.tolist() == second.returns.tolist()
    assert max(first.returns) < 12  # it always pushes to one side
    assert had_torch or "torch" not in sys.modules


def test_weights_of_another_network_are_an_error(tmp_path: Path) -> None:
    plays = player(submitted_task(tmp_path, EXPERIMENT))
    for wrong in ({}, weights(num_observations=5)):
        with pytest.raises(TrialError, match="weights 7 cannot be evaluated"):
            plays.play(Newer(7, wrong, None, 0), 1, never)


def test_observations_are_standardised_by_the_moments_of_the_weights(tmp_path: Path) -> None:
    plays = player(submitted_task(tmp_path, EXPERIMENT, "config.observation_filter=MeanStdFilter"))
    mean = np.array([0.0, 0.0, 1e6, 0.0])  # a pole that is far to the left of its mean
    pushes = weights()
    pushes["torso.0.weight"][0, 2] = -1.0
    pushes["advantage_head.0.weight"][0, 0] = 1.0
    pushes["advantage_head.2.weight"][1, 0] = 1.0
    evaluator = plays._evaluator(Moments(100, mean, np.full(4, 99.0)))
    plays._policy.set_weights(pushes)
    obs = np.zeros((1, 4), np.float32)
    assert evaluator.filters.applied_to(plays._policy).compute_actions(obs).tolist() == [1]
    assert plays._policy.compute_actions(obs).tolist() == [0]
