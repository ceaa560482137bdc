"""Answers requests for training, of commands and of programs: reads the experiments, checks that they fit, and trains.

A program's request is answered in a process of its own. With ``--dry-run``, and by ``rlexp check``, nothing is trained.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from rlexp.cluster.room.fit import check_fits
from rlexp.cluster.room.machine import Cluster, check_requirements, this_machine
from rlexp.cluster.session import prepared
from rlexp.commands.options import remember_ones_own, trusted_code
from rlexp.commands.requests import USUAL, load_options, room_of
from rlexp.config.command_line import Adjust, Flag, LoadOptions, parse_overrides
from rlexp.config.keys.agents import find_agent
from rlexp.config.keys.experiment import Experiment
from rlexp.config.load import Plan, load_experiments, load_plan, only_sweep, refuse_sweeps
from rlexp.errors import ConfigError, Problem, RlexpError, UsageError
from rlexp.runs.directories import refuse_unwritable, require_restored
from rlexp.terminal import checking
from rlexp.terminal.lines import outlive_readers
from rlexp.tuning.request import Source, TrainingRequest

if TYPE_CHECKING:
    from rlexp.cluster.session import Joining
    from rlexp.config.presets import Kind, Preset
    from rlexp.config.yaml.python_values import ExperimentDict
    from rlexp.terminal.checking import EnvReport
    from rlexp.terminal.displays import QuietDisplay

_NAMED_BY: Final = {"run": "--algo", "algo": "--algo", "env": "--env"}
_REPLAY: Final = "buffer_size"
_REPLAY_OF_PROBE: Final = 5000


def train(request: TrainingRequest, dry_run: bool = False) -> None:
    """Train for a command, and end it with the exit code; with ``dry_run`` only print what would be trained."""
    if dry_run:
        check_plan(partial(plan_of, request), request.joining, as_json=request.as_json)
        return
    outlive_readers()
    raise typer.Exit(answer(replace(request, command=tuple(sys.argv))).exit_code)


@dataclass(frozen=True)
class Trained:
    """How a run or sweep ended, and where it is."""

    exit_code: int
    directory: Path | None
    """The directory of the run; None if it was interrupted before it had one."""


def answer(request: TrainingRequest) -> Trained:
    """Train as a command or a program asks; raises the errors that the command shows."""
    with prepared(request.joining, request.debug) as joining:
        request = replace(request, joining=joining)
        if request.kind == "resume":
            return _resume(request)
        return train_plan(plan_of(request), request)


def plan_of(request: TrainingRequest) -> Plan:
    """Return the plan of a request for a run or sweep, which then can make its directory.

    Raises ConfigError as ``load_plan`` does, with what is wrong with the directory; UsageError if only that is wrong.
    """
    try:
        plan = _read(request)
    except ConfigError as error:
        try:
            _refuse_directory(request)
        except UsageError as other:
            raise ConfigError((*error.problems, Problem("", other.message, other.hint))) from error
        raise
    if request.kind == "sweep":
        only_sweep(plan)
    else:
        refuse_sweeps(plan)
    _refuse_directory(request)
    return plan


def _refuse_directory(request: TrainingRequest) -> None:
    refuse_unwritable(request.out, request.name, overwrite=request.overwrite)


def _read(request: TrainingRequest) -> Plan:
    reading = reading_of(request)
    if request.source.env is not None:
        return preset_plan(request, reading)
    return load_plan(_sources(request.source), request.overrides, request.seed, reading)


def _sources(source: Source) -> Sequence[Path | ExperimentDict]:
    if source.data is None:
        return source.files
    from rlexp.config.yaml.python_values import ExperimentDict  # with NumPy, whose numbers a dict may have

    return [ExperimentDict(source.data)]


def reading_of(request: TrainingRequest) -> LoadOptions:
    """Return how the experiments of a request are read."""
    is_fitted = request.fit or request.source.env is not None
    options = load_options(request.imports, request.allow_unknown, is_fitted, request.joining, request.names)
    source = request.source
    folders = source.folders if source.data is not None or source.folders else None
    return replace(options, is_sweep=request.kind == "sweep", flags=request.flags, module_folders=folders)


def train_plan(plan: Plan, request: TrainingRequest) -> Trained:
    """Run a plan; it is a sweep if the request is one."""
    is_sweep = request.kind == "sweep"
    if not request.quiet:
        checking.print_settings(plan)
    checking.print_notices(plan)  # first: they say which keys and envs of the file have other names in the errors below
    check_requirements(plan)
    remember_ones_own(plan)
    if request.joining.address is None:
        # Again in rlexp.tuning, but only after what is slow to import.
        check_fits(plan.everything, Cluster.of(this_machine()))
    from rlexp.tuning.run import run_plan, run_sweep

    with _display(request) as display:
        code = (run_sweep if is_sweep else run_plan)(plan, request, display)
    if not (request.as_json or request.quiet):
        checking.print_how_to_change(display.run_directory, plan)
    return Trained(code, display.run_directory)


def _resume(request: TrainingRequest) -> Trained:
    from rlexp.tuning.resume import resume_run

    trusted = trusted_code(request.imports, request.allow_env, request.allow_class, request.allow_storage)
    changes = (*(f"{flag.key}={flag.text}" for flag in request.flags), *request.overrides)
    with _display(request) as display:
        return Trained(resume_run(replace(request, overrides=changes), display, trusted), request.path)


def _display(request: TrainingRequest) -> QuietDisplay:
    if request.draw is not None:
        from rlexp.terminal.live import notebook_display

        return notebook_display(sys.stdout, request.draw)
    from rlexp.terminal.displays import choose_display

    return choose_display(sys.stdout, sys.stderr, os.environ, json=request.as_json, quiet=request.quiet)


def preset_plan(request: TrainingRequest, reading: LoadOptions) -> Plan:
    """Return the plan of the preset for the agent and env of a request; its source is the file that the run keeps.

    ``reading`` fits it to the machine. Raises ConfigError as ``load_plan`` does; messages name the options.
    """
    agent, env = str(request.source.agent), str(request.source.env)
    _refuse_other_names(request.overrides)
    known = find_agent(agent) or agent
    named = (Flag(f"--algo {agent}", "run", json.dumps(known)), Flag(f"--env {env}", "env", json.dumps(env)))
    reading = replace(reading, flags=(*named, *reading.flags), adjust=_with_reason(reading.adjust))
    from rlexp.config.presets import layered, written_out  # it reads the examples

    preset = _preset(known, env, request, reading)
    if request.source.name is not None:
        preset = preset.named(request.source.name)
    source = layered(preset, request.overrides, reading)
    given = (request.overrides, request.seed)
    (parsed,) = load_experiments([source], *given, replace(reading, adjust=None))
    plan = load_plan([source], *given, reading)
    return replace(plan, sources=(written_out(preset, source, parsed, reading.adjust),))


def _with_reason(adjust: Adjust | None) -> Adjust | None:
    """Return ``adjust`` with messages that do not name ``--fit``, which nobody has typed."""
    if adjust is None:
        return None

    def adjusted(experiment: Experiment) -> tuple[Experiment, tuple[str, ...]]:
        fitted, changes = adjust(experiment)
        return fitted, tuple(change.replace(" (--fit)", ", to fit this machine") for change in changes)

    return adjusted


def _refuse_other_names(overrides: Sequence[str]) -> None:
    """Raise UsageError for an override of the agent or env: the settings are for those that were named."""
    for override in parse_overrides(overrides, None)[0]:
        key = override.path[0]
        if key in _NAMED_BY:
            message = f"{override.value.place} cannot be combined with {_NAMED_BY[key]}"
            raise UsageError(message, f"name it with {_NAMED_BY[key]}; a file can have a grid of them")


def _preset(agent: str, env: str, request: TrainingRequest, reading: LoadOptions) -> Preset:
    from rlexp.config.presets import example_for, general_for, given_env_config, kind_of

    if find_agent(agent) is None:
        return general_for(USUAL[0], USUAL[1], "vector")  # --algo is refused when it is laid over
    found = example_for(agent, env, has_gpu=this_machine().gpus > 0)
    if found is not None:
        return found
    overrides, _ = parse_overrides(request.overrides, None, reading.flags)
    kind = kind_of(env, given_env_config(overrides)) or _asked_kind(general_for(agent, env, "vector"), request, reading)
    return general_for(agent, env, kind)


def _asked_kind(preset: Preset, request: TrainingRequest, reading: LoadOptions) -> Kind:
    """Return the kind of an env whose id does not tell it: the env is made, in a process of its own."""
    from rlexp.config.presets import kind_of_spaces, layered

    if _REPLAY in preset.text:  # the settings for images have another size
        reading = replace(reading, flags=(*reading.flags, Flag("", f"config.{_REPLAY}", str(_REPLAY_OF_PROBE))))
    plan = load_plan([layered(preset, request.overrides, reading)], request.overrides, request.seed, reading)
    check_requirements(plan)
    from rlexp.tuning.preflight import try_envs

    report, *_ = try_envs(plan.everything[:1], plan.modules, this_machine(), plan.env_places, plan.copies_trials)
    return kind_of_spaces(report.observation_space, report.action_space, report.observation_shape)


def check_plan(load: Callable[[], Plan], joining: Joining, *, as_json: bool, make_envs: bool = False) -> None:
    """Print the trials of a plan and what of them was checked; raise the errors of the files that ``load`` reads."""
    plan, envs, is_joined = None, None, joining.address is not None
    error: RlexpError | None = None
    try:
        plan = load()
        _check_together(plan, joining)
        envs = _made_envs(plan) if make_envs else None
        problems = [problem for report in envs or () for problem in report.errors]
        error = ConfigError(problems) if problems else None
    except RlexpError as caught:
        error = caught
    if as_json:
        print(json.dumps(checking.plan_as_json(plan, error, envs, is_joined)))
    elif plan:
        checking.print_settings(plan)
        checking.print_notices(plan)
        checking.print_plan(plan)
        if error:
            checking.print_envs(envs or ())
        else:
            checking.print_checked(plan, envs, is_joined)
            checking.print_preset(plan)
    if error:
        raise error


def _check_together(plan: Plan, joining: Joining) -> None:
    """Raise what is missing here, and what does not fit, in one error."""
    problems: list[Problem] = []
    first: RlexpError | None = None
    checks = (
        check_requirements,
        lambda plan: check_fits(plan.everything, room_of(joining)),
        _require_samplers,
        lambda plan: require_restored(plan.everything),
        _require_video,
    )
    for check_one in checks:
        try:
            check_one(plan)
        except RlexpError as error:
            first = first or error
            problems += error.problems
    if first is not None:
        raise first if problems == list(first.problems) else ConfigError(problems)


def _require_video(plan: Plan) -> None:
    """Raise UsageError if videos of episodes are wanted, and cannot be written."""
    if any(trial.experiment.config.monitor for trial in plan.everything):
        from rlexp.runs.trial_files import require_video_extra

        require_video_extra()


def _require_samplers(plan: Plan) -> None:
    """Raise UsageError or ConfigError if a sweep cannot have its sampler of Optuna."""
    if plan.sweeps:
        from rlexp.search.optuna import require_sampler

        for sweep in plan.sweeps:
            require_sampler(sweep)


def _made_envs(plan: Plan) -> list[EnvReport]:
    from rlexp.tuning.preflight import try_envs

    return try_envs(
        plan.everything, plan.modules, this_machine(), plan.env_places, plan.copies_trials, plays_episodes=True
    )
