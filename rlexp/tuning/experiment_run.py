"""One ``rlexp run``: refuses what cannot run before anything exists, then runs it and says how it ended."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rlexp.config.load import Plan, resolved_yaml
from rlexp.config.trial import Trial
from rlexp.envs import EnvConfig, check_spaces, make_env
from rlexp.machine import Machine, check_fits, this_machine
from rlexp.tuning.display import Display
from rlexp.tuning.ray_session import RaySession, set_ray_environment
from rlexp.tuning.run_directory import RunDirectory
from rlexp.tuning.run_record import Status
from rlexp.tuning.stop_request import StopRequest

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
    machine = this_machine()
    check_fits(plan.trials, machine)
    check_envs(plan.trials)
    stem = plan.sources[0].stem
    with (
        StopRequest(display.on_stop_request) as request,
        RunDirectory.create(options.out, stem, options.name, options.command, overwrite=options.overwrite) as directory,
    ):
        try:
            status = _run(plan, directory, display, request, machine, options.debug)
        except KeyboardInterrupt:
            return _interrupted(directory, request)
        except Exception:
            directory.finish(Status.ERROR)
            raise
    return request.exit_code if request.requested else EXIT_CODES[status]


def check_envs(trials: Sequence[Trial]) -> None:
    """Raise UsageError where an env cannot be made, or has spaces that its agent cannot play."""
    folder = str(Path.cwd())
    if folder not in sys.path:  # a console script does not look for modules where it is started
        sys.path.insert(0, folder)
    seen: list[EnvConfig] = []
    for trial in trials:
        config = trial.experiment.config
        env_config = EnvConfig(trial.experiment.env, config.env_config, config.horizon)
        if env_config not in seen:
            seen.append(env_config)
            env = make_env(env_config)
            check_spaces(env_config.env, env.observation_space, env.action_space)
            env.close()


def _run(
    plan: Plan, directory: RunDirectory, display: Display, request: StopRequest, machine: Machine, debug: bool
) -> Status:
    directory.write_experiments([source.read_text(encoding="utf-8") for source in plan.sources], resolved_yaml(plan))
    directory.start(plan.trials)
    set_ray_environment()
    with display:
        display.start(directory.path, plan.trials)
        with RaySession(machine.cpus, machine.gpus, debug):
            from rlexp.tuning.runner import run_trials

            status = run_trials(plan.trials, directory, display, request)
        directory.finish(status)
        display.finish(directory.record)
    return status


def _interrupted(directory: RunDirectory, request: StopRequest) -> int:
    """End a run that was interrupted at once: before any trial could save, or by a second Ctrl-C."""
    if any(trial.iterations for trial in directory.record.trials):
        directory.finish(Status.STOPPED)
    else:
        directory.discard()
    return request.exit_code
