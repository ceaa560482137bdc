"""Joiner: which tasks an actor joins, in which order, and when it ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rlexp.board.actor import joiner as joining
from rlexp.board.actor.joiner import JoinedTask, Joiner
from rlexp.board.actor.outbox import SeatEnd
from rlexp.board.actor.trainer import TaskTrainer
from rlexp.board.messages.basics import Backoff, BoardLostError, Task, UnreadableError
from rlexp.board.servers.board import Board, Lead, TaskStatus, TaskSummary
from rlexp.config.keys.user_code import UserModules, UserPart
from rlexp.errors import TrialError, UsageError
from rlexp.user_code.trusted_code import Obstacle, TrustedCode
from tests.lab.board import claimed, led, taken
from tests.lab.memory_board import MemoryBoard, MemoryServer


class Player:
    """Plays by a list of ends, and keeps which tasks it was given."""

    nothing_wanted = "nothing waits"
    wants = staticmethod(JoinedTask.wants)

    def __init__(self, *ends: SeatEnd | TrialError | None, obstacles: dict[str, Obstacle] | None = None) -> None:
        self.played: list[str] = []
        self._ends = list(ends)
        self._obstacles = obstacles or {}

    def obstacle(self, task: Task) -> Obstacle | None:
        return self._obstacles.get(task.id)

    def play(self, task: Task, should_stop: Callable[[], bool]) -> SeatEnd | None:
        self.played.append(task.id)
        end = self._ends.pop(0)
        if isinstance(end, TrialError):
            raise end
        return end

    @property
    def has_played(self) -> bool:
        return not self._ends


class Trainer(Player):
    wants = staticmethod(TaskTrainer.wants)


@pytest.fixture
def board() -> MemoryBoard:
    return MemoryBoard(MemoryServer())


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "LOOK_S", 0.0)
    monkeypatch.setattr(Backoff, "failed", lambda backoff: 0.0)


def announced(board: Board, *task_ids: str, num_seats: int = 1) -> list[Lead]:
    return [led(board, Task(task_id, "a task", num_seats)) for task_id in task_ids]


def run(board: Board, player: Player, task_id: str | None = None, once: bool = False) -> list[str]:
    """Join until all ends of ``player`` were used; return what was reported."""
    reported: list[str] = []
    Joiner(board, "me", player, reported.append, lambda: player.has_played, task_id, once).run()
    return reported


def test_free_tasks_are_joined_one_after_another(board: MemoryBoard) -> None:
    announced(board, "a")
    player = Player(SeatEnd.TASK_OVER, SeatEnd.FENCED, SeatEnd.STOPPED)
    run(board, player)
    assert player.played == ["a", "a", "a"]


def test_once_ends_with_the_first_task_but_not_with_a_lost_seat(board: MemoryBoard) -> None:
    announced(board, "a")
    player = Player(None, SeatEnd.FENCED, SeatEnd.TASK_OVER, SeatEnd.TASK_OVER)
    run(board, player, once=True)
    assert len(player.played) == 3


def test_full_and_ended_tasks_are_passed_over(board: MemoryBoard) -> None:
    _, ended, _ = announced(board, "full", "ended", "free")
    claimed(board, task_id="full")
    board.finish(ended, TaskStatus.ENDED)
    player = Player(SeatEnd.TASK_OVER)
    run(board, player, once=True)
    assert player.played == ["free"]


def test_only_the_task_that_is_wanted_is_joined(board: MemoryBoard) -> None:
    announced(board, "a", "b")
    player = Player(SeatEnd.TASK_OVER, SeatEnd.TASK_OVER)
    run(board, player, task_id="b")
    assert player.played == ["b"]


@pytest.mark.parametrize(("task_id", "how"), [("c", "is not on the board"), ("a", "is over")])
def test_wanted_task_that_cannot_be_joined_any_more_is_an_error(board: MemoryBoard, task_id: str, how: str) -> None:
    (lead,) = announced(board, "a")
    board.finish(lead, TaskStatus.ENDED)
    with pytest.raises(UsageError, match=how):
        run(board, Player(SeatEnd.TASK_OVER), task_id=task_id)


def test_task_with_foreign_code_is_left_out_and_reported_once(board: MemoryBoard) -> None:
    announced(board, "strange", "a")
    obstacles = {"strange": Obstacle("imports the module x", "--import x allows it")}
    player = Player(SeatEnd.FENCED, SeatEnd.TASK_OVER, obstacles=obstacles)
    reported = run(board, player, once=True)
    assert player.played == ["a", "a"]
    assert reported[0] == "task strange (a task) imports the module x: it is not joined; --import x allows it"
    with pytest.raises(UsageError, match="imports the module x"):
        run(board, Player(SeatEnd.TASK_OVER, obstacles=obstacles), task_id="strange")


def test_task_that_fails_here_is_left_out_afterwards(board: MemoryBoard) -> None:
    announced(board, "broken", "a")
    player = Player(TrialError("env differs"), SeatEnd.FENCED, SeatEnd.STOPPED)
    reported = run(board, player)
    assert player.played == ["broken", "a", "a"]
    assert "task broken is left out from now on: env differs" in reported


@pytest.mark.parametrize("options", [{"once": True}, {"task_id": "broken"}])
def test_failure_of_the_only_task_ends_the_actor(board: MemoryBoard, options: dict[str, Any]) -> None:
    announced(board, "broken")
    with pytest.raises(TrialError, match="env differs"):
        run(board, Player(TrialError("env differs")), **options)


class Away(MemoryBoard):
    """A board that is away for the first looks."""

    num_failures = 3

    def tasks(self) -> list[TaskSummary]:
        if self.num_failures:
            self.num_failures -= 1
            raise BoardLostError("board redis://x does not answer")
        return super().tasks()


def test_board_that_is_away_is_tried_again() -> None:
    board = Away(MemoryServer())
    announced(board, "a")
    player = Player(SeatEnd.TASK_OVER)
    reported = run(board, player, once=True)
    assert player.played == ["a"]
    assert reported == ["board redis://x does not answer; trying again in 0 s"] * 3


class TestTrustedCode:
    def test_envs_of_gymnasium_are_played(self) -> None:
        assert TrustedCode().obstacle("CartPole-v1", {}, (), ()) is None

    @pytest.mark.parametrize(
        ("env", "env_config", "imports", "allowed_by"),
        [
            ("mine:Env", {}, (), "--allow-env mine:Env"),
            ("CartPole-v1", {"file": "/etc/passwd"}, (), "--allow-env CartPole-v1"),
            ("CartPole-v1", {}, ("mine",), "--import mine"),
        ],
    )
    def test_code_and_arguments_of_the_task_are_refused(
        self, env: str, env_config: dict[str, str], imports: tuple[str, ...], allowed_by: str
    ) -> None:
        obstacle = TrustedCode().obstacle(env, env_config, imports, ())
        assert obstacle is not None
        assert obstacle.hint == f"{allowed_by} allows it"

    def test_what_was_allowed_is_played(self) -> None:
        trusted = TrustedCode(frozenset({"mine:Env"}), UserModules(("mine",)))
        assert trusted.obstacle("mine:Env", {"size": 3}, ("mine",), ()) is None

    @pytest.mark.parametrize("trusted", [TrustedCode(), TrustedCode(modules=UserModules(("gymnasium.wrappers",)))])
    def test_a_class_in_the_config_has_to_be_allowed_itself(self, trusted: TrustedCode) -> None:
        name = "gymnasium.wrappers:RecordVideo"
        part = UserPart("config.env_wrappers.0", name, {"video_folder": "/home/victim/.ssh"})
        obstacle = trusted.obstacle("CartPole-v1", {}, (), [part])
        assert obstacle is not None
        assert obstacle.message == f"names {name}, a class of its own"
        assert obstacle.hint == f"--allow-class {name} allows it"
        allowed = replace(trusted, classes=frozenset({name}))
        assert allowed.obstacle("CartPole-v1", {}, (), [part]) is None


def test_trainers_take_submitted_tasks_without_a_trainer(board: MemoryBoard) -> None:
    announced(board, "played")
    for task_id in ("queued", "led", "followed", "over"):
        board.submit(Task(task_id, "a task", 1, file="small: {}"))
    taken(board, task_id="led")
    board.give_up(led(board, Task("followed", "a task", 1)))
    board.cancel("over", "")
    assert {task.id for task in board.tasks() if TaskTrainer.wants(task)} == {"queued", "followed"}
    player = Trainer(SeatEnd.STOPPED, obstacles={"followed": Obstacle("needs 64 CPUs", "none here")})
    reported = run(board, player)
    assert player.played == ["queued"]
    assert all("nothing waits" not in text for text in reported)


class SpoiledBoard(MemoryBoard):
    """Has a task whose description somebody else has overwritten."""

    def describe(self, task_id: str) -> Task | None:
        if task_id == "spoiled":
            raise UnreadableError(task_id, "task description")
        return super().describe(task_id)


def test_task_that_cannot_be_read_is_left_out_and_reported_once() -> None:
    board = SpoiledBoard(MemoryServer())
    announced(board, "spoiled", "a")
    board.unreadable.add("spoiled", "seats foo")
    player = Player(SeatEnd.STOPPED, SeatEnd.STOPPED, SeatEnd.TASK_OVER)
    reported = run(board, player)
    assert player.played == ["a", "a", "a"]
    assert reported[0].startswith("key seats of task spoiled, field foo")
    # As all that stays true, it is said again after a seat was left.
    assert (
        reported[1:]
        == [
            "the board has a task spoiled that cannot be read: its key task description holds"
            " something else; it is left out"
        ]
        * 3
    )


def test_only_task_wanted_that_cannot_be_read_is_an_error() -> None:
    board = SpoiledBoard(MemoryServer())
    announced(board, "spoiled")
    with pytest.raises(UnreadableError, match="cannot be read"):
        run(board, Player(SeatEnd.TASK_OVER), task_id="spoiled")
