"""Files and overrides become a plan, the trials of some files with seeds and names; or every error at once."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, Final

from rlexp.config.assembly import indented
from rlexp.config.command_line import LoadOptions, parse_overrides
from rlexp.config.grid import SEARCH, TRACK
from rlexp.config.keys.experiment import Experiment, TrackerName
from rlexp.config.keys.search import SCHEDULERS, SearchConfig
from rlexp.config.keys.trial import Trial, sample_seed, trial_of
from rlexp.config.keys.user_code import NO_MODULES, UserModules, UserPart, folders_for
from rlexp.config.parsed_experiment import ParsedExperiment, parsed_experiment_of, without_repetitions
from rlexp.config.sweep import Sweep
from rlexp.config.variants import resolved, varied_values
from rlexp.config.yaml import reader
from rlexp.config.yaml.nodes import Finding, KeyPath, Node, Place, shown_key
from rlexp.config.yaml.python_values import NotAFile
from rlexp.errors import ConfigError, Notice, Problem, UsageError
from rlexp.schedules import PiecewiseSchedule

__all__ = ["LoadOptions", "Plan", "load_plan", "resolved_yaml"]

AS_IT_STANDS = LoadOptions()

SEED_BITS = 31
"""Bits of a fresh seed, and of derived ones."""

_KEYS_OF_AN_EXPERIMENT = ("run", "algo", "env", "stop", "config")
_RATES: Final = "lr_schedule"


@dataclass(frozen=True)
class PlannedExperiment:
    """One entry of a file: its name, agent and every key with its value, grids in place."""

    name: str
    run: str
    resolved: Mapping[str, Any]
    """Every key with its default filled in, ``grid_search`` where it stood, the seed of sample 0 recorded."""


@dataclass(frozen=True)
class Plan:
    """What a command will run, and notices for its user."""

    experiments: tuple[PlannedExperiment, ...]
    trials: tuple[Trial, ...]
    """The trials of all experiments, in the order of the files; for sweeps, the trials that are known beforehand."""
    notices: tuple[Notice, ...]
    sources: tuple[Path | NotAFile, ...]
    """The files read, and dicts and texts in place of files."""
    modules: UserModules = NO_MODULES
    """The user's own modules, which every process that makes an environment may import."""
    sweeps: tuple[Sweep, ...] = ()
    """The experiments with a ``search`` section."""
    env_places: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """The places at which the files name an env, by the experiment's name and the env's."""
    part_places: tuple[tuple[UserPart, str], ...] = ()
    """The user's classes under ``config``, and the places at which the files name them."""
    tracker_places: tuple[tuple[TrackerName, str], ...] = ()
    """The trackers that record trials, and the places in the files or the command line that name them."""

    @property
    def copies_trials(self) -> bool:
        """Whether trials copy each other's checkpoints."""
        return any(sweep.search.scheduler_options.COPIES_TRIALS for sweep in self.sweeps)

    @property
    def named_experiments(self) -> list[Experiment]:
        """All experiments that name code: the trials', and the variants of sweeps."""
        variants = (variant for sweep in self.sweeps for variant in sweep.variants)
        return [*(trial.experiment for trial in self.everything), *variants]

    @property
    def everything(self) -> tuple[Trial, ...]:
        """The trials, and for a sweep that decides while it runs, one at each end of its space."""
        ends = (
            Trial(index, sweep.name, variant, {}, 0)
            for sweep in self.sweeps
            if sweep.planned_points() is None
            for index, variant in enumerate(sweep.variants)
        )
        return (*self.trials, *ends)


@dataclass(frozen=True)
class _Entry:
    """One experiment of a file, before it is parsed."""

    name: str
    node: Node
    notices: tuple[Finding, ...]
    """Notices about its text for the user."""


def load_plan(
    paths: Sequence[Path | str | NotAFile],
    overrides: Sequence[str] = (),
    seed: int | None = None,
    options: LoadOptions = AS_IT_STANDS,
    fresh_seed: Callable[[], int] = lambda: secrets.randbits(SEED_BITS),
) -> Plan:
    """Read experiment files and plan their trials.

    Args:
        paths: experiment files, or dicts in place of them; their order is the order of the trials.
        overrides: ``key.path=value`` each, for every experiment; later ones win.
        seed: the same as the override ``config.seed``.
        options: how to read them.
        fresh_seed: function that returns the seed of an experiment without one.

    Raises:
        ConfigError: with every problem of every file, by position.

    """
    parsed_experiments = load_experiments(paths, overrides, seed, options)
    sources = tuple(path if isinstance(path, NotAFile) else Path(path) for path in paths)
    files = (source for source in sources if isinstance(source, Path))
    folders = folders_for(files) if options.module_folders is None else options.module_folders
    return planned(parsed_experiments, sources, UserModules(options.imports, folders), fresh_seed)


