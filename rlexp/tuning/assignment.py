"""What the process of a trial gets from the driver: its assignment, the secrets of its board, and its files.

Secrets are an argument of a call of the trial's actor, which Ray sends from process to process and does not keep. A
cluster keeps the arguments of actors' creation, environments of processes and command lines; none of these have
secrets. Trials on machines without the run's directory reach it through the Keeper, an actor at the driver's node.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec, TypeVar
from uuid import uuid4

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError
from ray.tune.experiment import Trial as TuneTrial
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rlexp.board.messages.address import PASSWORD_VARIABLE, QUEUE_PASSWORD_VARIABLE, BoardAddress
from rlexp.board.messages.credentials import MASTER_VARIABLE
from rlexp.board.trainer.trial import AssignedTask, assigned_task
from rlexp.config.keys.trial import Trial
from rlexp.config.keys.user_code import UserModules
from rlexp.errors import ResourceError
from rlexp.runs.keeper import Answer, Keeper, KeeperLostError, SentFiles
from rlexp.runs.kept_checkpoints import starting_point
from rlexp.runs.record import RecordedError
from rlexp.runs.run_directory import RunDirectory
from rlexp.runs.trial_files import SharedFiles, TrialFiles, end_phases
from rlexp.search.trial_scheduler import Milestones
from rlexp.search.trial_source import TrialSource

ASSIGNMENT = "assignment"
"""The key of Tune's config of a trial with its Assignment."""


@dataclass(frozen=True)
class Assignment:
    """The data that a trial's process needs."""

    trial: Trial
    directory: Path
    """The trial's own directory, absolute: on storage that driver and trial share, or at the driver only."""
    modules: UserModules
    """The user's own modules."""
    restore: Path | None
    """A checkpoint to start from if the trial has none of its own."""
    deadline_s: float | None
    """Time of day (``time.time``) at which the trial ends, by its experiment's ``time_budget_s`` or its sweep's."""
    milestones: Milestones | None = None
    """The times at which it is compared with others."""
    keeper: str | None = None
    """The name of the Keeper's actor with the trial's directory; None if the trial's process has it too."""
    task: AssignedTask | None = None
    """The trial's task on a board, if actors join it; None: no board."""


def assignment_of(trial: Trial, directory: RunDirectory, source: TrialSource, keeper: str | None = None) -> Assignment:
    """Return the assignment that the process of ``trial`` is sent; its time budget begins now."""
    end_phases(directory.trial_directory(trial))  # a process that was killed left it
    budget_s = trial.experiment.time_budget_s
    deadlines = [source.deadline_s, None if budget_s is None else time.time() + budget_s]
    return Assignment(
        trial=trial,
        directory=directory.trial_directory(trial).resolve(),
        modules=directory.modules,
        restore=starting_point(trial),
        deadline_s=min((deadline for deadline in deadlines if deadline is not None), default=None),
        milestones=source.milestones,
        keeper=keeper,
        task=assigned_task(directory, trial, source.board if isinstance(source.board, BoardAddress) else None),
    )


def assigned(trial: TuneTrial) -> Assignment:
    """Return the assignment of one of Tune's trials."""
    assignment: Assignment = trial.config[ASSIGNMENT]
    return assignment


_VARIABLES: Final = (PASSWORD_VARIABLE, QUEUE_PASSWORD_VARIABLE, MASTER_VARIABLE)


@dataclass(frozen=True)
class BoardSecrets:
    """The secrets that the process of a trial needs for its board, beside the address."""

    variables: Mapping[str, str] = field(repr=False)
    """Secrets by the environment variables that have them at the driver."""
    is_successor: bool = False
    """Whether another process of the trial had the task before; its node may only be cut off from the cluster."""


def hand_over_secrets(trial: TuneTrial, is_successor: bool, environment: Mapping[str, str] = os.environ) -> None:
    """Let the process that is about to begin ``trial`` use its board; does nothing if the trial has none.

    Called before Tune lets the process train: calls of an actor are done in the order in which one caller makes them.
    """
    if assigned(trial).task is not None:
        variables = {name: environment[name] for name in _VARIABLES if name in environment}
        process: Any = trial.temporary_state.ray_actor
        process.take_secrets.remote(BoardSecrets(variables, is_successor))


