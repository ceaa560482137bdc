"""``rlexp run`` and ``rlexp sweep``: refuse what cannot run before anything is created, train, and report the end.

The last part finds the Ray of a run: a new one on this machine, or a cluster, which is probed first.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from rlexp.board.trainer.trial import (
    checked_board,
    ended_with_parent,
    loopback_notices,
    record_task,
    task_failure_reported,
    with_board,
)
from rlexp.cluster.environment import (
    AUTH_MODE,
    named_modules,
    named_packages,
    refuse_full_disk,
    refuse_long_temporary_folder,
    runtime_env,
)
from rlexp.cluster.joined import JoinedRay
from rlexp.cluster.probe import Question, ask_for_bundles, probe_cluster
from rlexp.cluster.room.fit import all_fit, check_fits, number_that_fit, wait_for_room
from rlexp.cluster.room.machine import Cluster, this_machine
from rlexp.cluster.session import OwnRay, RayStartError, RayStoppedError, Session, exit_without_ray
from rlexp.config.keys.trial import Trial
from rlexp.config.load import Plan, only_sweep, resolved_yaml
from rlexp.config.sweep import Sweep
from rlexp.errors import RlexpError
from rlexp.processes.signals import StopRequest
from rlexp.processes.threads import imported_meanwhile
from rlexp.runs.checkpoints import list_checkpoints
from rlexp.runs.directories import as_typed, usual_name
from rlexp.runs.kept_checkpoints import starting_point
from rlexp.runs.record import Status
from rlexp.runs.run_directory import RunDirectory
from rlexp.runs.storage import check_storage
from rlexp.runs.trial_files import require_video_extra
from rlexp.search.confirmation import ConfirmedSearch
from rlexp.search.record import Heading, Journal, read_heading, study_member
from rlexp.search.search import Search
from rlexp.search.searchers import make_searcher, require_searcher
from rlexp.search.standings import Display
from rlexp.search.state import SearchState
from rlexp.search.trial_source import FixedTrials, TrialSource
from rlexp.text import has_secrets, masked
from rlexp.trackers.trackers import Trackers
from rlexp.tuning.preflight import try_envs
from rlexp.tuning.request import TrainingRequest

_RAY_AND_TUNE: Final = ("numpy", "ray", "pyarrow", "pandas", "ray.data", "ray.tune", "rlexp.tuning.tune_runner")
"""Imported early, in steps of some tenths of a second; Tune's own imports come first."""
EXIT_CODES = {Status.TERMINATED: 0, Status.ERROR: 1}


def run_plan(plan: Plan, request: TrainingRequest, display: Display) -> int:
    """Run every trial of ``plan``; return the exit code.

    Raises ResourceError or UsageError, with nothing created, if a trial cannot run here.
    """
    board = checked_board(plan.trials, request.board, display)
    cluster = cluster_for(plan, plan.trials, display, request)
    texts = [source.read_text(encoding="utf-8") for source in plan.sources]
    with (
        StopRequest(display.on_stop_request) as stop,
        Trackers.started(plan.trials, request.out, display.on_note) as trackers,
        _new_directory(plan, request) as directory,
    ):
        directory.trackers = trackers
        directory.write_experiments(texts, resolved_yaml(plan))
        directory.start(plan.trials, plan.modules)
        record_task(directory, plan.trials, board)
        session = make_session(cluster, plan, request)
        source = FixedTrials(plan.trials, cluster.cpus, cluster.gpus, board)
        with ended_with_parent(), task_failure_reported(directory, plan.trials, board):
            return run_in_session(source, plan.trials, directory, display, stop, session)


def _new_directory(plan: Plan, request: TrainingRequest) -> RunDirectory:
    return RunDirectory.create(
        request.out, usual_name(plan), request.name, request.command, overwrite=request.overwrite
    )


def cluster_for(plan: Plan, trials: Sequence[Trial], display: Display, request: TrainingRequest) -> Cluster:
    """Return where trials can run: on this machine, or on the nodes of the joined cluster.

    Raises if one of ``trials`` cannot, or an env or starting point is missing.
    """
    has_replay = any(trial.experiment.config.replay is not None for trial in trials)
    measuring = ", and measuring the memory of its replay" if has_replay else ""
    refuse_full_disk()
    if request.joining.address is None:
        refuse_long_temporary_folder()
        cluster = Cluster.of(this_machine())
        check_fits(trials, cluster)
    else:
        cluster = probed(request.joining.address, plan, trials, display, request)
    for url in {trial.experiment.storage for trial in trials} - {None}:
        check_storage(str(url))
    display.on_phase(None, f"trying each env{measuring}")
    for trial in trials:
        starting_point(trial)
    if any(trial.experiment.config.monitor for trial in trials):
        require_video_extra()
    with imported_meanwhile(_RAY_AND_TUNE):
        reports = try_envs(trials, plan.modules, this_machine(), plan.env_places, plan.copies_trials)
    for report in reports:
        for notice in (*report.warnings, *report.notices):
            display.on_note(None, f"env {report.env}: {notice}")
    return cluster


