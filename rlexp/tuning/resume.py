"""``rlexp resume``: continues a run or sweep that was stopped or killed, also with a later ``stop``.

The last part settles the open work of a killed one: which trials have ended, and which decisions are not carried out.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from rlexp.agents.workers import refuse_unloadable
from rlexp.board.trainer.trial import (
    checked_board,
    ended_with_parent,
    record_task,
    refuse_board_of_sweeps,
    task_failure_reported,
)
from rlexp.config.command_line import shown_override
from rlexp.config.keys.metrics import GROWING_METRICS
from rlexp.config.keys.trial import Trial
from rlexp.config.load import Plan, rate_caution, resolved_yaml
from rlexp.config.sweep import Sweep
from rlexp.errors import CheckpointError, ResumeError
from rlexp.files import plain
from rlexp.processes.locks import RUN_FILE
from rlexp.processes.signals import StopRequest
from rlexp.runs.checkpoint_contents import Manifest
from rlexp.runs.checkpoints import newest_manifest
from rlexp.runs.kept_checkpoints import copy_checkpoint
from rlexp.runs.record import (
    PARAMETERS_FILE,
    RESOLVED_FILE,
    RecordedError,
    RunRecord,
    Status,
    TrialRecord,
    read_run_record,
)
from rlexp.runs.recorders import TrialRecorder
from rlexp.runs.resuming import (
    CHANGEABLE,
    CHANGEABLE_IN_SWEEPS,
    differences,
    key_as_typed,
    load_recorded_plan,
    recorded_trials,
    refuse_changes_of,
    refuse_untrusted,
    what_can_change,
)
from rlexp.runs.rows import checkpoint_row, last_row
from rlexp.runs.run_directory import RunDirectory
from rlexp.runs.storage import fetch_missing
from rlexp.search.confirmation import restored_confirmation, to_confirm
from rlexp.search.ranking import SWEEP_FILE
from rlexp.search.record import BEST_FILE, JOURNAL_FILE, Heading, Journal, read_heading
from rlexp.search.search import Search
from rlexp.search.searchers import require_searcher
from rlexp.search.standings import Display
from rlexp.search.state import OVER, Restored, SearchState, restored
from rlexp.search.trial_source import FixedTrials
from rlexp.text import masked
from rlexp.trackers.trackers import Trackers
from rlexp.tuning.request import TrainingRequest
from rlexp.tuning.run import EXIT_CODES, capacity, cluster_for, confirmed_search, make_session, run_in_session
from rlexp.tuning.stop_condition import ended_by, reached, writes_checkpoint
from rlexp.user_code.trusted_code import NOTHING_ALLOWED, TrustedCode


def resume_run(request: TrainingRequest, display: Display, trusted: TrustedCode = NOTHING_ALLOWED) -> int:
    """Continue the trials of the run or sweep at ``request.path`` that have not reached their stop.

    Returns the exit code. Overrides (``stop.timesteps_total=1e6``) may change what CHANGEABLE names. Each trial
    continues from its newest valid checkpoint. Raises ResumeError, with nothing changed, if the path is not a run of
    rlexp, is damaged or in use, or if other keys differ from the checkpoints. Raises it also if the run names code or a
    storage that is not this user's and not in ``trusted``.
    """
    path, overrides = request.path, request.overrides
    record = read_run_record(path)
    refuse_untrusted(path, record)
    if is_sweep(path):
        refuse_board_of_sweeps(request.board)
        return resume_sweep(request, record, display, trusted)
    refuse_changes_of(overrides, {"seed"}.union(*(trial.varied for trial in record.trials)), path)
    plan = load_recorded_plan(path, record, overrides, trusted)
    if plan.sweeps:  # its journal and sweep.json were lost
        return resume_sweep(request, record, display, trusted)
    trials, ended = _unfinished_and_ended(path, plan, record)
    if not trials and not ended:
        raise _nothing_left(path, plan, record)
    for trial in trials:
        _refuse_other_keys(trial, path / record.trial(trial.name).directory)
    for caution in dict.fromkeys(filter(None, (rate_caution(trial.experiment) for trial in trials))):
        display.on_note(None, caution)
    request = replace(request, out=path.absolute().parent)
    board = checked_board(trials, request.board, display)
    cluster = cluster_for(plan, trials, display, request)
    with (
        StopRequest(display.on_stop_request) as stop,
        Trackers.started(trials, request.out, display.on_note) as trackers,
        RunDirectory.open(path, plan.modules) as directory,
    ):
        directory.trackers = trackers
        if overrides:
            directory.write_resolved(resolved_yaml(plan))
        _fetch_missing(directory, trials, display)
        for trial in ended:
            directory.trial_status(trial, Status.TERMINATED)
        if not trials:
            return _concluded(Status.TERMINATED, directory, display)
        directory.restart(trials)
        record_task(directory, trials, board)
        session = make_session(cluster, plan, request)
        source = FixedTrials(trials, cluster.cpus, cluster.gpus, board)
        with ended_with_parent(), task_failure_reported(directory, trials, board):
            return run_in_session(source, trials, directory, display, stop, session)


def _fetch_missing(directory: RunDirectory, trials: Sequence[Trial], display: Display) -> None:
    """Fetch checkpoints of trials without any from their storage; raises ResumeError as resuming does."""
    storages = {trial.experiment.storage for trial in trials} - {None}
    if not storages:
        return
    urls = {trial.name: trial.experiment.storage for trial in trials if trial.experiment.storage is not None}
    if len(storages) == 1:  # a sweep's trials have names that its plan does not know
        urls |= {record.name: str(*storages) for record in directory.record.trials}
    for text in fetch_missing(directory.path, directory.record, urls):
        display.on_note(None, text)
    for trial in trials:
        if directory.record.knows(trial.name):
            _refuse_other_keys(trial, directory.trial_directory(trial))


def _unfinished_and_ended(path: Path, plan: Plan, record: RunRecord) -> tuple[list[Trial], list[Trial]]:
    """Return the trials that continue, and the trials that ended without ``run.json`` saying so."""
    trials: list[Trial] = []
    ended: list[Trial] = []
    for trial in recorded_trials(path, plan, record):
        known = record.trial(trial.name)
        if not has_ended(trial, known, path / known.directory):
            trials.append(trial)
        elif known.status is not Status.TERMINATED:
            ended.append(trial)
    return trials, ended


def _nothing_left(path: Path, plan: Plan, record: RunRecord) -> ResumeError:
    """Return the error for a run whose trials have all ended, which names what ended them."""
    ends = (
        reached(trial.experiment.stop, last_row(path / record.trial(trial.name).directory) or {})
        for trial in recorded_trials(path, plan, record)
    )
    by_metric = {end.metric: end for end in ends if end is not None}
    reason = f": {next(iter(by_metric.values()))}" if len(record.trials) == 1 and by_metric else ""
    changes = " ".join(f"-o stop.{metric}=..." for metric in by_metric or ["timesteps_total"])
    how = "a later" if by_metric.keys() <= set(GROWING_METRICS) else "a higher"
    return ResumeError(f"every trial of {path} has reached its stop{reason}", f"{changes} sets {how} one")


def _refuse_other_keys(trial: Trial, directory: Path) -> None:
    """Raise ResumeError if a trial's newest checkpoint was trained with other keys."""
    newest = newest_manifest(directory)
    refuse_unloadable(newest)
    if newest is None:
        return
    before = newest[1].metadata.get("experiment")
    if not isinstance(before, dict):
        return
    others = list(differences(before, trial.experiment.model_dump(mode="json"), CHANGEABLE))
    if others:
        message = f"{trial.name} cannot be resumed with other keys: {', '.join(others)}"
        raise ResumeError(message, what_can_change(CHANGEABLE))


