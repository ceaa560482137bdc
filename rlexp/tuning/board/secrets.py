"""The passwords and keys of a board, which the driver hands to the process of a trial in somebody's cluster.

They are the argument of a call of the trial's actor, which Ray sends from process to process and does not keep. What a
cluster does keep has none of them: arguments with which actors are created, environments of processes, command lines.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ray.tune.experiment import Trial as TuneTrial

from rlexp.board.messages.address import PASSWORD_VARIABLE, QUEUE_PASSWORD_VARIABLE
from rlexp.board.messages.tokens import MASTER_VARIABLE
from rlexp.tuning.assignment import ASSIGNMENT, Assignment

_VARIABLES: Final = (PASSWORD_VARIABLE, QUEUE_PASSWORD_VARIABLE, MASTER_VARIABLE)


@dataclass(frozen=True)
class BoardSecrets:
    """What the process of a trial needs to use its board, beside the address."""

    variables: Mapping[str, str] = field(repr=False)
    """By the environment variables that have them at the driver."""
    is_successor: bool = False
    """Whether another process of the trial had the task before, whose node may only be cut off from the cluster."""


def hand_over_secrets(trial: TuneTrial, is_successor: bool, environment: Mapping[str, str] = os.environ) -> None:
    """Let the process that is about to begin ``trial`` use its board; does nothing where the trial has none.

    Called before Tune lets the process train: calls of an actor are done in the order in which one caller makes them.
    """
    assignment: Assignment = trial.config[ASSIGNMENT]
    if assignment.task is not None:
        variables = {name: environment[name] for name in _VARIABLES if name in environment}
        process: Any = trial.temporary_state.ray_actor
        process.take_secrets.remote(BoardSecrets(variables, is_successor))
