"""One ``rlexp run``: refuses what cannot run before anything exists, runs the rest, says how it ended."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rlexp.config.load import Plan, resolved_yaml
from rlexp.config.trial import Trial
from rlexp.machine import Machine, check_fits, this_machine
from rlexp.tuning.display import Display
from rlexp.tuning.find_checkpoint import starting_point
from rlexp.tuning.preflight import try_envs
from rlexp.tuning.ray_session import RaySession, refuse_full_disk, set_ray_environment
from rlexp.tuning.run_directory import RunDirectory
from rlexp.tuning.run_record import Status
from rlexp.tuning.stop_request import StopRequest
from rlexp.tuning.trial_feed import FixedTrials, TrialFeed
from rlexp.tuning.videos import require_video_extra

EXIT_CODES = {Status.TERMINATED: 0, Status.ERROR: 1}


@dataclass(frozen=True)
class RunOptions:
    """What the command line says about a run, apart from its experiments."""

    out: Path
    name: str | None
    overwrite: bool
    debug: bool
    command: Sequence[str]


def run_plan(plan: Plan, options: RunOptions, display: Display) -> int:
    """Run every trial of ``plan``; return the exit code.

    Raises ResourceError or UsageError, with nothing created, where a trial cannot run here.
    """
    machine = machine_for(plan, plan.trials, display, options.debug)
    texts = [source.read_text(encoding="utf-8") for source in plan.sources]
    stem = plan.sources[0].stem
    with (
        StopRequest(display.on_stop_request) as request,
        RunDirectory.create(options.out, stem, options.name, options.command, overwrite=options.overwrite) as directory,
    ):
        directory.write_experiments(texts, resolved_yaml(plan))
        directory.start(plan.trials, plan.modules)
        session = RaySession(machine.cpus, machine.gpus, options.debug)
        return run_feed(FixedTrials(plan.trials), plan.trials, directory, display, request, session)


def machine_for(plan: Plan, trials: Sequence[Trial], display: Display, debug: bool) -> Machine:
    """Return this machine; raises where it cannot hold one of ``trials``, or an env or starting point is not there."""
    set_ray_environment(debug)
    refuse_full_disk()
    machine = this_machine()
    check_fits(trials, machine)
    for trial in trials:
        starting_point(trial)
    if any(trial.experiment.config.monitor for trial in trials):
        require_video_extra()
    for report in try_envs(trials, plan.modules, machine, plan.env_places):
        for notice in report.notices:
            display.on_note(None, f"env {report.env}: {notice}")
    return machine


def run_feed(
    feed: TrialFeed,
    trials: Sequence[Trial],
    directory: RunDirectory,
    display: Display,
    request: StopRequest,
    session: RaySession,
) -> int:
    """Run what ``feed`` gives in a Ray of its own; return the exit code. ``trials`` are those known beforehand."""
    try:
        with display:
            display.start(directory.path, trials)
            from rlexp.tuning.runner import run_trials  # loads ray, for a second or two in which a signal interrupts

            with ExitStack() as stack:
                with request.held_back():
                    stack.enter_context(session)
                status = feed.conclude(run_trials(feed, directory, display, request))
            directory.finish(status)
            display.finish(directory.record)
    except KeyboardInterrupt:
        return _interrupted(directory, request)
    except Exception:
        directory.finish(Status.ERROR)
        raise
    return request.exit_code if request.requested else EXIT_CODES[status]


def _interrupted(directory: RunDirectory, request: StopRequest) -> int:
    """End a run that was interrupted at once: before any trial could save, or by a second Ctrl-C."""
    if directory.is_new and not any(trial.iterations for trial in directory.record.trials):
        directory.discard()
    else:
        directory.finish(Status.STOPPED)
    return request.exit_code
