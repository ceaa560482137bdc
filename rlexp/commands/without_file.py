"""Training without a file: the options that name an agent and an env, and the plan that their preset makes."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from rlexp.cluster.room.machine import check_requirements, this_machine
from rlexp.commands.command import Panel
from rlexp.commands.completion import complete_agent, complete_env
from rlexp.config.command_line import Adjust, Flag, LoadOptions, parse_overrides
from rlexp.config.examples import examples
from rlexp.config.keys.agents import find_agent
from rlexp.config.keys.env_ids import current_env, is_known
from rlexp.config.keys.experiment import Experiment
from rlexp.config.keys.user_code import env_classes_in
from rlexp.config.load import load_experiments, load_plan
from rlexp.config.plan import Plan
from rlexp.config.reference.hints import metric_meant
from rlexp.errors import UsageError
from rlexp.text import seconds_of
from rlexp.tuning.request import Source, TrainingRequest

if TYPE_CHECKING:
    from rlexp.config.presets import Kind, Preset

Algo = Annotated[
    str | None,
    typer.Option(
        "--algo",
        "--run",
        metavar="AGENT",
        help="Train this agent without a file; needs --env.",
        autocompletion=complete_agent,
        rich_help_panel=Panel.TRAINED,
    ),
]
Env = Annotated[
    str | None,
    typer.Option(
        "--env",
        metavar="ENV",
        help="The env: a Gymnasium id, or module:Class; with settings that fit it.",
        autocompletion=complete_env,
        rich_help_panel=Panel.TRAINED,
    ),
]
Stop = Annotated[
    list[str] | None,
    typer.Option(
        "--stop",
        metavar="METRIC=VALUE",
        help="When trials stop: reward=475, steps=1e6, time=30m, any metric; repeatable.",
        rich_help_panel=Panel.TRAINED,
    ),
]
LearningRate = Annotated[
    str | None,
    typer.Option("--lr", metavar="RATE", help="Learning rate: -o config.lr=RATE.", rich_help_panel=Panel.TRAINED),
]

_USUAL: Final = ("PPO", "CartPole-v1")
_JSON_EXAMPLES: Final = {"--config": '{"lr": 0.001}', "--stop": '{"timesteps_total": 10000}'}
_NAMED_BY: Final = {"run": "--algo", "algo": "--algo", "env": "--env"}
_REPLAY: Final = "buffer_size"
_REPLAY_OF_PROBE: Final = 5000
_ENV_VERSION: Final = re.compile(r"[\w./-]+-v\d+")
_ENV_CLASS: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", re.ASCII)
_BESIDE_A_FILE: Final = {
    "--algo": "rlexp run FILE -o run=APEX overrides a value in the file",
    "--env": "rlexp run FILE -o env=CartPole-v1 overrides a value in the file",
}


def source_of(
    files: Sequence[Path] | None, algo: str | None, env: str | None, command: str, name: str | None = None
) -> Source:
    """Return the files, or the agent and the env without one; raises UsageError if neither or both are given."""
    files = files or ()
    for option, value in {"--algo": algo, "--env": env}.items():
        if files and value is not None:
            raise UsageError(f"{option} cannot be combined with a file", _BESIDE_A_FILE[option])
    if files:
        refuse_names(files, f"{command} --algo {{agent}} --env {{env}}")
        return Source(tuple(files))
    if algo is None or env is None:
        wanted = f"rlexp {command} --algo {algo or _USUAL[0]} --env {shlex.quote(env or _USUAL[1])}"
        raise UsageError(f"{command} needs a file, or --algo and --env", f"rlexp {command} FILE, or {wanted}")
    return Source(agent=algo, env=env, name=name)


def refuse_names(files: Sequence[Path], without: str) -> None:
    """Raise UsageError for the name of an agent, env or example, or a Python file, in place of an experiment file.

    ``without`` is the command without a file that the error names: ``run --algo {agent} --env {env}``.
    """
    missing = [str(file) for file in files if not os.path.exists(file)]
    named = next((each.name for each in (examples() if missing else ()) if each.name in missing), None)
    if named is not None:
        raise UsageError(f"{named} is an example, not a file here", f"rlexp examples {named} copies it to this folder")
    agents, envs = list(filter(None, map(_agent, missing))), list(filter(_is_env, missing))
    programs = [file for file in files if file.suffix == ".py" and os.path.isfile(file)]
    if not (agents or envs or programs):
        return
    what = f"{agents[0]} is an agent" if agents else ""
    what = f"{envs[0]} is an environment" if envs else what
    if programs and not envs:
        envs = [next(iter(env_classes_in(programs[0])), f"{programs[0].stem}:Class")]
        what = f"{programs[0]} is a Python file"
    agent, env = agents[0] if agents else _USUAL[0], shlex.quote(envs[0] if envs else _USUAL[1])
    raise UsageError(f"{what}, not an experiment file", f"rlexp {without.format(agent=agent, env=env)}")


def _agent(word: str) -> str | None:
    return find_agent(word) if word.isidentifier() else None


def _is_env(word: str) -> bool:
    names = (_ENV_VERSION, _ENV_CLASS)
    return is_known(word) or current_env(word) is not None or any(name.fullmatch(word) for name in names)


def experiment_flags(stop: Sequence[str] | None, lr: str | None = None, config: str | None = None) -> tuple[Flag, ...]:
    """Return the options as values of keys; raises UsageError for a text that cannot be read."""
    flags = [flag for text in stop or () for flag in _stop_flags(text)]
    flags += () if lr is None else (Flag(f"--lr {lr}", "config.lr", lr),)
    given = {} if config is None else _json("--config", config)
    return (*flags, *(Flag("--config", f"config.{key}", json.dumps(value)) for key, value in given.items()))


def checkpoint_flags(freq: int | None, at_end: bool) -> tuple[Flag, ...]:
    """Return the options of RLlib for checkpoints as values of keys."""
    given = () if freq is None else (Flag(f"--checkpoint-freq {freq}", "checkpoint_freq", str(freq)),)
    return (*given, *([Flag("--checkpoint-at-end", "checkpoint_at_end", "true")] if at_end else []))


def _stop_flags(text: str) -> tuple[Flag, ...]:
    """Return a limit, ``reward=475``, which others stay beside; or RLlib's JSON, which replaces them all."""
    metric, equals, value = text.partition("=")
    if text.isidentifier() or text.startswith("="):
        what = "has no value" if text.isidentifier() else "names no metric"
        raise UsageError(f"--stop {text} {what}", "for example --stop reward=475, or --stop steps=1e6")
    if not equals or text.lstrip().startswith("{"):
        return (Flag("--stop", "stop", json.dumps(_json("--stop", text))),)
    key = metric.strip().removeprefix("stop.")
    key = metric_meant(key) or key
    if key.endswith("_s") and value[-1:].isalpha():
        value = f"{seconds_of(value, '--stop')!r}"
    return (Flag(f"--stop {text}", f"stop.{key}", value),)


def _json(option: str, text: str) -> dict[str, Any]:
    hint = f"for example {option} '{_JSON_EXAMPLES[option]}'"
    hint = f"for example --stop reward=475, or --stop '{_JSON_EXAMPLES[option]}'" if option == "--stop" else hint
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{option} is not JSON: {error}", hint) from error
    if not isinstance(data, dict):
        raise UsageError(f"{option} must be a JSON object", hint)
    return data


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
        return general_for(_USUAL[0], _USUAL[1], "vector")  # --algo is refused when it is laid over
    found = example_for(agent, env)
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
