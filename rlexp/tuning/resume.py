"""``rlexp resume``: continues a run or sweep that was stopped or killed, also with a later ``stop`` than before."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from rlexp.agents.restored_state import refuse_unloadable
from rlexp.checkpoint import Manifest, newest_manifest
from rlexp.config.keys.trial import Trial
from rlexp.config.load import Plan, resolved_yaml
from rlexp.config.variants.sweep import Sweep
from rlexp.display import Display
from rlexp.errors import CheckpointError, ResumeError
from rlexp.json_file import plain
from rlexp.runs.changed_keys import (
    CHANGEABLE,
    CHANGEABLE_IN_SWEEPS,
    as_typed,
    differences,
    refuse_changes_of,
    what_can_change,
)
from rlexp.runs.checkpoints import copy_checkpoint
from rlexp.runs.last_row import checkpoint_row, last_row
from rlexp.runs.recorders import TrialRecorder
from rlexp.runs.run_directory import PARAMETERS_FILE, RESOLVED_FILE, RunDirectory, load_recorded_plan
from rlexp.runs.run_record import RUN_FILE, RecordedError, RunRecord, Status, read_run_record
from rlexp.runs.secrets import masked
from rlexp.runs.trust import refuse_own_modules, refuse_untrusted
from rlexp.search.journal import JOURNAL_FILE, Heading, Journal, read_heading
from rlexp.search.ranking import SWEEP_FILE
from rlexp.search.record import BEST_FILE
from rlexp.search.search import Search
from rlexp.search.searchers import require_searcher
from rlexp.search.state import OVER, Restored, SearchState, restored
from rlexp.search.trial_source import FixedTrials
from rlexp.sessions.session import RaySession
from rlexp.tuning.recorded_trials import has_ended, recorded_trials
from rlexp.tuning.run import CHECKING, EXIT_CODES, machine_for, run_in_session
from rlexp.tuning.stop_condition import reached, writes_checkpoint
from rlexp.tuning.stop_request import StopRequest
from rlexp.tuning.sweep import capacity


def resume_run(path: Path, overrides: Sequence[str], display: Display, debug: bool) -> int:
    """Continue the trials of the run or sweep at ``path`` that have not reached their stop; return the exit code.

    ``overrides`` (``stop.timesteps_total=1e6``) may change what CHANGEABLE names. Each trial continues from its
    newest good checkpoint. Raises ResumeError, with nothing changed, where ``path`` is not a run of rlexp, is damaged
    or in use, or where other keys than those differ from the checkpoints.
    """
    record = read_run_record(path)
    refuse_untrusted(path, record)
    if is_sweep(path):
        return resume_sweep(path, record, overrides, display, debug)
    refuse_changes_of(overrides, {"seed"}.union(*(trial.varied for trial in record.trials)), path)
    plan = load_recorded_plan(path, record, overrides)
    if plan.sweeps:  # its journal and sweep.json were lost
        return resume_sweep(path, record, overrides, display, debug)
    refuse_own_modules(path, plan.trials, plan.modules.folders)
    trials, ended = _unfinished_and_ended(path, plan, record)
    if not trials and not ended:
        raise ResumeError(f"every trial of {path} has reached its stop", "-o stop.timesteps_total=... sets a later one")
    for trial in trials:
        _refuse_other_keys(trial, path / record.trial(trial.name).directory)
    display.on_phase(None, CHECKING)
    machine = machine_for(plan, trials, display, debug)
    with StopRequest(display.on_stop_request) as request, RunDirectory.open(path) as directory:
        if overrides:
            directory.write_resolved(resolved_yaml(plan))
        for trial in ended:
            directory.trial_status(trial, Status.TERMINATED)
        if not trials:
            return _concluded(Status.TERMINATED, directory, display)
        directory.restart(trials)
        session = RaySession(machine.cpus, machine.gpus, debug)
        source = FixedTrials(trials, machine.cpus, machine.gpus)
        return run_in_session(source, trials, directory, display, request, session)


def _unfinished_and_ended(path: Path, plan: Plan, record: RunRecord) -> tuple[list[Trial], list[Trial]]:
    """Return the trials that continue, and those that have ended without ``run.json`` saying so."""
    trials: list[Trial] = []
    ended: list[Trial] = []
    for trial in recorded_trials(path, plan, record):
        known = record.trial(trial.name)
        if not has_ended(trial, known, path / known.directory):
            trials.append(trial)
        elif known.status is not Status.TERMINATED:
            ended.append(trial)
    return trials, ended


def _refuse_other_keys(trial: Trial, directory: Path) -> None:
    """Raise ResumeError where a trial's newest checkpoint was trained with other keys."""
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
    """Return whether a run is a sweep, also one whose journal was lost."""
    return (path / JOURNAL_FILE).exists() or (path / SWEEP_FILE).exists()


