"""The output of commands that only check: the trials of files, this machine, the nodes of a cluster."""

from __future__ import annotations

import json
import math
import platform
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from rlexp import __version__
from rlexp.cluster.probe import ClusterReport, NodeReport
from rlexp.cluster.room.machine import Machine
from rlexp.config.domains import Domain
from rlexp.config.keys.trial import Trial, required_cpus, required_gpus
from rlexp.config.load import Plan
from rlexp.config.points import Alternatives
from rlexp.config.sweep import Sweep
from rlexp.config.yaml.python_values import ExperimentText
from rlexp.errors import Problem, RlexpError
from rlexp.processes.family import Leftover
from rlexp.runs.directories import as_typed
from rlexp.runs.record import EXPERIMENT_FILE, installed_version
from rlexp.terminal.lines import aligned, print_notice_list, print_setting, visible
from rlexp.text import CUT, MOST_LINES, columns_of, exact, first_of, masked, middle_cut, wrapped

_HEADER: Final = ("trial", "agent", "env", "CPUs", "stop", "varied")
_SHORTEST_NAME: Final = 18
"""Shortest shown name; shorter ones are cut to their number."""
_NUMBER: Final = len("00000-")


@dataclass(frozen=True)
class EnvReport:
    """An env that was made, reset, stepped and closed."""

    env: str
    observation_space: str
    action_space: str
    observation_shape: tuple[int, ...]
    """Shape of what the agent sees."""
    notices: tuple[str, ...]
    action_masks: str | None = None
    """The number of masked actions and the place of the masks, as text; None: no actions are masked."""
    warnings: tuple[str, ...] = ()
    """Its problems with which training is possible."""
    errors: tuple[Problem, ...] = ()
    """Its problems that prevent training, if whole episodes were played."""


def print_notices(plan: Plan) -> None:
    """Print a plan's notices to stderr, a line each, and how many are left out."""
    print_notice_list(plan.notices, "; rlexp check --json prints all")


def print_settings(plan: Plan) -> None:
    """Print a plan's preset to stderr; nothing for files."""
    for source in plan.sources:
        if isinstance(source, ExperimentText):
            print_setting("settings:", source.name)


def print_preset(plan: Plan) -> None:
    """Print to stdout the file that a run without one stores."""
    for source in plan.sources:
        if isinstance(source, ExperimentText):
            print(f"\nthe run keeps this as {EXPERIMENT_FILE}:\n\n{source.text}", end="")


def print_how_to_change(run_directory: Path | None, plan: Plan) -> None:
    """Print to stdout how to change the settings of a run that was begun without a file."""
    if run_directory is not None and isinstance(plan.sources[0], ExperimentText):
        file = shlex.quote(str(as_typed(run_directory) / EXPERIMENT_FILE))
        print(f"to change settings: edit {file}, then: rlexp run {file}", flush=True)


def print_plan(plan: Plan) -> None:
    """Print what each sweep of a plan searches and how, then a line for each known trial, to stdout."""
    for sweep in plan.sweeps:
        for line in _sweep_lines(sweep):
            print(wrapped(line, columns_of(sys.stdout), "  "))
    if plan.trials:
        print(*_table(plan.trials, columns_of(sys.stdout)), sep="\n")


def print_checked(plan: Plan, envs: Sequence[EnvReport] | None, is_joined: bool = False) -> None:
    """Print the spaces of made envs (None: none were made), then what was checked and what was not.

    ``is_joined``: the resources belong to a cluster, not to this machine.
    """
    print_envs(envs or ())
    columns = columns_of(sys.stdout)
    checked, unchecked = _checked(plan, envs is not None, is_joined)
    print()
    print(wrapped(f"checked: {', '.join(checked)}", columns, "  "))
    if unchecked:
        print(wrapped(f"not checked: {', '.join(unchecked)}", columns, "  "))


def print_envs(envs: Sequence[EnvReport]) -> None:
    """Print the spaces of made envs, and their problems."""
    columns = columns_of(sys.stdout)
    for report in envs:
        shape = "x".join(map(str, report.observation_shape))
        observations = f"observations {visible(report.observation_space)}, shape after preprocessing {shape}"
        print()
        print(wrapped(f"env {report.env}: {observations}", columns, "  "))
        doubts = (f"warning: {visible(warning)}" for warning in report.warnings)
        masks = "" if report.action_masks is None else f"; action masks: {report.action_masks}"
        for line in (f"actions {visible(report.action_space)}{masks}", *doubts, *report.notices):
            print(wrapped(f"  {line}", columns, "    "))


