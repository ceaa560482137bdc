"""What the driver hands to the process of a trial whose actors join over a board."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rlexp.board.messages.address import BoardAddress
from rlexp.board.trainer.trial import AssignedTask
from rlexp.runs.run_directory import RunDirectory
from rlexp.terminal.displays import QuietDisplay
from rlexp.tuning.assignment import ASSIGNMENT, BoardSecrets, hand_over_secrets
from rlexp.tuning.cluster_trials import ClusterTrials
from tests.unit.tuning.cluster_doubles import FakeNodes, make_trial, tune_trial

TASK = AssignedTask(BoardAddress("memory", "test-board-secrets"), "small-1", "host-1", 7)
SECRETS = {"RLEXP_BOARD_PASSWORD": "geheim", "RLEXP_QUEUE_PASSWORD": "other", "RLEXP_BOARD_MASTER": "rlexp-master-1-x"}


class FakeActor:
    """Keeps what it is called with, as Ray's handle of an actor sends it."""

    def __init__(self) -> None:
        self.taken: list[BoardSecrets] = []
        self.take_secrets = SimpleNamespace(remote=self.taken.append)


def trial_with(actor: Any, task: AssignedTask | None) -> Any:
    trial = tune_trial(make_trial(), actor)
    trial.config[ASSIGNMENT] = replace(trial.config[ASSIGNMENT], task=task)
    return trial


def test_only_what_the_board_needs_is_handed_over() -> None:
    actor = FakeActor()
    hand_over_secrets(trial_with(actor, TASK), False, {**SECRETS, "AWS_SECRET_ACCESS_KEY": "not this"})
    (taken,) = actor.taken
    assert taken.variables == SECRETS
    assert not [value for value in SECRETS.values() if value in repr(taken)]


def test_trial_without_a_board_is_handed_nothing() -> None:
    actor = FakeActor()
    hand_over_secrets(trial_with(actor, None), False, SECRETS)
    assert actor.taken == []


def test_each_process_of_a_trial_is_handed_the_secrets_and_whether_it_is_the_first(tmp_path: Path) -> None:
    actors = FakeActor(), FakeActor()
    with RunDirectory.create(tmp_path, "small", None, ["run"], overwrite=False) as directory:
        directory.start([make_trial()])
        trials = ClusterTrials(FakeNodes(), directory, QuietDisplay(io.StringIO()))
        for actor in actors:
            trials.begin(trial_with(actor, TASK))
        trials.close()
    assert [secrets.is_successor for actor in actors for secrets in actor.taken] == [False, True]
