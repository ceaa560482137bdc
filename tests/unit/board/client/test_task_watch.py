"""A task that others train is followed row by row, and evaluated meanwhile, whatever the board loses or repeats."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from rlexp.board.actor.outbox import WeightsFeed
from rlexp.board.client.run import SubmittedTask
from rlexp.board.client.watch import (
    MOST_PAUSE_S,
    PATIENCE_S,
    BoardEvaluator,
    EvaluationThread,
    TaskNotes,
    TaskWatch,
    put,
)
from rlexp.board.messages.basics import BoardError, Task, UnreadableError
from rlexp.board.messages.credentials import TrainerKeys
from rlexp.board.messages.payloads import Newer
from rlexp.board.servers.board import Board, TaskStatus, TaskSummary
from rlexp.errors import TrialError
from rlexp.rollout.evaluation import PlayedEpisodes, ShouldStop, never
from rlexp.rollout.filters import Moments
from tests.lab.board import EXPERIMENT, KEY, ToldTrainer, led, result_row, submitted_task, zero_weights
from tests.lab.memory_board import MemoryBoard, MemoryServer

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
        feed = WeightsFeed(board, task.id, TrainerKeys(KEY, KEY), 1 << 20)
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
    scene.thread.want(3, is_last=True)
    scene.player.wait_for([1, 3])
    scene.thread._thread.join(WAIT_S)
    results, notes = scene.thread.take()
    assert scene.thread.is_over
    assert [(version, figures["episodes_this_iter"]) for version, figures in results] == [(1, 3), (3, 3)]
    assert notes == []
    assert scene.thread.take() == ([], [])


def test_last_weights_are_not_evaluated_twice(scene: Scene) -> None:
    scene.trainer.put_weights(1)
    scene.thread.want(1)
    scene.player.wait_for([1])
    scene.thread.want(1, is_last=True)
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


def player(submitted: SubmittedTask) -> BoardEvaluator:
    return BoardEvaluator(submitted.trial.experiment, submitted.plan.modules)


def test_weights_of_a_board_play_the_same_episodes_each_time_without_torch(tmp_path: Path) -> None:
    had_torch = "torch" in sys.modules
    plays = player(submitted_task(tmp_path, EXPERIMENT))
    first, second = (plays.play(Newer(7, zero_weights(), None, 0), 2, never) for _ in range(2))
    assert first.is_complete
    assert first.returns.tolist() == second.returns.tolist()
    assert max(first.returns) < 12  # it always pushes to one side
    assert had_torch or "torch" not in sys.modules


def test_weights_of_another_network_are_an_error(tmp_path: Path) -> None:
    plays = player(submitted_task(tmp_path, EXPERIMENT))
    for wrong in ({}, zero_weights(num_observations=5)):
        with pytest.raises(TrialError, match="weights 7 cannot be evaluated"):
            plays.play(Newer(7, wrong, None, 0), 1, never)


def test_observations_are_standardised_by_the_moments_of_the_weights(tmp_path: Path) -> None:
    plays = player(submitted_task(tmp_path, EXPERIMENT, "config.observation_filter=MeanStdFilter"))
    mean = np.array([0.0, 0.0, 1e6, 0.0])  # a pole that is far to the left of its mean
    pushes = zero_weights()
    pushes["torso.0.weight"][0, 2] = -1.0
    pushes["advantage_head.0.weight"][0, 0] = 1.0
    pushes["advantage_head.2.weight"][1, 0] = 1.0
    evaluator = plays._evaluator(Moments(100, mean, np.full(4, 99.0)))
    plays._policy.set_weights(pushes)
    obs = np.zeros((1, 4), np.float32)
    assert evaluator.filters.applied_to(plays._policy).compute_actions(obs).tolist() == [1]
    assert plays._policy.compute_actions(obs).tolist() == [0]


class Place:
    """A board with a submitted task, and the clocks of both ends."""

    def __init__(self, submitted: SubmittedTask) -> None:
        self.now_s = 0.0
        self.server = MemoryServer(lambda: 1000.0 + self.now_s)
        self.board: Board = MemoryBoard(self.server)
        self.task = submitted.task
        self.board.submit(self.task)
        self.watch = TaskWatch(self.board, self.task, None, lambda: self.now_s)

    def iterations(self) -> list[int]:
        return [row["training_iteration"] for row in self.watch.look().rows]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(submitted_task(tmp_path))


def test_each_row_comes_once_and_in_order(place: Place) -> None:
    assert place.watch.look().rows == ()
    trainer = ToldTrainer(place.board, place.task)
    trainer.put_rows(result_row(1), result_row(2))
    assert place.iterations() == [1, 2]
    assert place.iterations() == []
    trainer.put_rows(result_row(3))
    assert place.iterations() == [3]


def test_rows_that_a_trainer_puts_again_come_once(place: Place) -> None:
    trainer = ToldTrainer(place.board, place.task)
    trainer.put_rows(result_row(1), result_row(2))
    assert place.iterations() == [1, 2]
    trainer.put_rows(result_row(1), result_row(2), result_row(3))
    trainer.put_rows(result_row(3))
    news = place.watch.look()
    assert [row["training_iteration"] for row in news.rows] == [3]
    assert news.notes == ()


def test_rows_of_a_successor_that_repeats_iterations_come_too(place: Place) -> None:
    trainer = ToldTrainer(place.board, place.task)
    trainer.put_rows(result_row(1), result_row(2), result_row(3))
    place.watch.look()
    place.board.give_up(trainer.lead)
    ToldTrainer(place.board, place.task, "colab-2").put_rows(result_row(2, timestamp=7), result_row(3, timestamp=8))
    assert place.iterations() == [2, 3]


def test_what_is_no_row_is_left_out_and_told(place: Place) -> None:
    deep = "[" * 2000 + "]" * 2000
    wrong = ["{", "[]", json.dumps({"training_iteration": 1}), json.dumps(result_row(1, timesteps_total="x")), deep]
    ToldTrainer(place.board, place.task).put_rows(*wrong, result_row(1))
    news = place.watch.look()
    assert [row["training_iteration"] for row in news.rows] == [1]
    assert news.notes == ("left out 5 results that are none",)


@pytest.mark.parametrize("changed", [{"training_iteration": True}, {"trial_name": "\ud800"}, {"\ud800": 1}])
def test_rows_that_no_file_of_results_takes_are_left_out(place: Place, changed: dict[str, object]) -> None:
    row = result_row(1)
    ToldTrainer(place.board, place.task).put_rows({**row, **changed})
    assert place.watch.look().rows == ()


def test_rows_that_the_board_does_not_keep_are_told(place: Place) -> None:
    trainer = ToldTrainer(place.board, place.task)
    trainer.put_rows(result_row(1))
    place.watch.look()
    for start in range(2, 1202, 100):
        trainer.put_rows(*(result_row(iteration) for iteration in range(start, start + 100)))
    news = place.watch.look()
    assert news.notes == ("200 results are not on the board any more",)
    assert news.rows[0]["training_iteration"] == 202


def test_watch_that_begins_again_leaves_out_what_is_recorded(place: Place) -> None:
    ToldTrainer(place.board, place.task).put_rows(*(result_row(iteration) for iteration in (1, 2, 3, 4)))
    recorded = result_row(2, evaluation={"episode_reward_mean": 1.0})
    watch = TaskWatch(place.board, place.task, recorded, lambda: 0.0)
    assert [row["training_iteration"] for row in watch.look().rows] == [3, 4]
    unknown = TaskWatch(place.board, place.task, result_row(2, timestamp=1), lambda: 0.0)
    assert len(unknown.look().rows) == 4


def test_queued_task_that_the_board_lost_is_submitted_again_at_once(place: Place) -> None:
    place.watch.look()
    place.server.lose_data()
    news = place.watch.look()
    assert (news.summary, news.notes) == (None, ("the board had lost the task; it was submitted again",))
    summary = place.watch.look().summary
    assert summary is not None
    assert summary.status is TaskStatus.QUEUED


def test_task_that_has_a_trainer_is_left_to_it_for_a_while(place: Place) -> None:
    ToldTrainer(place.board, place.task).put_rows(result_row(1), result_row(2))
    assert place.iterations() == [1, 2]
    place.server.lose_data()
    assert "waiting up to 60 s" in place.watch.look().notes[0]
    place.now_s += PATIENCE_S - 1
    assert place.watch.look().notes == ()
    trainer_again(place).put_rows(result_row(3))
    assert place.iterations() == [3]


def test_more_rows_than_before_after_a_loss_are_all_new(place: Place) -> None:
    ToldTrainer(place.board, place.task).put_rows(result_row(1), result_row(2))
    assert place.iterations() == [1, 2]
    place.server.lose_data()
    trainer_again(place).put_rows(*(result_row(iteration) for iteration in (3, 4, 5, 6)))
    assert place.iterations() == [3, 4, 5, 6]


def test_task_whose_trainer_does_not_announce_it_is_submitted_again(place: Place) -> None:
    ToldTrainer(place.board, place.task)
    place.watch.look()
    place.server.lose_data()
    place.watch.look()
    place.now_s += PATIENCE_S + 1
    assert place.watch.look().notes == ("the board had lost the task; it was submitted again",)


def test_task_that_is_lost_again_and_again_is_submitted_less_and_less_often(place: Place) -> None:
    submitted_s = []
    for second in range(3600):
        place.server.lose_data()
        place.now_s = float(second)
        if place.watch.look().notes:
            submitted_s.append(second)
    pauses = [later - before for before, later in pairwise(submitted_s)]
    assert submitted_s[0] == 0
    assert pauses[0] <= 2
    assert pauses == sorted(pauses)
    assert len(submitted_s) < 20
    assert max(pauses) == MOST_PAUSE_S


class Unlisted(MemoryBoard):
    """A board that has a task in a state that cannot be read: its list leaves that task out."""

    is_unlisted = True
    num_submitted = 0

    def tasks(self) -> list[TaskSummary]:
        return [] if self.is_unlisted else super().tasks()

    def submit(self, task: Task) -> None:
        self.num_submitted += 1
        super().submit(task)


def test_task_whose_state_cannot_be_read_is_said_once_waited_for_and_given_up(place: Place) -> None:
    board = Unlisted(place.server)
    watch = TaskWatch(board, place.task, None, lambda: place.now_s)
    news = watch.look()
    assert (news.summary, len(news.notes)) == (None, 1)
    assert "the board has the task, but not what can be read of its state" in news.notes[0]
    place.now_s += PATIENCE_S - 1
    assert watch.look().notes == ()
    board.is_unlisted = False
    assert watch.look().summary is not None
    board.is_unlisted = True
    assert len(watch.look().notes) == 1
    place.now_s += PATIENCE_S + 1
    with pytest.raises(BoardError, match=f"state of task {place.task.id} on the board cannot be read"):
        watch.look()
    assert board.num_submitted == 0


def test_task_of_which_nothing_can_be_read_is_waited_for_too(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(board: MemoryBoard, task_id: str) -> Task | None:
        raise UnreadableError(task_id, "task seats")

    monkeypatch.setattr(Unlisted, "describe", unreadable)
    board = Unlisted(place.server)
    watch = TaskWatch(board, place.task, None, lambda: place.now_s)
    assert "not what can be read of its state" in watch.look().notes[0]
    board.is_unlisted = False
    assert watch.look().summary is not None


def trainer_again(place: Place) -> ToldTrainer:
    """Return the trainer after the board lost its data."""
    return ToldTrainer(place.board, place.task, lead=led(place.board, replace(place.task, description={"protocol": 1})))


def test_task_that_is_there_already_is_ours_only_with_the_same_text(place: Place) -> None:
    put(place.board, place.task)
    with pytest.raises(BoardError, match="already"):
        put(place.board, Task(place.task.id, "other", 1, {}, "b: {}"))


def test_changes_of_the_trainer_are_told_once(place: Place) -> None:
    notes = TaskNotes("redis://host")

    def told() -> list[str]:
        return notes.of(place.board.tasks()[0])

    start = "no trainer has taken it yet; start one with: rlexp join redis://host --as trainer"
    assert told() == []
    place.now_s += 6
    assert (told(), told()) == ([start], [])
    trainer = ToldTrainer(place.board, place.task)
    assert (told(), told()) == (["trainer colab-1 has taken it"], [])
    place.board.give_up(trainer.lead)
    waiting = "to go on, start one with: rlexp join redis://host --as trainer"
    assert (told(), told()) == (["trainer colab-1 is gone", waiting], [])
    ToldTrainer(place.board, place.task, "colab-2").finish()
    assert told() == []
