"""``rlexp resume``: goes on with a run that was stopped or killed, or whose ``stop`` is a later one now."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlexp.agents.restored_state import refuse_unloadable
from rlexp.checkpoint import newest_manifest
from rlexp.config.keys.trial import Trial
from rlexp.config.load import Plan, resolved_yaml
from rlexp.display import Display
from rlexp.errors import ResumeError
from rlexp.json_file import to_json
from rlexp.runs.changed_keys import CHANGEABLE, differences, refuse_changes_of, what_can_change
from rlexp.runs.last_row import last_row
from rlexp.runs.run_directory import RESOLVED_FILE, RunDirectory, load_recorded_plan
from rlexp.runs.run_record import RUN_FILE, RunRecord, Status, read_run_record
from rlexp.runs.secrets import masked
from rlexp.runs.trust import refuse_own_modules, refuse_untrusted
from rlexp.search.trial_source import FixedTrials
from rlexp.sessions.ray_session import RaySession
from rlexp.tuning.run import CHECKING, machine_for, run_feed
from rlexp.tuning.stop_condition import reached
from rlexp.tuning.stop_request import StopRequest
from rlexp.tuning.sweep_resume import is_sweep, resume_sweep


def resume_run(path: Path, overrides: Sequence[str], display: Display, debug: bool) -> int:
    """Go on with the trials of the run or sweep at ``path`` that have not reached their stop; return the exit code.

    ``overrides`` (``stop.timesteps_total=1e6``) may change what CHANGEABLE names. Each trial continues from its
    newest good checkpoint. Raises ResumeError, with nothing changed, where ``path`` is no run of ours,
    damaged or in use, or where something else would be another one than in the checkpoints.
    """
    record = read_run_record(path)
    refuse_untrusted(path, record)
    if is_sweep(path):
        return resume_sweep(path, record, overrides, display, debug)
    refuse_changes_of(overrides, {"seed"}.union(*(trial.varied for trial in record.trials)), path)
    plan = load_recorded_plan(path, record, overrides)
    if plan.sweeps:  # without any of the files by which it would have been known
        return resume_sweep(path, record, overrides, display, debug)
    refuse_own_modules(path, plan.trials, plan.modules.folders)
    trials = [
        trial
        for trial in recorded_trials(path, plan, record)
        if record.trial(trial.name).status is not Status.TERMINATED
        or not _has_reached_stop(trial, path / record.trial(trial.name).directory)
    ]
    if not trials:
        raise ResumeError(f"every trial of {path} has reached its stop", "-o stop.timesteps_total=... sets a later one")
    for trial in trials:
        _refuse_other_keys(trial, path / record.trial(trial.name).directory)
    display.on_phase(None, CHECKING)
    machine = machine_for(plan, trials, display, debug)
    with StopRequest(display.on_stop_request) as request, RunDirectory.open(path) as directory:
        if overrides:
            directory.write_resolved(resolved_yaml(plan))
        directory.restart(trials)
        session = RaySession(machine.cpus, machine.gpus, debug)
        return run_feed(FixedTrials(trials), trials, directory, display, request, session)


def recorded_trials(path: Path, plan: Plan, record: RunRecord) -> Iterator[Trial]:
    """Yield the trials of ``plan``, read from ``resolved.yaml``, by the names that they had, in the order of then.

    The file has its keys in another order than the one it was made of, so a grid's trials come in another order
    and with other names; what is varied, and the seed, tell which is which. Raises ResumeError for an unknown one.
    """
    names: dict[str, deque[str]] = defaultdict(deque)
    for known in record.trials:
        names[_identity(known.varied, known.seed)].append(known.name)
    found: list[Trial] = []
    for trial in plan.trials:
        called = names[_identity(masked(trial.varied), trial.experiment.config.seed)]
        if not called:
            raise ResumeError(
                f"{path / RESOLVED_FILE} makes a trial {trial.name} that {path / RUN_FILE} does not know",
                "do not change the values of its grid or its seed",
            )
        found.append(replace(trial, name=called.popleft()))
    order = {known.name: index for index, known in enumerate(record.trials)}
    for trial in sorted(found, key=lambda trial: order[trial.name]):
        yield replace(trial, index=order[trial.name])


def _identity(varied: Mapping[str, Any], seed: int | None) -> str:
    return to_json([sorted(varied.items()), seed])


def _has_reached_stop(trial: Trial, directory: Path) -> bool:
    """Return whether the last row of a trial that ended is beyond its ``stop``, which may be another one by now."""
    row = last_row(directory)
    return row is None or reached(trial.experiment.stop, row) is not None


def _refuse_other_keys(trial: Trial, directory: Path) -> None:
    """Raise ResumeError where a trial's newest checkpoint was trained with keys that are others now."""
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