ANSWER_TIMEOUT_S = 300.0
"""Most seconds of one call of the Keeper; the longest call computes the hashes of a checkpoint with all replay."""
START_TIMEOUT_S = 60.0
"""Most seconds for its process to start."""
_LOST = re.compile(r"KeeperLostError: (.+)")
_FILES, _WATCH = "files", "watch"
_THREADS = {_FILES: 4, _WATCH: 1}
"""Threads of the Keeper by kind of call, so that large files of one trial do not delay checks of others."""

P = ParamSpec("P")
T = TypeVar("T")


def files_of(assignment: Assignment) -> TrialFiles:
    """Return the files of a trial for its process; the caller closes them.

    Raises OSError if the trial's directory is missing, KeeperLostError if the Keeper cannot be reached.
    """
    if assignment.keeper is None:
        return SharedFiles(assignment.directory)
    return SentFiles(RayKeeperLink(assignment.keeper), assignment.directory)


@contextmanager
def started_keeper(run: Path) -> Iterator[str]:
    """Start a Keeper on this node, which has the run's directory; provide its name, and end it afterwards.

    Called in the thread that calls Ray.
    """
    name = f"rlexp-keeper-{uuid4().hex}"
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    actor = (
        ray.remote(concurrency_groups=_THREADS)(Keeper)  # type: ignore[call-overload]
        .options(name=name, num_cpus=0, scheduling_strategy=here)
        .remote(run.absolute())
    )
    try:
        _wait_for(actor)
        yield name
    finally:
        with suppress(RayError):
            ray.kill(actor, no_restart=True)


def _wait_for(keeper: Any) -> None:
    try:
        ray.get(keeper.stop_requested.remote(), timeout=START_TIMEOUT_S)
    except GetTimeoutError:
        what = f"the Keeper, which writes the trials' files at this node, has not started within {START_TIMEOUT_S:g} s"
        raise ResourceError(
            what, "other work may use the whole machine; --out on a shared disk needs no Keeper"
        ) from None
    except RayActorError as error:
        raise _lost(f"it could not be started ({str(error).partition(chr(10))[0]})") from None


def keeper_error(trial: TuneTrial) -> RecordedError | None:
    """Return the error of a trial that has lost its Keeper and so could not store an error; None for any other."""
    if assigned(trial).keeper is None:
        return None
    found = _LOST.findall(str(trial.get_error()))
    return RecordedError(found[-1]) if found else None


class RayKeeperLink:
    """Calls a Keeper by the name of its actor."""

    def __init__(self, name: str) -> None:
        """Raises KeeperLostError if there is no such actor."""
        try:
            self._actor = ray.get_actor(name)
        except ValueError:
            raise _lost("it has ended") from None

    def call(self, function: Callable[Concatenate[Keeper, P], T], *args: P.args, **named: P.kwargs) -> Answer[T]:
        return self._begun(_FILES, function.__name__, args, named)

    def watch(self, function: Callable[Concatenate[Keeper, P], T], *args: P.args, **named: P.kwargs) -> Answer[T]:
        return self._begun(_WATCH, function.__name__, args, named)

    def _begun(self, group: str, function: str, args: Any, named: Any) -> RayAnswer[Any]:
        method = getattr(self._actor, function).options(concurrency_group=group)
        return RayAnswer(method.remote(*args, **named))


class RayAnswer(Answer[T]):
    """The answer of a Keeper through Ray."""

    def __init__(self, reference: Any) -> None:
        self._reference = reference

    def is_ready(self) -> bool:
        ready, _ = ray.wait([self._reference], timeout=0, fetch_local=False)
        return bool(ready)

    def get(self) -> T:
        try:
            answer: T = ray.get(self._reference, timeout=ANSWER_TIMEOUT_S)
            return answer
        except GetTimeoutError:
            raise _lost(f"it has not answered for {ANSWER_TIMEOUT_S:g} s") from None
        except RayActorError as error:
            raise _lost("its process or its node cannot be reached") from error
        except RayTaskError as error:
            raise (error.cause if isinstance(error.cause, Exception) else error) from None


def _lost(what: str) -> KeeperLostError:
    return KeeperLostError(f"the Keeper, which writes the trial's files at the driver's node, is lost: {what}")
