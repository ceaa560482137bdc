"""Plan: the trials of some files, each with its seed and name, and the experiments with all keys."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlexp.config.keys.common import CommonConfig
from rlexp.config.keys.experiment import RUNNABLE, Experiment
from rlexp.config.keys.trial import Trial, sample_seed, trial_name
from rlexp.config.keys.user_modules import NO_MODULES, UserModules
from rlexp.config.parsed_experiment import Draft
from rlexp.config.space.grid import SEARCH, corner_indices, line_of
from rlexp.config.variants.axis_paths import at, data_of, value_on, with_axis, without_section
from rlexp.config.variants.sweep import Sweep
from rlexp.config.yaml.nodes import Finding, Node
from rlexp.config.yaml.writer import to_yaml
from rlexp.errors import ConfigError, Notice, Problem, UsageError

_SWEEP_HINT = "use rlexp sweep FILE; it writes a best.yaml for rlexp run"


@dataclass(frozen=True)
class PlannedExperiment:
    """One entry of a file: its name, agent and every key with its value, grids in place."""

    name: str
    run: str
    resolved: Mapping[str, Any]
    """Every key with its default filled in, ``grid_search`` where it stood, the seed of sample 0 recorded."""


@dataclass(frozen=True)
class Plan:
    """What a command will run, and what its user should know before."""

    experiments: tuple[PlannedExperiment, ...]
    trials: tuple[Trial, ...]
    """The trials of all experiments, in the order of the files; of sweeps, those that are known beforehand."""
    notices: tuple[Notice, ...]
    sources: tuple[Path, ...]
    """The files read."""
    modules: UserModules = NO_MODULES
    """The user's own modules, which every process that makes an environment may import."""
    sweeps: tuple[Sweep, ...] = ()
    """The experiments with a ``search`` section."""
    env_places: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """Where the files name an env, by the experiment's name and the env's."""

    @property
    def everything(self) -> tuple[Trial, ...]:
        """The trials, and for a sweep that decides on its way, one at each end of its space."""
        ends = (
            Trial(index, sweep.name, corner, {}, 0)
            for sweep in self.sweeps
            if sweep.planned_points() is None
            for index, corner in enumerate(sweep.corners)
        )
        return (*self.trials, *ends)


def planned(
    drafts: Sequence[Draft], sources: tuple[Path, ...], modules: UserModules, fresh_seed: Callable[[], int]
) -> Plan:
    """Give every trial its seed and name; an experiment without a seed gets one from ``fresh_seed``."""
    experiments: list[PlannedExperiment] = []
    trials: list[Trial] = []
    sweeps: list[Sweep] = []
    for draft in drafts:
        seeded = _seeded(draft, fresh_seed)
        experiments.append(PlannedExperiment(draft.name, draft.corners[0].run, _resolved(draft, seeded)))
        if seeded[0].is_sweep:
            sweeps.append(_sweep(draft, seeded))
            points = sweeps[-1].planned_points() or ()
            trials.extend(trial for number, point in enumerate(points) for trial in sweeps[-1].trials(number, point))
        else:
            trials.extend(_trials(draft, seeded, len(trials)))
    notices = tuple(finding.notice() for draft in drafts for finding in dict.fromkeys(_notices(draft)))
    places = dict(place for draft in drafts for place in _env_places(draft))
    return Plan(tuple(experiments), tuple(trials), notices, sources, modules, tuple(sweeps), places)


def refuse_untrainable(plan: Plan) -> None:
    """Raise UsageError where the plan has an agent whose files are understood, but that does not exist yet."""
    runs = {experiment.run for experiment in plan.experiments} - set(RUNNABLE)
    if runs:
        message = f"{' and '.join(sorted(runs))} cannot be trained yet, only {' and '.join(RUNNABLE)}"
        raise UsageError(message, "rlexp check and rlexp convert can read such files")


def refuse_sweeps(plan: Plan) -> None:
    """Raise ConfigError where an experiment has a ``search`` section, so that it is not a single experiment."""
    message = "has a search section, which rlexp run does not support"
    problems = [Problem(str(sweep.place), f"{sweep.name} {message}", _SWEEP_HINT) for sweep in plan.sweeps]
    if problems:
        raise ConfigError(problems)


def the_sweep(plan: Plan) -> Sweep:
    """Return the only sweep of a plan; raises UsageError where a file has several experiments."""
    if len(plan.sweeps) == 1:
        return plan.sweeps[0]
    names = ", ".join(sweep.name for sweep in plan.sweeps)
    message = f"a sweep must have one experiment, but there are {len(plan.sweeps)}: {names}"
    raise UsageError(message, "write a file for each of them")


def resolved_yaml(plan: Plan) -> str:
    """Return the plan's experiments with every key filled in, as a file that makes the same plan again."""
    return to_yaml({experiment.name: experiment.resolved for experiment in plan.experiments})


