"""Rows say which process made them, and what it has done since it began from a checkpoint, as Tune's do."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from rlexp.runs.rows import scalars
from rlexp.tuning.stop_condition import RowOrigin
from tests.behaviour.inline_trials import assigned, rows_of

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
