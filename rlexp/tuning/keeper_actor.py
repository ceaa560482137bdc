"""The Keeper as an actor at the driver's node, for trials on machines that do not have the run's directory."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar
from uuid import uuid4

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rlexp.errors import ResourceError
from rlexp.runs.files import Answer, Keeper, KeeperLostError, SentFiles, SharedFiles, TrialFiles
from rlexp.runs.run_record import RecordedError
from rlexp.tuning.assignment import ASSIGNMENT, Assignment

if TYPE_CHECKING:
    from ray.tune.experiment import Trial as TuneTrial

    from rlexp.sessions.session import Session

ANSWER_TIMEOUT_S = 300.0
"""How long the Keeper may take for one call: the longest one computes the hashes of a checkpoint with all replay."""
START_TIMEOUT_S = 60.0
"""How long its process may take to start."""
_LOST = re.compile(r"KeeperLostError: (.+)")
_FILES, _WATCH = "files", "watch"
_THREADS = {_FILES: 4, _WATCH: 1}
"""Of the Keeper, by kind of call: large files of one trial do not delay the looks of others."""

P = ParamSpec("P")
T = TypeVar("T")


def files_of(assignment: Assignment) -> TrialFiles:
    """Return the files of a trial for its process; the caller closes them.

    Raises OSError where the trial's directory is missing, KeeperLostError where the Keeper cannot be reached.
    """
    if assignment.keeper is None:
        return SharedFiles(assignment.directory)
    return SentFiles(RayKeeperLink(assignment.keeper), assignment.directory)


@contextmanager
def keeper_of(run: Path, session: Session) -> Iterator[str | None]:
    """Start a Keeper for a run where not every node has its directory; provide its name, and end it afterwards.

    Called in the thread that calls Ray.
    """
    if session.cluster.shares_out:
        yield None
        return
    with started_keeper(run) as name:
        yield name


@contextmanager
def started_keeper(run: Path) -> Iterator[str]:
    """Start a Keeper on this node, which has the run's directory; provide its name, and end it afterwards."""
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
    """Return the error of a trial that has lost its Keeper, and so could keep no error itself; None for any other."""
    assignment: Assignment = trial.config[ASSIGNMENT]
    if assignment.keeper is None:
        return None
    found = _LOST.findall(str(trial.get_error()))
    return RecordedError(found[-1]) if found else None


class RayKeeperLink:
    """Calls a Keeper by the name of its actor."""

    def __init__(self, name: str) -> None:
        """Raises KeeperLostError where there is no such actor."""
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
    """The answer of a Keeper, as Ray brings it."""

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