def run_in_session(
    source: TrialSource,
    trials: Sequence[Trial],
    directory: RunDirectory,
    display: Display,
    stop: StopRequest,
    session: Session,
) -> int:
    """Run the trials of ``source`` in a Ray; return the exit code. ``trials`` are the ones known beforehand."""
    try:
        display.start(directory.path, trials)
        status, failure = _train(source, directory, display, stop, session)
        directory.finish(status)
        display.finish(directory.record)
        code = stop.exit_code if stop.requested else EXIT_CODES[status]
    except KeyboardInterrupt:
        if _end_early(directory, Status.STOPPED):
            display.finish(directory.record)
        else:
            display.on_note(None, f"stopped before the first result; {as_typed(directory.path)} is removed")
        code, failure = stop.exit_code, None
    except RayStartError as error:
        _end_early(directory, Status.ERROR)
        if session.is_abandoned:
            exit_without_ray(error.exit_code)
        raise
    except Exception:
        directory.check()  # if it is lost, that is the cause of all other errors
        with suppress(OSError):
            directory.finish(Status.ERROR)
        raise
    if session.is_abandoned:
        exit_without_ray(code if failure is None else failure.exit_code)
    if failure is not None:
        raise failure
    return code


def _train(
    source: TrialSource, directory: RunDirectory, display: Display, stop: StopRequest, session: Session
) -> tuple[Status, RlexpError | None]:
    """Run the trials within the session; return how the run ended, and the error if Ray ended first.

    Raises KeyboardInterrupt if a run without results was interrupted.
    """
    display.on_phase(None, "loading Ray")
    import_module("ray")  # a second or two in which a signal interrupts

    with ExitStack() as stack:
        display.on_phase(None, "joining the cluster" if session.is_joined else "starting Ray")
        with stop.held_back():
            stack.enter_context(session)
        stack.callback(display.on_phase, None, "leaving the cluster" if session.is_joined else "ending Ray")
        from rlexp.tuning.tune_runner import run_trials  # with Tune, which a thread may have imported meanwhile

        several = len(directory.record.trials) > 1
        display.on_phase(
            None, "starting the processes of the trials" if several else "starting the process of the trial"
        )
        try:
            return source.conclude(run_trials(source, directory, display, stop, session)), None
        except RayStoppedError as error:
            source.conclude(Status.STOPPED)
            return Status.ERROR, RayStoppedError(error.message, _how_to_resume(directory, session.is_joined))
        except KeyboardInterrupt:
            if directory.is_empty:
                raise
            return source.conclude(Status.STOPPED), None


def _how_to_resume(directory: RunDirectory, is_joined: bool) -> str:
    """Return what is left of unfinished trials, and the command that continues them."""
    where = " --address HOST:PORT" if is_joined else ""  # the next cluster may have another address
    where += " --board URL" if any(trial.board_task for trial in directory.record.trials) else ""
    command = f"rlexp resume {shlex.quote(str(directory.path))}{where}"
    trials = [trial for trial in directory.record.trials if trial.status is Status.STOPPED]
    newest = [list_checkpoints(directory.path / trial.directory)[:1] for trial in trials]
    kept = [checkpoint.name for found in newest for checkpoint in found]
    if len(trials) == 1:
        what = f"{kept[0]} is kept" if kept else "no checkpoint was written yet"
    else:
        what = f"{len(kept)} of {len(trials)} stopped trials have a checkpoint"
    return f"{what}; {command} continues"


def _end_early(directory: RunDirectory, status: Status) -> bool:
    """End a run that was interrupted, or could not begin; return whether any of its files are kept."""
    directory.check()
    if directory.is_empty:
        directory.discard()
        return False
    directory.finish(status)
    return True


def run_sweep(plan: Plan, request: TrainingRequest, display: Display) -> int:
    """Search the space of the plan's only sweep; return the exit code.

    Raises ResourceError or UsageError, with nothing created, if its trials cannot run here.
    """
    sweep = only_sweep(plan)
    require_searcher(sweep, Path.cwd())
    cluster = cluster_for(plan, plan.everything, display, request)
    with (
        StopRequest(display.on_stop_request) as stop,
        Trackers.started(plan.everything, request.out, display.on_note) as trackers,
        _new_directory(plan, request) as directory,
        begun_journal(plan, directory, request.allow_failures) as journal,
    ):
        directory.trackers = trackers
        state = SearchState(sweep, make_searcher(sweep, study_member(directory.path)))
        display.follow(state.standings)
        session = make_session(cluster, plan, request)
        with closing(confirmed_search(state, directory, journal, capacity(sweep, cluster))) as source:
            return run_in_session(source, [], directory, display, stop, session)