def load_experiments(
    paths: Sequence[Path | str | NotAFile],
    overrides: Sequence[str] = (),
    seed: int | None = None,
    options: LoadOptions = AS_IT_STANDS,
) -> list[ParsedExperiment]:
    """Read experiment files, without deciding their seeds and names; raises ConfigError as ``load_plan`` does."""
    laid_over, findings = parse_overrides(overrides, seed, options.flags)
    entries, unreadable = _entries(paths)
    findings += (*unreadable, *_named_twice(entries))
    parsed_experiments: list[ParsedExperiment] = []
    for entry in entries:
        parsed, wrong = parsed_experiment_of(entry.name, entry.node, laid_over, options)
        if parsed is not None:
            noticed = replace(parsed, notices=(*entry.notices, *parsed.notices))
            parsed_experiments.append(without_repetitions(noticed))
        findings += wrong
    findings += _too_many(parsed_experiments, options.most_trials)
    if findings:
        raise ConfigError([finding.problem() for finding in _ordered(findings, unreadable, paths)])
    return parsed_experiments


def converted_file(path: Path, options: LoadOptions = AS_IT_STANDS) -> str:
    """Return a file's text in current spelling; raises ConfigError if it has any error."""
    from rlexp.config.convert import converted  # no other command converts

    return converted(load_experiments([path], options=options), reader.read_text(path, str(path)))


def _entries(paths: Sequence[Path | str | NotAFile]) -> tuple[list[_Entry], tuple[Finding, ...]]:
    """Return the experiments of all files, and findings about the files."""
    entries: list[_Entry] = []
    findings: list[Finding] = []
    for path in paths:
        text = path.read() if isinstance(path, NotAFile) else reader.read_file(Path(path), str(path))
        findings.extend(text.problems)
        if text.root is None:
            continue
        root, outdented = indented(text.root)
        findings.extend(outdented)
        nameless = _without_a_name(root)
        if nameless is not None:
            findings.append(nameless)
            continue
        if not root.entries():
            findings.append(Finding(Place(str(path)), "has no experiment", "write one, with run and env at least"))
        starts = [node.key_place.line for node in root.entries().values()]
        for name, node in root.entries().items():
            start = node.key_place.line
            lines = range(start, min((line for line in starts if line > start), default=sys.maxsize))
            entries.append(_Entry(name, node, tuple(each for each in text.notices if each.place.line in lines)))
    return entries, tuple(findings)


def _without_a_name(root: Node) -> Finding | None:
    """Return a finding about a file whose top level is an experiment; None if it has a name."""
    keys = [key for key in _KEYS_OF_AN_EXPERIMENT if key in root.entries()]
    values = [root.entries()[key].value for key in keys if key not in ("config", "stop")]
    if not any(isinstance(value, str) for value in values):
        return None
    place = min((root.entries()[key].key_place for key in keys), key=lambda place: (place.line, place.column))
    whole, hint = "a file", "write my-experiment: in the first line, and indent everything else below it"
    if place.subscript:
        whole, hint = "the dict", 'write {"my-experiment": {"run": ..., "env": ...}}'
    message = f"the experiment has no name: {', '.join(keys)} cannot be at the top level of {whole}"
    return Finding(place, message, hint)


def _named_twice(entries: Iterable[_Entry]) -> Iterable[Finding]:
    first_places: dict[str, Place] = {}
    for entry in entries:
        place = entry.node.key_place
        first = first_places.setdefault(entry.name, place)
        if first is not place:
            message = f"experiment {shown_key(entry.name)} already exists at {first}"
            yield Finding(place, message, "give each experiment its own name")


def _too_many(parsed_experiments: Iterable[ParsedExperiment], most: int) -> tuple[Finding, ...]:
    total = 0
    for parsed in parsed_experiments:
        total += parsed.number_of_trials
        if total > most:
            message = f"with {parsed.name} there are {total} trials, more than {most}"
            return (Finding(parsed.place, message, "lower num_samples, or try fewer values"),)
    return ()