def resume_sweep(path: Path, record: RunRecord, overrides: Sequence[str], display: Display, debug: bool) -> int:
    """Continue the sweep at ``path``; return the exit code, as the sweep itself does.

    ``overrides`` may change what CHANGEABLE_IN_SWEEPS names. Raises ResumeError, with nothing changed, where they
    change anything else, where the sweep has ended, or where its files are damaged, in use or of different runs.
    """
    heading = read_heading(path)
    _refuse_other_space(overrides, heading)
    plan = load_recorded_plan(path, record, overrides)
    sweep = same_sweep(plan, heading, path)
    refuse_own_modules(path, plan.everything, plan.modules.folders)
    require_searcher(sweep, Path(heading.folder))
    display.on_phase(None, CHECKING)
    machine = machine_for(plan, plan.everything, display, debug)
    with StopRequest(display.on_stop_request) as request, RunDirectory.open(path) as directory:
        past = restored(sweep, path)
        refuse_unresumable(past, directory)
        if overrides:
            directory.write_resolved(resolved_yaml(plan))
        with Journal(path, past.elapsed_s) as journal:
            search = Search(past.state, directory, journal, capacity(sweep, machine), heading.allow_failures)
            settle(search, past, directory)
            display.follow(search.standings)
            if search.is_complete:
                return _concluded(search.conclude(Status.TERMINATED), directory, display)
            session = RaySession(machine.cpus, machine.gpus, debug)
            return run_in_session(search, [], directory, display, request, session)


def same_sweep(plan: Plan, heading: Heading, path: Path) -> Sweep:
    """Return the sweep of a plan with its axes in their first order; raises ResumeError where it has other keys."""
    keys = plan.sweeps[0].space.keys if len(plan.sweeps) == 1 else ()
    if set(keys) != set(heading.axes):
        now = ", ".join(keys) or "nothing"
        message = f"{path} searches {', '.join(heading.axes)}, {path / RESOLVED_FILE} has {now}"
        raise ResumeError(
            message, "the space of a sweep cannot change; rlexp sweep starts a new sweep with another one"
        )
    changeable = {key for key in CHANGEABLE_IN_SWEEPS if as_typed(key) not in heading.axes}
    now_resolved = plain(masked(plan.experiments[0].resolved))
    others = list(differences(heading.experiment, now_resolved, changeable))
    if others:
        message = f"{path} cannot be resumed with other keys: {', '.join(others)}"
        raise ResumeError(message, what_can_change(changeable))
    return plan.sweeps[0].with_axes_in_order(heading.axes)


def refuse_unresumable(past: Restored, directory: RunDirectory) -> None:
    """Raise ResumeError where files are of different sweeps, no checkpoint of a trial is good, or nothing is left."""
    state = past.state
    _refuse_strange_trials(state, directory)
    if state.configurations > state.sweep.number_of_configurations:
        message = f"{state.configurations} configurations have begun, and search.num_samples asks for fewer"
        raise ResumeError(message, "-o search.num_samples=... may only be higher")
    for trial in state.unfinished():
        refuse_unloadable(newest_manifest(directory.trial_directory(trial)))
    is_left = state.waiting or state.unfinished() or not state.is_exhausted
    has_best = (directory.path / BEST_FILE).exists() or state.standings.best() is None
    if not is_left and directory.record.status in EXIT_CODES and has_best:
        hint = None if state.sweep.searcher == "grid" else "-o search.num_samples=... tries more"
        raise ResumeError(f"every trial of {directory.path} has ended", hint)
    budget_s = state.sweep.search.time_budget_s
    if is_left and budget_s is not None and past.elapsed_s >= budget_s:
        message = f"the time of {directory.path} has ended: search.time_budget_s is {budget_s:g}"
        raise ResumeError(message, "-o search.time_budget_s=... gives it more")


def _refuse_strange_trials(state: SearchState, directory: RunDirectory) -> None:
    """Raise ResumeError where the journal lacks a trial, or has begun one of which there is nothing else.

    ``run.json`` may be older than the journal and the directories of the trials.
    """
    begun = {standing.trial.name: standing.trial for standing in state.standings.trials()}
    waiting = {trial.name: trial for trial in state.waiting}
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


def settle(search: Search, past: Restored, directory: RunDirectory) -> None:
    """Do what was decided and not done when the sweep was killed, and queue unfinished trials before new ones."""
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
    """Copy the checkpoint that a trial is to continue from, unless that was done and only its start was not."""
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
    """Record the row in a trial's newest checkpoint, where the sweep was killed before it was recorded."""
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
        directory.trial_checkpoint(trial, newest, row["episode_reward_mean"])
    if standing.iterations >= iteration:
        return
    is_milestone = writes_checkpoint(search.milestones, standing.progress, row)
    search.on_result(trial, row, newest if is_milestone else None)


def _end_if_due(search: Search, trial: Trial, directory: RunDirectory) -> None:
    """End a trial whose last row, or a decision to stop it, is on the disk while its end is not."""
    row = last_row(directory.trial_directory(trial))
    if search.is_pruned(trial):
        search.on_end(trial, False, None)
    elif row is not None and reached(trial.experiment.stop, row) is not None:
        if row["training_iteration"] > search.standings.of(trial).iterations:
            search.on_result(trial, row, None)
        search.on_end(trial, True, None)


def _concluded(status: Status, directory: RunDirectory, display: Display) -> int:
    """End a run that was killed after all trials had ended."""
    display.start(directory.path, [])
    directory.finish(status)
    display.finish(directory.record)
    return EXIT_CODES[status]


def _refuse_other_space(overrides: Sequence[str], heading: Heading) -> None:
    """Raise ResumeError where an override would change the values of a searched key."""
    for text in overrides:
        key = text.partition("=")[0].strip().removeprefix("config.")
        for axis in heading.axes:
            if f"{axis}.".startswith(f"{key}.") or f"{key}.".startswith(f"{axis}."):
                message = f"-o {text}: {axis} cannot change when a sweep is resumed, because it is searched"
                raise ResumeError(message, "rlexp sweep starts a new sweep with another space")
