"""What a run announces on a board, and what it refuses before anything is created."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from rlexp.agents.board.joinable import new_task_id
from rlexp.config.keys.trial import Trial
from rlexp.config.load import load_plan
from rlexp.config.yaml.writer import to_yaml
from rlexp.display.quiet import QuietDisplay
from rlexp.errors import UsageError
from rlexp.sessions.choose import OWN, Joining
from rlexp.transport.address import PASSWORD_VARIABLE, BoardAddress
from rlexp.transport.credentials import message_key
from rlexp.tuning.board_task import board_link, checked_board

BOARD = BoardAddress("memory", "test-board-task")


class Notes(QuietDisplay):
    """A display that keeps the notes."""

    def __init__(self) -> None:
        super().__init__(io.StringIO())
        self.notes: list[str] = []

    def on_note(self, trial: Any, text: str) -> None:
        self.notes.append(text)


def trials_of(folder: Path, run: str = "APEX", **config: Any) -> tuple[Trial, ...]:
    file = folder / "experiment.yaml"
    file.write_text(to_yaml({"small": {"run": run, "env": "CartPole-v1", "config": config}}), encoding="utf-8")
    return load_plan([file]).trials


def test_one_trial_gets_a_note_that_says_how_to_join(tmp_path: Path) -> None:
    notes = Notes()
    assert checked_board(trials_of(tmp_path), BOARD, OWN, notes) == BOARD
    assert notes.notes == [f"actors join with: rlexp join {BOARD}"]


def test_password_is_not_kept_with_the_board(tmp_path: Path) -> None:
    notes = Notes()
    with_password = BoardAddress("memory", "test-board-task", password="geheim")
    assert checked_board(trials_of(tmp_path), with_password, OWN, notes) == BOARD
    assert notes.notes == [f"actors join with: rlexp join {BOARD}; {PASSWORD_VARIABLE} has its password"]


def test_link_has_the_key_of_the_password_in_the_environment() -> None:
    link = board_link(BOARD, "small", {PASSWORD_VARIABLE: "geheim"})
    assert link is not None
    assert link.key == message_key("geheim", link.task_id)
    assert link.name == "small"
    assert board_link(None, "small") is None


def test_trial_that_begins_again_is_another_task() -> None:
    first, second = board_link(BOARD, "small", {}), board_link(BOARD, "small", {})
    assert first is not None
    assert second is not None
    assert first.task_id != second.task_id
    assert first.member != second.member


@pytest.mark.parametrize(
    ("name", "start"), [("CartPole apex", "CartPole_apex-"), ("é/ü", "task-"), ("a" * 90, "a" * 50)]
)
def test_ids_of_tasks_begin_with_the_name_and_fit(name: str, start: str) -> None:
    task_id = new_task_id(name)
    assert task_id.startswith(start)
    assert len(task_id) <= 64


def test_several_trials_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="here are 2"):
        checked_board(trials_of(tmp_path, lr={"grid_search": [0.1, 0.2]}), BOARD, OWN, Notes())


@pytest.mark.parametrize(
    ("run", "config", "reason"),
    [("PPO", {}, "newest weights"), ("APEX", {"replay_storage": "shared_memory"}, "shared_memory")],
)
def test_what_actors_cannot_join_is_refused(run: str, config: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=reason):
        checked_board(trials_of(tmp_path, run, **config), BOARD, OWN, Notes())


def test_clusters_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--address"):
        checked_board(trials_of(tmp_path), BOARD, Joining("head:6379"), Notes())


def test_keys_of_a_board_without_one_have_a_note(tmp_path: Path) -> None:
    notes = Notes()
    assert checked_board(trials_of(tmp_path, board={"actors": 4}), None, OWN, notes) is None
    assert notes.notes == ["config.board has no effect without --board"]
    assert checked_board(trials_of(tmp_path), None, OWN, Notes()) is None
