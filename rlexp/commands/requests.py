"""What the options of a command ask for: where experiments come from, values of their keys, and how they are read.

``commands/training.py`` and the commands beside it declare the options; this is imported once they are to be answered.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

from rlexp.cluster.room.machine import Cluster, this_machine
from rlexp.cluster.session import OWN, Joining, choose
from rlexp.commands.options import chosen_board, refuse_board, take_master
from rlexp.config.command_line import Adjust, Flag, LoadOptions, parse_names
from rlexp.config.examples import examples
from rlexp.config.keys.agents import find_agent
from rlexp.config.keys.env_ids import current_env, is_known
from rlexp.config.keys.user_code import env_classes_in
from rlexp.config.reference.hints import metric_meant, sampler_meant
from rlexp.errors import UsageError
from rlexp.text import seconds_of
from rlexp.tuning.request import Kind, Source, TrainingRequest

USUAL: Final = ("PPO", "CartPole-v1")
"""An agent and an env, for examples in messages."""
_JSON_EXAMPLES: Final = {"--config": '{"lr": 0.001}', "--stop": '{"timesteps_total": 10000}'}
_ENV_VERSION: Final = re.compile(r"[\w./-]+-v\d+")
_ENV_CLASS: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", re.ASCII)
_BESIDE_A_FILE: Final = {
    "--algo": "rlexp run FILE -o run=APEX overrides a value in the file",
    "--env": "rlexp run FILE -o env=CartPole-v1 overrides a value in the file",
}


def training_request(
    kind: Kind, options: Mapping[str, Any], source: Source | None = None, flags: Sequence[Flag] = ()
) -> TrainingRequest:
    """Return the request of a command's parameters ``options``, with its Ray and its board.

    ``flags`` are values of keys beside ``--track``. Raises UsageError for options that cannot be combined, and for a
    board whose address, password or keys cannot be used.
    """
    flags = (*flags, *track_flags(options["track"]))
    joining = choose(options["address"], os.environ, options["wait"], options["working_dir"])
    board = None
    if kind == "sweep":
        refuse_board(options["board"], "a sweep has many trials, and a board's task is one")
    else:
        in_cluster = joining.address is not None
        board = chosen_board(options["board"], options["insecure"], options["queue"], in_cluster)
        take_master(options["keys"], board is not None)
    given = TrainingRequest.of(kind, options, source=source or Source(), flags=flags)
    return replace(given, joining=joining, board=board)


def source_of(
    files: Sequence[Path] | None, algo: str | None, env: str | None, command: str, name: str | None = None
) -> Source:
    """Return the files, or the agent and the env without one; raises UsageError if neither or both are given."""
    if files:
        refuse_names(files, f"{command} --algo {{agent}} --env {{env}}", algo, env)
        for option, value in {"--algo": algo, "--env": env}.items():
            if value is not None:
                raise UsageError(f"{option} cannot be combined with a file", _BESIDE_A_FILE[option])
        return Source(tuple(files))
    if algo is None or env is None:
        wanted = f"rlexp {command} --algo {algo or USUAL[0]} --env {shlex.quote(env or USUAL[1])}"
        raise UsageError(f"{command} needs a file, or --algo and --env", f"rlexp {command} FILE, or {wanted}")
    return Source(agent=algo, env=env, name=name)


def refuse_names(files: Sequence[Path], without: str, algo: str | None = None, env: str | None = None) -> None:
    """Raise UsageError for the name of an agent, env or example, or a Python file, in place of an experiment file.

    ``without`` is the command without a file that the error names: ``run --algo {agent} --env {env}``. ``algo`` and
    ``env`` are what the options name already.
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
    named_agent, named_env = next(iter(agents), algo or USUAL[0]), next(iter(envs), env or USUAL[1])
    remedy = without.format(agent=named_agent, env=shlex.quote(named_env))
    raise UsageError(f"{what}, not an experiment file", f"rlexp {remedy}")


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


def track_flags(chosen: Sequence[str] | None) -> tuple[Flag, ...]:
    """Return ``--track`` as a value of a key; raises UsageError if ``none`` is beside others."""
    if not chosen:
        return ()
    names = [name for name in dict.fromkeys(map(str, chosen)) if name != "none"]
    if names and "none" in chosen:
        raise UsageError("--track none cannot be combined with other trackers", "leave one of them out")
    shown = " ".join(f"--track {name}" for name in names) or "--track none"
    return (Flag(shown, "track.to", f"[{', '.join(names)}]"),)