def is_sweep(path: Path) -> bool:
    """Return whether a run is a sweep, also if its journal was lost."""
    return (path / JOURNAL_FILE).exists() or (path / SWEEP_FILE).exists()


def resume_sweep(
    request: TrainingRequest, record: RunRecord, display: Display, trusted: TrustedCode = NOTHING_ALLOWED
) -> int:
    """Continue the sweep at ``request.path``; return the exit code, as the sweep itself does.

    ``overrides`` may change what CHANGEABLE_IN_SWEEPS names. Raises ResumeError, with nothing changed, if they change
    anything else, if the sweep has ended, or if its files are damaged, in use or of different runs.
    """
    path, overrides = request.path, request.overrides
    heading = read_heading(path)
    _refuse_other_space(overrides, heading)
    plan = load_recorded_plan(path, record, overrides, trusted)
    sweep = same_sweep(plan, heading, path)
    require_searcher(sweep, Path(heading.folder))
    request = replace(request, out=path.absolute().parent)
    cluster = cluster_for(plan, plan.everything, display, request)
    with (
        StopRequest(display.on_stop_request) as stop,
        Trackers.started(plan.everything, request.out, display.on_note) as trackers,
        RunDirectory.open(path, plan.modules) as directory,
    ):
        directory.trackers = trackers
        _fetch_missing(directory, plan.everything, display)
        past = restored(sweep, path)
        confirming = restored_confirmation(past.state, path)
        refuse_unresumable(past, confirming, directory)
        if overrides:
            directory.write_resolved(resolved_yaml(plan))
        with (
            Journal(path, past.elapsed_s) as journal,
            closing(confirmed_search(past.state, directory, journal, capacity(sweep, cluster))) as source,
        ):
            settle(source.search, past, directory)
            if confirming is not None:
                settle(source.resume(confirming), confirming, directory)
            display.follow(past.state.standings)
            if source.is_complete:
                return _concluded(source.conclude(Status.TERMINATED), directory, display)
            session = make_session(cluster, plan, request)
            return run_in_session(source, [], directory, display, stop, session)