def _ordered(
    findings: Iterable[Finding], unreadable: Iterable[Finding], paths: Sequence[Path | str | NotAFile]
) -> list[Finding]:
    """Return findings without repetitions, by file and position; findings of the command line last.

    If a value cannot be read, other problems at its place are left out.
    """
    rank = {str(path): number for number, path in enumerate(paths)}
    first = dict.fromkeys(unreadable)
    broken = {finding.place for finding in first}
    found = dict.fromkeys((*first, *(finding for finding in findings if finding.place not in broken)))

    def position(finding: Finding) -> tuple[int, int, int]:
        place = finding.place
        return rank.get(place.source, len(rank)), place.line, place.column

    return sorted(found, key=position)


def planned(
    parsed_experiments: Sequence[ParsedExperiment],
    sources: tuple[Path | NotAFile, ...],
    modules: UserModules,
    fresh_seed: Callable[[], int],
) -> Plan:
    """Give every trial its seed and name; an experiment without a seed gets one from ``fresh_seed``."""
    experiments: list[PlannedExperiment] = []
    trials: list[Trial] = []
    sweeps: list[Sweep] = []
    for parsed in parsed_experiments:
        seeded = _seeded(parsed, fresh_seed)
        experiments.append(PlannedExperiment(parsed.name, parsed.variants[0].run, resolved(parsed.axes, seeded)))
        if seeded[0].is_sweep:
            sweeps.append(_sweep(parsed, seeded))
            points = sweeps[-1].planned_points() or ()
            trials.extend(trial for number, point in enumerate(points) for trial in sweeps[-1].trials(number, point))
        else:
            trials.extend(_trials(parsed, seeded, len(trials)))
    notices = tuple(finding.notice() for parsed in parsed_experiments for finding in dict.fromkeys(_notices(parsed)))
    variants = [(parsed.name, *pair) for parsed in parsed_experiments for pair in parsed.pairs]
    places = {(name, experiment.env): _place(written, ("env",)) for name, experiment, written in variants}
    parts = tuple(
        (part, _place(written, tuple(int(key) if key.isdecimal() else key for key in part.key.split("."))))
        for _, experiment, written in variants
        for part in experiment.config.user_parts()
    )
    trackers = tuple(
        (tracker, _place(written, (TRACK, "to", number)))
        for _, experiment, written in variants
        for number, tracker in enumerate(experiment.track.to)
    )
    return Plan(tuple(experiments), tuple(trials), notices, sources, modules, tuple(sweeps), places, parts, trackers)


def refuse_sweeps(plan: Plan) -> None:
    """Raise ConfigError if an experiment has a ``search`` section, so that it is not a single experiment."""
    message = "has a search section, which rlexp run does not support"
    hint = "use rlexp sweep FILE; it writes a best.yaml for rlexp run"
    problems = [Problem(str(sweep.place), f"{sweep.name} {message}", hint) for sweep in plan.sweeps]
    if problems:
        raise ConfigError(problems)


def only_sweep(plan: Plan) -> Sweep:
    """Return the only sweep of a plan; raises UsageError if a file has several experiments."""
    if len(plan.sweeps) == 1:
        return plan.sweeps[0]
    names = ", ".join(sweep.name for sweep in plan.sweeps)
    message = f"a sweep must have one experiment, but there are {len(plan.sweeps)}: {names}"
    raise UsageError(message, "write a file for each of them")


def resolved_yaml(plan: Plan) -> str:
    """Return the plan's experiments with every key, as a file that makes the same plan again."""
    return reader.to_yaml({experiment.name: experiment.resolved for experiment in plan.experiments})