def _notices(draft: Draft) -> Iterable[Finding]:
    notices = (notice for notice in draft.notices if not notice.is_minor)
    yield from sorted(notices, key=lambda notice: (notice.place.line, notice.place.column))
    if any(not experiment.stop for experiment in draft.corners):
        yield Finding(draft.place, f"{draft.name} has no stop, so it runs until it is interrupted")
    run = draft.corners[0].run
    if run not in RUNNABLE:
        yield Finding(draft.place, f"{draft.name}: rlexp cannot train {run} yet; it can check and convert the file")
    for experiment, written in zip(draft.corners, draft.written, strict=True):
        yield from _cautions(experiment.config, written)
    repeated = 0 if draft.corners[0].is_sweep else len(draft.corners) - len(_distinct(draft))
    if repeated:
        variants = f"{repeated} of {len(draft.corners)} variants"
        yield Finding(
            draft.place, f"{draft.name}: {variants} differ from others only in keys without effect and are left out"
        )


def _env_places(draft: Draft) -> Iterable[tuple[tuple[str, str], str]]:
    for experiment, written in zip(draft.corners, draft.written, strict=True):
        node = written.child("env")
        if node is not None:
            yield (draft.name, experiment.env), str(node.place)


def _cautions(config: CommonConfig, written: Node) -> Iterable[Finding]:
    """Yield a notice for each given key that its user may have meant differently."""
    for caution in config.cautions():
        node = written.find(("config", caution.key))
        if node is not None:
            yield Finding(node.key_place, f"config.{caution.key} {caution.message}")


def _seeded(draft: Draft, fresh_seed: Callable[[], int]) -> tuple[Experiment, ...]:
    """Return the experiment of every corner with a seed; one fresh seed serves all corners."""
    if all(experiment.config.seed is not None for experiment in draft.corners):
        return draft.corners
    fresh = fresh_seed()
    return tuple(
        _with_seed(experiment, fresh if experiment.config.seed is None else experiment.config.seed)
        for experiment in draft.corners
    )


def _with_seed(experiment: Experiment, seed: int) -> Experiment:
    return experiment.model_copy(update={"config": experiment.config.model_copy(update={"seed": seed})})


def _sweep(draft: Draft, seeded: tuple[Experiment, ...]) -> Sweep:
    section = draft.space.node.child(SEARCH)
    corners = tuple(without_section(experiment) for experiment in seeded)
    seed = seeded[0].config.seed or 0
    is_seeded = draft.corners[0].config.seed is not None
    return Sweep(draft.space, seeded[0].search, corners, seed, is_seeded, section.key_place if section else draft.place)


def _trials(draft: Draft, seeded: Sequence[Experiment], start: int) -> Iterable[Trial]:
    """Yield the draft's trials, numbered from ``start``: the whole grid for one sample after the other."""
    index = start
    variants = list(_variants(draft, seeded))
    for sample in range(draft.corners[0].num_samples):
        for varied, experiment in variants:
            seed = sample_seed(experiment.config.seed or 0, sample)
            concrete = _with_seed(experiment, seed).model_copy(update={"num_samples": 1})
            name = trial_name(index, experiment.run, experiment.env, varied, sample)
            yield Trial(index, name, concrete, varied, sample)
            index += 1


def _variants(draft: Draft, seeded: Sequence[Experiment]) -> Iterable[tuple[dict[str, Any], Experiment]]:
    """Yield the corners that differ in keys with an effect, and what the grid varies with its value in each."""
    distinct = set(_distinct(draft))
    for number, (point, experiment) in enumerate(zip(corner_indices(draft.axes), seeded, strict=True)):
        if number in distinct:
            data, axes = data_of(experiment), zip(draft.axes, point, strict=True)
            yield {axis.key: value_on(axis, data, choice) for axis, choice in axes}, experiment


def _distinct(draft: Draft) -> list[int]:
    """Return the first corner of each kind: others that differ from it only in keys without effect do the same."""
    if len(draft.corners) == 1:
        return [0]
    first = {experiment.essence: number for number, experiment in reversed(list(enumerate(draft.corners)))}
    return sorted(first.values())


def _resolved(draft: Draft, seeded: Sequence[Experiment]) -> dict[str, Any]:
    """Return the first corner with every key, then each axis put back with its choices, and what depends on them."""
    resolved = data_of(seeded[0])
    for number, axis in enumerate(draft.axes):
        places = line_of(draft.axes, number)
        with_axis(resolved, axis, [value_on(axis, data_of(seeded[place]), n) for n, place in enumerate(places)])
    for path, node in draft.computed:
        at(resolved, path[:-1])[path[-1]] = node.plain()
    return resolved