def same_sweep(plan: Plan, heading: Heading, path: Path) -> Sweep:
    """Return the sweep of a plan with its axes in their first order; raises ResumeError if it has other keys."""
    keys = plan.sweeps[0].space.keys if len(plan.sweeps) == 1 else ()
    if set(keys) != set(heading.axes):
        now = ", ".join(keys) or "nothing"
        message = f"{path} searches {', '.join(heading.axes)}, {path / RESOLVED_FILE} has {now}"
        raise ResumeError(
            message, "the space of a sweep cannot change; rlexp sweep starts a new sweep with another one"
        )
    changeable = {key for key in CHANGEABLE_IN_SWEEPS if key_as_typed(key) not in heading.axes}
    now_resolved = plain(masked(plan.experiments[0].resolved))
    others = list(differences(heading.experiment, now_resolved, changeable))
    if others:
        message = f"{path} cannot be resumed with other keys: {', '.join(others)}"
        raise ResumeError(message, what_can_change(changeable))
    return plan.sweeps[0].with_axes_in_order(heading.axes)


def refuse_unresumable(past: Restored, confirming: Restored | None, directory: RunDirectory) -> None:
    """Raise ResumeError if files are of different sweeps, a trial has no valid checkpoint, or nothing is left to do."""
    state = past.state
    states = [state] if confirming is None else [state, confirming.state]
    _refuse_strange_trials(states, directory)
    if state.configurations > state.sweep.number_of_configurations:
        message = f"{state.configurations} configurations have begun, and search.num_samples asks for fewer"
        raise ResumeError(message, "-o search.num_samples=... may only be higher")
    for trial in [trial for each in states for trial in each.unfinished()]:
        refuse_unloadable(newest_manifest(directory.trial_directory(trial)))
    is_left = any(each.waiting or each.unfinished() or not each.is_exhausted for each in states)
    is_left = is_left or (confirming is None and to_confirm(state) is not None)
    has_best = (directory.path / BEST_FILE).exists() or state.standings.best() is None
    if not is_left and directory.record.status in EXIT_CODES and has_best:
        hint = None if state.sweep.searcher == "grid" else "-o search.num_samples=... tries more"
        raise ResumeError(f"every trial of {directory.path} has ended", hint)
    budget_s = state.sweep.search.time_budget_s
    elapsed_s = past.elapsed_s + (0.0 if confirming is None else confirming.elapsed_s)
    if is_left and budget_s is not None and elapsed_s >= budget_s:
        message = f"the time of {directory.path} has ended: search.time_budget_s is {budget_s:g}"
        raise ResumeError(message, "-o search.time_budget_s=... gives it more")


def _refuse_strange_trials(states: Sequence[SearchState], directory: RunDirectory) -> None:
    """Raise ResumeError if the journal lacks a trial, or has begun one that is nowhere else."""
    begun = {each.trial.name: each.trial for state in states for each in state.standings.trials()}
    waiting = {trial.name: trial for state in states for trial in state.waiting}
    known = {record.name: directory.path / record.directory for record in directory.record.trials}
    places = set(map(directory.trial_directory, (begun | waiting).values()))
    lost = {name for name in begun.keys() - known.keys() if not directory.trial_directory(begun[name]).is_dir()}
    unknown = {file.parent.name for file in directory.path.glob(f"*/{PARAMETERS_FILE}") if file.parent not in places}
    strange = sorted(lost | unknown | (known.keys() - begun.keys() - waiting.keys()))
    if strange:
        message = (
            f"{directory.path / RUN_FILE} and {JOURNAL_FILE} are not from the same sweep: only one has {strange[0]}"
        )
        raise ResumeError(message, "restore both from the same copy")


def _concluded(status: Status, directory: RunDirectory, display: Display) -> int:
    """End a run that was killed after all trials had ended."""
    display.start(directory.path, [])
    directory.finish(status)
    display.finish(directory.record)
    return EXIT_CODES[status]