def begun_journal(plan: Plan, directory: RunDirectory, allow_failures: int) -> Journal:
    """Write all files that a later resume of the sweep needs into a new directory; return its journal.

    ``run.json`` comes last: a directory that has it can be resumed.
    """
    if has_secrets(plan.experiments[0].resolved):
        directory.keep_private()
    texts = [source.read_text(encoding="utf-8") for source in plan.sources]
    directory.write_experiments(texts, resolved_yaml(plan))
    journal = Journal(directory.path)
    experiment = masked(plan.experiments[0].resolved)
    keys = list(only_sweep(plan).space.keys)
    journal.head(Heading(keys, experiment, allow_failures, uuid4().hex, str(Path.cwd())))
    directory.start([], plan.modules)
    return journal


def confirmed_search(state: SearchState, directory: RunDirectory, journal: Journal, capacity: int) -> ConfirmedSearch:
    """Return the search of a sweep with its confirmation; ``capacity`` trials run at a time."""
    heading = read_heading(directory.path)

    def make_search(state: SearchState, journal: Journal) -> Search:
        return Search(state, directory, journal, capacity, heading.allow_failures)

    return ConfirmedSearch(make_search(state, journal), state, directory.path, heading, make_search)


def capacity(sweep: Sweep, cluster: Cluster) -> int:
    """Return the number of trials to run at a time: as many as have room, or fewer if asked for.

    A trial that was begun without room would count as running, and other seeds would not wait for it.
    """
    room = max(max(number_that_fit(experiment, cluster) for experiment in sweep.variants), 1)
    return min(room, sweep.search.max_concurrent or room)


def probed(address: str, plan: Plan, trials: Sequence[Trial], display: Display, request: TrainingRequest) -> Cluster:
    """Return the nodes of the cluster at ``address``; raises ResourceError if they cannot run ``trials``.

    With ``--wait`` it waits for more nodes, which are probed again. Relevant differences between the nodes are shown.
    """
    question = Question(
        modules=named_modules(trials, plan.modules),
        packages=named_packages(trials),
        folders=plan.modules.folders,
        out=request.out,
        runtime_env=_runtime_env(plan, trials, request),
    )
    question = with_board(question, request.board)
    with signals_leave_nothing():
        cluster = _examined(address, question, display)
        timeout_s = request.joining.wait_s
        if timeout_s is not None and not all_fit(trials, cluster):
            ask, report = partial(ask_for_bundles, address), partial(display.on_phase, None)
            wait_for_room(trials, cluster, lambda: probe_cluster(address).cluster, ask, timeout_s, report)
            cluster = _examined(address, question, display)
    check_fits(trials, cluster)
    for notice in loopback_notices(request.board, cluster):
        display.on_note(None, notice)
    return cluster


@contextmanager
def signals_leave_nothing() -> Iterator[None]:
    """Let a signal raise KeyboardInterrupt in the body, and then do what it would have done without this.

    Otherwise it would end the process at once, and leave a file in the runs' directory or an autoscaler's request.
    """
    request = StopRequest(lambda: None)
    try:
        with request:
            yield
    finally:
        if request.signal is not None:
            os.kill(os.getpid(), request.signal)


def _examined(address: str, question: Question, display: Display) -> Cluster:
    display.on_phase(None, "asking the nodes of the cluster")
    report = probe_cluster(address, question)
    os.environ[AUTH_MODE] = report.auth_mode  # before Ray is imported, which reads it then
    report.refuse_problems()
    for notice in (*report.notices, *(notice for node in report.nodes for notice in node.notices)):
        display.on_note(None, notice)
    return report.cluster


def make_session(cluster: Cluster, plan: Plan, request: TrainingRequest) -> Session:
    """Return the session of a run, which is not entered yet."""
    address = request.joining.address
    if address is None:
        machine = cluster.nodes[0].machine
        num_processes = first_processes(plan.everything, machine.cpus)
        return OwnRay(machine.cpus, machine.gpus, request.debug, num_processes, request.joining.fork_server)
    return JoinedRay(address, cluster, _runtime_env(plan, plan.everything, request), request.debug)


def first_processes(trials: Sequence[Trial], num_cpus: int) -> int:
    """Return the likely number of processes of the first trials: one each, and one for each of their workers.

    It is only a guess at how many processes Ray starts at once or, if they are not forked, while Tune is imported. At
    most two for each CPU, since more processes delay the start of Ray.
    """
    needed = [1 + trial.experiment.config.num_workers for trial in trials]
    return min(sum(needed), max(num_cpus, min(needed[0], 2 * num_cpus)))


def _runtime_env(plan: Plan, trials: Sequence[Trial], request: TrainingRequest) -> dict[str, Any]:
    folder = Path.cwd() if request.joining.sends_folder else None
    return runtime_env(named_modules(trials, plan.modules), plan.modules, os.environ, folder, request.out)