def seed_flags(number: int | None) -> tuple[Flag, ...]:
    """Return ``--seeds`` as a value of a key."""
    return () if number is None else (Flag(f"--seeds {number}", "num_seeds", str(number)),)


def search_flags(given: dict[str, Any], searched: Sequence[str]) -> tuple[Flag, ...]:
    """Return the values of the options as values of keys, which the file's reader lays over the file."""
    section = (
        Flag(f"{_SHOWN.get(key, '--' + key.replace('_', '-'))} {value}", f"search.{key}", str(value))
        for key, value in given.items()
        if value is not None
    )
    for text in searched:
        if "=" not in text:
            raise UsageError(f"--sweep {text} names no values", f"write --sweep lr=1e-3,1e-4 or {_SAMPLED}")
        _refuse_other_forms(text)
    values = ((text, *text.partition("=")[::2]) for text in searched)
    return (*section, *(Flag(f"--sweep {text}", key, _searched(value)) for text, key, value in values))


_SHOWN: Final = {"num_seeds": "--seeds", "time_budget_s": "--time-budget"}
"""Options that are not called like their keys."""
_SAMPLED: Final = "--sweep 'lr={loguniform: [1e-5, 1e-2]}'"
_RANGE: Final = re.compile(r"[^.,{}]+(\.\d+)?\.\.[^,{}]+")
_CALLED: Final = re.compile(r"(?P<key>[^=]+)=\s*(?P<sampler>[A-Za-z_.]+)\s*[:(\[](?P<values>.*?)[)\]]*")


def _refuse_other_forms(text: str) -> None:
    """Raise UsageError for ``loguniform``, ``1e-5..1e-2``, ``loguniform:1e-5,1e-2`` and ``loguniform(1e-5, 1e-2)``."""
    key, _, value = text.partition("=")
    if _RANGE.fullmatch(value) or (sampler_meant(value) and value.isalpha()):
        low, _, high = value.partition("..")
        sampler, bounds = ("loguniform", f"{low}, {high}") if high else (sampler_meant(value), "LOW, HIGH")
        problem = "a range is written as a mapping" if high else "the sampler needs its bounds"
        raise UsageError(f"--sweep {text}: {problem}", f"write --sweep '{key}={{{sampler}: [{bounds}]}}'")
    found = _CALLED.fullmatch(text)
    sampler = sampler_meant(found["sampler"].rpartition(".")[2]) if found is not None else None
    if found is None or sampler is None:
        return
    values = ", ".join(value.strip() for value in found["values"].strip("[]() ").split(","))
    raise UsageError(
        f"--sweep {text}: {sampler} is written as a mapping",
        f"write --sweep '{found['key']}={{{sampler}: [{values}]}}'",
    )


def _searched(text: str) -> str:
    """Return a list of values as a grid; a sampler, ``{loguniform: [1e-4, 1e-2]}``, stays as it is."""
    return text if text.lstrip().startswith("{") else f"{{grid_search: [{text}]}}"


def load_options(
    imports: Sequence[str] | None,
    allow_unknown: bool,
    fit: bool = False,
    joining: Joining = OWN,
    names: Sequence[str] | None = None,
) -> LoadOptions:
    """Return how to read files; ``fit`` scales their experiments to this machine, or the cluster that is joined.

    ``names`` are the texts of ``--map``.
    """
    adjust = _fitting(room_of(joining)) if fit else None
    classes = parse_names(names or ())
    return LoadOptions(tuple(imports or ()), names=classes, allow_unknown=allow_unknown, adjust=adjust)


def _fitting(cluster: Cluster) -> Adjust:
    from rlexp.cluster.room.fit import fitted  # with the packing of clusters, for --fit only

    return partial(fitted, cluster=cluster)


def room_of(joining: Joining) -> Cluster:
    """Return this machine, or the nodes of the cluster that is joined; raises ResourceError if there is no cluster."""
    return Cluster.of(this_machine()) if joining.address is None else _nodes_at(joining.address)


@cache
def _nodes_at(address: str) -> Cluster:
    """Return the nodes of a cluster at the first call, which takes seconds; later calls return the same."""
    from rlexp.cluster.probe import probe_cluster

    return probe_cluster(address).cluster
