"""One ``rlexp run``: refuses what cannot run before anything exists, runs the rest, says how it ended."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rlexp.agents.measured_replay import check_replay_fits
from rlexp.config.load import Plan, resolved_yaml
from rlexp.config.trial import Trial
from rlexp.config.user_modules import UserModules
from rlexp.envs import (
    EnvConfig,
    check_first_steps,
    check_spaces,
    env_config_of,
    make_env,
    make_filmed_env,
    observation_bytes,
)
from rlexp.machine import Machine, check_fits, this_machine
from rlexp.tuning.display import Display
from rlexp.tuning.find_checkpoint import starting_point
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
    machine = machine_for(plan.trials, plan.modules, options.debug)
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


def check_envs(trials: Sequence[Trial], modules: UserModules, machine: Machine) -> None:
    """Raise where an env cannot be made, its agent cannot play it or memory cannot hold its replay.

    That is UsageError, or ResourceError for the memory.
    """
    sizes: list[tuple[EnvConfig, int]] = []
    for trial in trials:
        env_config = env_config_of(trial.experiment.env, trial.experiment.config, modules)
        size = next((size for seen, size in sizes if seen == env_config), None)
        if size is None:
            size = _observation_bytes_of(env_config)
            sizes.append((env_config, size))
            if trial.experiment.config.monitor:
                make_filmed_env(env_config).close()
        check_replay_fits(trial.experiment, env_config, size, machine)


def _observation_bytes_of(env_config: EnvConfig) -> int:
    """Return the bytes of an observation; raises UsageError where agents cannot play the env."""
    env = make_env(env_config)
    try:
        check_spaces(env_config.env, env.observation_space, env.action_space)
        check_first_steps(env_config.env, env)
        return observation_bytes(env.observation_space)
    finally:
        env.close()


def machine_for(trials: Sequence[Trial], modules: UserModules, debug: bool) -> Machine:
    """Return this machine; raises where it cannot hold a trial, or the trial's env or starting point is not there."""
    set_ray_environment(debug)  # before an env is made: its module may import ray
    refuse_full_disk()
    machine = this_machine()
    check_fits(trials, machine)
    check_envs(trials, modules, machine)
    for trial in trials:
        starting_point(trial)
    if any(trial.experiment.config.monitor for trial in trials):
        require_video_extra()
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