def _notices(parsed: ParsedExperiment) -> Iterable[Finding]:
    notices = (notice for notice in parsed.notices if not notice.is_minor)
    yield from sorted(notices, key=lambda notice: (notice.place.line, notice.place.column))
    if any(not experiment.stop for experiment in parsed.variants):
        yield Finding(parsed.place, f"{parsed.name} has no stop, so it runs until it is interrupted")
    for experiment, written in parsed.pairs:
        given = ((caution, written.find(("config", caution.key))) for caution in experiment.config.cautions())
        yield from (Finding(node.key_place, f"config.{each.key} {each.message}") for each, node in given if node)
        node, message = written.find(("config", _RATES)), rate_caution(experiment)
        yield from (Finding(node.key_place, message),) if node is not None and message is not None else ()
        short = start_caution(experiment)
        yield from (Finding(parsed.place, f"{parsed.name} {short}"),) if short is not None else ()
    if parsed.variants[0].is_sweep:
        repetition = parsed.space.repetition(parsed.variants[0].search)
        yield from (repetition,) if repetition is not None else ()
        yield from _unused_options(parsed)
    repeated = 0 if parsed.variants[0].is_sweep else len(parsed.variants) - len(parsed.distinct)
    if repeated:
        variants = f"{repeated} of {len(parsed.variants)} variants"
        yield Finding(
            parsed.place, f"{parsed.name}: {variants} differ from others only in keys without effect and are left out"
        )


def rate_caution(experiment: Experiment) -> str | None:
    """Return what it means that a schedule of the learning rate ends before or after ``stop``; None if it fits."""
    points, end = experiment.config.lr_schedule, experiment.stop.get("timesteps_total")
    if not points or end is None:
        return None
    last, rate = points[-1]
    if last > end and (there := PiecewiseSchedule(tuple(points)).value(end)) != rate:
        name = f"config.{_RATES} goes on to {last:,} env steps, but stop.timesteps_total is {end:,.0f}"
        return f"{name}: the learning rate ends at {there:.2g}, not at {rate:g}"
    if last < end and rate == 0:
        return f"config.{_RATES} is 0 from {last:,} env steps on: nothing more is learned until {end:,.0f}"
    return None


def start_caution(experiment: Experiment) -> str | None:
    """Return that the learner does not start before ``stop``; None if it does."""
    start, end = getattr(experiment.config, "learning_starts", 0), experiment.stop.get("timesteps_total")
    if end is None or end >= start:
        return None
    name = f"the learner starts after {start:,} env steps (config.learning_starts)"
    return f"learns nothing: {name}, but stop.timesteps_total is {end:,.0f}"


def _unused_options(parsed: ParsedExperiment) -> Iterable[Finding]:
    """Yield the given options of a scheduler or searcher that was not chosen; a resolved file has all defaults."""
    search = parsed.variants[0].search
    chosen = {"scheduler": search.scheduler, "searcher": parsed.space.searcher(search)}
    for name, kind in {**dict.fromkeys(SCHEDULERS, "scheduler"), "optuna": "searcher"}.items():
        node = parsed.written[0].find((SEARCH, name))
        if node is None or chosen[kind] == name:
            continue
        if getattr(search, name) != SearchConfig.model_fields[name].default:
            yield Finding(node.key_place, f"search.{name} has no effect: search.{kind} is {chosen[kind]}")


def _place(written: Node, path: KeyPath) -> str:
    """Return the place of a key; of the experiment if the file does not give the key."""
    return str((written.find(path) or written).place)


def _seeded(parsed: ParsedExperiment, fresh_seed: Callable[[], int]) -> tuple[Experiment, ...]:
    """Return the experiment of every variant with a seed; one fresh seed serves all variants."""
    if all(experiment.config.seed is not None for experiment in parsed.variants):
        return parsed.variants
    fresh = fresh_seed()
    return tuple(each.with_seed(fresh) if each.config.seed is None else each for each in parsed.variants)


def _sweep(parsed: ParsedExperiment, seeded: tuple[Experiment, ...]) -> Sweep:
    section = parsed.space.node.child(SEARCH)
    place = section.key_place if section else parsed.place
    variants = tuple(experiment.model_copy() for experiment in seeded)
    for variant in variants:
        variant.model_fields_set.discard(SEARCH)
    is_seeded = parsed.variants[0].config.seed is not None
    return Sweep(parsed.space, seeded[0].search, variants, seeded[0].config.seed or 0, is_seeded, place)


def _trials(parsed: ParsedExperiment, seeded: Sequence[Experiment], start: int) -> Iterable[Trial]:
    """Yield the experiment's trials, numbered from ``start``: the whole grid for one sample after another."""
    varied = varied_values(parsed.axes, seeded)
    trials = product(range(parsed.variants[0].num_samples), parsed.distinct)
    for index, (sample, number) in enumerate(trials, start):
        seed = sample_seed(seeded[number].config.seed or 0, sample)
        yield trial_of(index, seeded[number].with_seed(seed), varied[number], sample)
