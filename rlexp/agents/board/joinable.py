"""Which trials actors can join over a board, and what their tasks are called there."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from typing import Final

from rlexp.agents.board.task_demands import number_excess
from rlexp.config.keys.agents import AGENTS
from rlexp.config.keys.trial import Trial
from rlexp.errors import UsageError

NOT_OURS: Final = "actors play with the policies of rlexp's own agents, and a package brings this one"
"""Why an agent of another package has no board."""
_LONGEST_NAME: Final = 50
_NOT_IN_AN_ID: Final = re.compile(r"[^A-Za-z0-9_-]+")


def joinable_trial(trials: Sequence[Trial], without: str) -> Trial:
    """Return the only trial; raises UsageError where there are others, or actors cannot join it.

    ``without`` says what its user does to train without a board.
    """
    if len(trials) != 1:
        message = f"a board's task is one trial, and here are {len(trials)}"
        raise UsageError(message, f"choose one of the variants with -o KEY=VALUE; or {without}")
    experiment = trials[0].experiment
    reason = experiment.config.board_obstacle
    if experiment.run not in AGENTS:
        reason = NOT_OURS
    if reason is not None:
        raise UsageError(f"actors cannot join {experiment.run} over a board: {reason}", without)
    excess = number_excess(experiment.model_dump(mode="json"))
    if excess is not None:
        raise UsageError(f"the machines of others would not take the task: {excess}", f"lower it, or {without}")
    return trials[0]


def new_task_id(name: str) -> str:
    """Return an id that no other task has, which begins with the name of an experiment."""
    start = _NOT_IN_AN_ID.sub("_", name)[:_LONGEST_NAME].strip("_") or "task"
    return f"{start}-{secrets.token_hex(4)}"