def _checked(plan: Plan, made_envs: bool, is_joined: bool) -> tuple[list[str], list[str]]:
    """Return what is known to be right in a plan without errors, and what is not known."""
    checked = ["keys and values", f"CPUs, GPUs and memory of {'the cluster' if is_joined else 'this machine'}"]
    if made_envs:
        return [*checked, "each env was made and played for up to 3 s"], []
    if plan.modules.imports:
        return [*checked, "modules exist"], ["whether they register the envs (rlexp check --env makes them)"]
    return [*checked, "env ids, modules and classes exist"], ["whether the envs work (rlexp check --env makes them)"]


def plan_as_json(
    plan: Plan | None, error: RlexpError | None, envs: Sequence[EnvReport] | None, is_joined: bool = False
) -> dict[str, Any]:
    """Return the output of ``--json``: ``notices``, ``sweeps``, ``trials``, ``envs`` and ``problems``, each a list."""
    checked, unchecked = _checked(plan, envs is not None, is_joined) if plan and not error else ([], [])
    return {
        "envs": [asdict(report) for report in envs or ()],
        "checked": checked,
        "not_checked": unchecked,
        "sweeps": [_sweep_as_json(sweep) for sweep in plan.sweeps] if plan else [],
        "notices": [vars(notice) for notice in plan.notices] if plan else [],
        "trials": [_trial_as_json(trial) for trial in plan.trials] if plan else [],
        "problems": [vars(problem) for problem in error.problems] if error else [],
    }


def _sweep_lines(sweep: Sweep) -> Iterator[str]:
    search, number = sweep.search, sweep.number_of_configurations
    trials = f"{number * search.num_seeds} trials" if number * search.num_seeds > 1 else "1 trial"
    seeds = "" if search.num_seeds == 1 else f" with {search.num_seeds} seeds each"
    interval = round(sweep.stop_interval, 2) if search.time_attr == "time_total_s" else math.ceil(sweep.stop_interval)
    early = search.scheduler_options.describe(exact(interval))
    yield f"{sweep.name}: {number} configurations by {sweep.searcher}{seeds}, {trials}; {early}"
    yield f"ranked by {search.metric} ({search.mode}); {_size(sweep)}"
    if search.confirm.top:
        best = f"the best {search.confirm.top}" if search.confirm.top > 1 else "the best one"
        yield f"then {best} again, with {search.confirm.num_seeds} other seeds each"
    rows = [row for axis in sweep.space.axes for row in _axis_rows(axis.key, axis.domain)]
    yield from (f"  {line}" for line in aligned(rows))
    yield from _where_values_come_from(sweep)
    yield ""


def _size(sweep: Sweep) -> str:
    """Return how many points differ, in words."""
    number = None if sweep.space.is_continuous else sweep.space.number_of_distinct_points()
    if number is None:
        return "the space is continuous"
    return "1 distinct point" if number == 1 else f"{exact(number)} distinct points"


def _where_values_come_from(sweep: Sweep) -> Iterator[str]:
    """Yield why a sweep's trials are not listed, or why another command's trials differ."""
    if sweep.searcher == "optuna":
        yield "optuna chooses the values while the sweep runs"
    elif sweep.searcher == "random" and not sweep.is_seeded:
        yield "example values: config.seed is not set, so each command draws others"


def _axis_rows(key: str, domain: Domain) -> Iterator[tuple[str, str]]:
    """Yield the lines of a searched key; values that hold samplers have a line each."""
    ((sampler, values),) = domain.data().items()
    if not isinstance(domain, Alternatives):
        yield key, f"{sampler} {json.dumps(values)}"
        return
    for place, value in enumerate(values):
        word = "or" if place else sampler
        yield ("" if place else key), f"{word.ljust(len(sampler))} {json.dumps(value)}"


def _sweep_as_json(sweep: Sweep) -> dict[str, Any]:
    return {
        "experiment": sweep.name,
        "searcher": sweep.searcher,
        "configurations": sweep.number_of_configurations,
        "distinct_points": sweep.space.number_of_distinct_points(),
        "search": masked(sweep.search.model_dump(mode="json")),
        "space": {axis.key: axis.domain.data() for axis in sweep.space.axes},
        "seed": sweep.seed,
    }


def _trial_as_json(trial: Trial) -> dict[str, Any]:
    experiment = trial.experiment
    return {
        "index": trial.index,
        "name": trial.name,
        "experiment": experiment.name,
        "run": experiment.run,
        "env": experiment.env,
        "varied": trial.varied,
        "sample": trial.sample,
        "seed": experiment.config.seed,
        "stop": experiment.stop,
        "cpus": required_cpus(experiment),
        "gpus": required_gpus(experiment),
    }


def _table(trials: Sequence[Trial], columns: int | None) -> Iterator[str]:
    """Yield a line for each of the first trials; names are shortened if the lines would not fit into ``columns``."""
    rows = [_HEADER, *map(_table_row, trials[:MOST_LINES])]
    if columns is not None:
        others = sum(2 + max(map(len, cells)) for cells in list(zip(*rows, strict=True))[1:])
        rows = [_HEADER, *((_shortened(name, columns - others), *row) for name, *row in rows[1:])]
    yield from aligned(rows)
    yield from first_of([""] * len(trials), "; --json prints all")[MOST_LINES:]