def _refuse_other_space(overrides: Sequence[str], heading: Heading) -> None:
    """Raise ResumeError if an override would change the values of a searched key."""
    for text in overrides:
        key = text.partition("=")[0].strip().removeprefix("config.")
        for axis in heading.axes:
            if f"{axis}.".startswith(f"{key}.") or f"{key}.".startswith(f"{axis}."):
                message = (
                    f"{shown_override(text)}: {axis} cannot change when a sweep is resumed, because it is searched"
                )
                raise ResumeError(message, "rlexp sweep starts a new sweep with another space")


def has_ended(trial: Trial, record: TrialRecord, directory: Path) -> bool:
    """Return whether a trial has reached its ``stop``, which may have changed since, by the last row in ``directory``.

    A trial that was killed right after its last row has also ended, though ``run.json`` does not say so.
    """
    row = last_row(directory)
    if row is None:
        return record.status is Status.TERMINATED
    is_over = record.status in (Status.TERMINATED, Status.RUNNING, Status.PENDING)
    return is_over and ended_by(trial.experiment.stop, row)


def settle(search: Search, past: Restored, directory: RunDirectory) -> None:
    """Carry out open decisions of a killed sweep, and queue unfinished trials before new ones."""
    state = past.state
    for standing in state.standings.trials():
        if not directory.record.knows(standing.trial.name):
            directory.recover(standing.trial)
    for trial, checkpoint in past.exploited:
        _copy_exploited(search, trial, checkpoint, directory)
    for trial in state.unfinished():
        newest = newest_manifest(directory.trial_directory(trial))
        if newest is not None:
            _record_lost_row(search, trial, *newest, directory)
        _end_if_due(search, trial, directory)
        standing = state.standings.of(trial)
        if newest is None and standing.iterations and standing.status not in OVER:
            search.standings.note(f"{trial.name} has no checkpoint and starts from the beginning")
    for standing in state.standings.trials():
        if standing.status in OVER and directory.record.trial(standing.trial.name).status is not standing.status:
            failure = None if standing.error is None else RecordedError(standing.error)
            directory.trial_status(standing.trial, standing.status, failure)
    unfinished = state.unfinished()
    state.requeue()
    directory.restart(unfinished)
    over = len(state.standings.trials()) - len(unfinished)
    new = state.standings.number_of_configurations - len(state.standings.ranked()) - len(state.standings.refused)
    search.standings.note(
        f"resumed; trials that ended before: {over}, that continue: {len(unfinished)}; new configurations: {new}"
    )


def _copy_exploited(search: Search, trial: Trial, checkpoint: str, directory: RunDirectory) -> None:
    """Copy the checkpoint from which a trial is to continue, unless only its start is missing."""
    newest = newest_manifest(directory.trial_directory(trial))
    if newest is not None and newest[0].name == Path(checkpoint).name:
        row = checkpoint_row(newest[0], newest[1].metadata)
        if row is not None and row["trial_name"] != trial.name:
            directory.change(trial)
            return
    try:
        copy_checkpoint(directory.path / checkpoint, directory.trial_directory(trial))
    except (CheckpointError, OSError) as error:
        search.standings.note(f"{trial.name[:5]} cannot copy {checkpoint}: {error}")
    directory.change(trial)


def _record_lost_row(search: Search, trial: Trial, newest: Path, manifest: Manifest, directory: RunDirectory) -> None:
    """Record the row in a trial's newest checkpoint, if the sweep was killed before it was recorded."""
    row, folder = checkpoint_row(newest, manifest.metadata), directory.trial_directory(trial)
    if row is None or row["trial_name"] != trial.name:
        return
    iteration, standing = row["training_iteration"], search.standings.of(trial)
    kept = last_row(folder)
    if kept is None or min(kept["training_iteration"], standing.iterations) < iteration:
        values, columns = search.hyperparameters(trial), trial.experiment.config.AGENT_COLUMNS
        with closing(TrialRecorder(folder, values, search.hparams_metrics, columns)) as recorder:
            recorder.record(row)
        directory.trial_result(trial, row)
        directory.trial_checkpoint(trial, newest, row)
    if standing.iterations >= iteration:
        return
    is_milestone = writes_checkpoint(search.milestones, standing.progress, row)
    search.on_result(trial, row, newest if is_milestone else None)


def _end_if_due(search: Search, trial: Trial, directory: RunDirectory) -> None:
    """End a trial whose last row, or a decision to stop it, is on the disk while its end is not."""
    row = last_row(directory.trial_directory(trial))
    if search.is_pruned(trial):
        search.on_end(trial, False, None)
    elif row is not None and ended_by(trial.experiment.stop, row):
        if row["training_iteration"] > search.standings.of(trial).iterations:
            search.on_result(trial, row, None)
        search.on_end(trial, True, None)