def _shortened(name: str, room: int) -> str:
    """Return a trial's name in about ``room`` columns, with its number, which identifies it."""
    return middle_cut(name, room) if room >= _SHORTEST_NAME else f"{name[:_NUMBER]}{CUT}"


def _table_row(trial: Trial) -> tuple[str, ...]:
    experiment = trial.experiment
    varied = ", ".join(f"{key}={value}" for key, value in trial.varied.items())
    stop = ", ".join(f"{metric} {number}" for metric, number in experiment.stop.items())
    cpus = f"{required_cpus(experiment):g}"
    return trial.name, experiment.run, experiment.env, cpus, stop or "-", varied or "-"


_HEADINGS = ("node", "CPUs", "GPUs", "memory", "Python", "Ray", "torch", "rlexp", "sees OUT", "problems")
_VERSIONS = ("python", "ray", "torch", "rlexp")


def print_nodes(report: ClusterReport, as_json: bool) -> None:
    """Print a row for each node, this machine's first, and the notices."""
    if as_json:
        print(json.dumps({"address": report.address, "nodes": list(map(asdict, report.nodes))}))
        return
    notices = [*report.notices, *(notice for node in report.nodes for notice in node.notices)]
    lines = [f"cluster at {report.address}", *aligned([_HEADINGS, *map(_row, report.nodes)])]
    lines += (f"notice: {visible(notice)}" for notice in notices)
    sys.stdout.write("\n".join(lines) + "\n")


def _row(report: NodeReport) -> tuple[str, ...]:
    node, machine = report.node, report.node.machine
    return (
        f"{visible(node.name)}{' (here)' if node.is_driver else ''}",
        str(machine.cpus),
        str(machine.gpus),
        f"{machine.memory_total / 2**30:.1f} GiB" if machine.memory_total else "unknown",
        *(visible(report.versions.get(name, "-")) for name in _VERSIONS),
        "yes" if node.sees_out else "no",
        str(len(report.problems) or "none"),
    )


_PACKAGES = (
    *("torch", "ray", "gymnasium", "numpy", "pydantic", "PyYAML"),
    *("ale-py", "box2d", "mujoco", "tensorboard", "optuna"),
)
_SHARED_MEMORY = "/dev/shm"


def print_condition(
    machine: Machine,
    shortcuts: Mapping[str, str | None],
    leftovers: Sequence[Leftover],
    cleaned: bool,
    as_json: bool,
) -> None:
    """Print versions, CPUs, GPUs and memory, and remains of killed commands, which may have been ``cleaned``.

    ``shortcuts``: by name, why each is not active; None if it is.
    """
    facts = {
        "rlexp": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        **{package: installed_version(package) for package in _PACKAGES},
        "cpus": machine.cpus,
        "gpus": machine.gpus,
        "memory_total_bytes": machine.memory_total,
        "memory_available_bytes": machine.memory_available,
        "shared_memory_free_bytes": _free(_SHARED_MEMORY),
    }
    if as_json:
        folders = [
            {"folder": str(each.folder), "bytes": each.bytes, "processes": [process.pid for process in each.processes]}
            for each in leftovers
        ]
        listed = [{"name": name, "active": why is None, "reason": why} for name, why in shortcuts.items()]
        print(json.dumps({**facts, "shortcuts": listed, "leftovers": folders, "cleaned": cleaned}))
        return
    rows = [(name.removesuffix("_bytes").replace("_", " "), _shown(name, value)) for name, value in facts.items()]
    rows += ((f"shortcut: {name}", "active" if why is None else f"off: {why}") for name, why in shortcuts.items())
    sys.stdout.write("\n".join([*aligned(rows), *_leftover_lines(leftovers, cleaned)]) + "\n")


def _leftover_lines(leftovers: Sequence[Leftover], cleaned: bool) -> Iterator[str]:
    if not leftovers:
        return
    yield ""
    yield (
        "removed what killed commands left behind:"
        if cleaned
        else "killed commands left behind (rlexp doctor --clean removes it):"
    )
    for each in leftovers:
        count, folder = len(each.processes), visible(str(each.folder))
        yield f"  {folder}  {each.bytes / 2**20:.1f} MiB, {count} {'process' if count == 1 else 'processes'}"


def _free(path: str) -> int | None:
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return None


def _shown(name: str, value: str | int | None) -> str:
    if value is None:
        return "unknown" if name.endswith("_bytes") else "not installed"
    return f"{int(value) / 2**30:.1f} GiB" if name.endswith("_bytes") else str(value)
