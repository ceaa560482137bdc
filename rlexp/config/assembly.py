"""Assembly: one entry of a file in current spelling, its keys in place, with overrides and defaults of its age."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from rlexp.config.command_line import Override
from rlexp.config.grid import GRID, SEARCH, TRACK
from rlexp.config.keys.agents import AGENTS, experiment_class, find_agent
from rlexp.config.keys.experiment import NUM_SEEDS, TRACKERS
from rlexp.config.keys.key_table import KeyName, key_path, key_table
from rlexp.config.keys.search import SchedulerConfig
from rlexp.config.reference import hints
from rlexp.config.rllib.ages import Age, leave_out_ignored, report_meanings, share_out_fragments, use_defaults
from rlexp.config.rllib.dating import Dating, dated, report_stale_keys, report_undecided
from rlexp.config.rllib.names import (
    agent_name,
    arrange,
    current_path,
    old_keys_beside_config,
    proper_path,
    read_yaml_1_1_words,
    use_current_names,
)
from rlexp.config.translation import Translation
from rlexp.config.yaml.nodes import Finding, Node, dotted, given_twice, shown, shown_key
from rlexp.errors import UsageError

_RUN = "run"
_NAMES_OF_RUN = (_RUN, "algo", "alg")
"""The key of the agent; the others are of RLlib's command line, and of files before 0.3.1."""

_WORDS_OF_TUNE: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "scheduler": hints.by_their_names(
            {
                "asha": "async_hyperband asynchyperband asynchyperbandscheduler ashascheduler",
                "hyperband": "hyperbandscheduler",
                "median": "median_stopping median_stopping_rule medianstoppingrule",
                "pbt": "population_based_training populationbasedtraining",
                "fifo": "fifoscheduler",
            }
        ),
        "searcher": hints.by_their_names(
            {"random": "variant_generator basicvariantgenerator basic_variant", "optuna": "optunasearch"}
        ),
        "optuna.sampler": {f"{name}sampler": name for name in ("tpe", "random", "cmaes", "gp", "qmc", "nsgaii")},
    }
)


@dataclass(frozen=True)
class Assembled:
    """An entry in current spelling, with its grids still in place."""

    translation: Translation
    age: Age | None
    """The releases of RLlib to which its spelling belongs; None if it is rlexp's own, or of any age."""
    defaults: frozenset[KeyName]
    """Keys that the entry does not give, with the default of its age."""


def indented(root: Node) -> tuple[Node, tuple[Finding, ...]]:
    """Return a file with the keys at its top level moved into the experiment above them, and a finding for each."""
    if all(map(_names_agent_or_env, root.entries().values())):
        return root, ()
    paths = {path for run in AGENTS for path in key_table(run)}
    beside = {NUM_SEEDS, *(path[0] for path in paths)} | old_keys_beside_config(next(iter(AGENTS)))
    names = {path[-1] for path in paths} | beside
    keys = {name for name, node in root.entries().items() if name in names and not _names_agent_or_env(node)}
    able = [name for name, node in root.entries().items() if node.value is None or isinstance(node.value, Mapping)]
    above = next((name for name in able if name not in keys), None)
    if above is None:  # the file is one experiment, without a name
        return root, ()
    findings: list[Finding] = []
    for name, node in root.entries().items():
        if name not in keys and name in able:
            above = name
        elif name in keys & beside:
            where, verb = ("dict", "move it into") if node.place.subscript else ("file", "indent it below")
            message = f"{name} is at the top level of the {where}, beside the experiment {shown_key(above)}"
            findings.append(Finding(node.key_place, message, f"{verb} {shown_key(above)}"))
            root = root.without(name)
            root = root if root.find((above, name)) else root.put((above, name), node)
        elif name in keys and name not in able:
            message = f"{name} is a key of config, and cannot be at the top level"
            findings.append(Finding(node.key_place, message, f"write it below config of {shown_key(above)}"))
            root = root.without(name)
    return root, tuple(findings)


def _names_agent_or_env(node: Node) -> bool:
    return any(key in node.entries() for key in ("env", *_NAMES_OF_RUN))


def agent_of(entry: Node, overrides: Sequence[Override], packaged: bool = True) -> str | Finding:
    """Return the name of an entry's agent in the models' spelling, or a finding about it.

    Without ``packaged``, agents of installed packages are neither accepted nor imported.
    """
    given = [override for override in overrides if override.path[0] in _NAMES_OF_RUN]
    for override in given:
        if len(override.path) > 1:
            message = f"{override.path[0]} is the name of an agent, and has nothing below it: {dotted(override.path)}"
            return Finding(override.value.place, message, f"write run={hints.agents()}")
    in_file = nodes_of_agent(entry)
    other = next((node for node in in_file[1:] if not node.is_same_as(in_file[0])), None)
    if other is not None:
        return given_twice(_RUN, in_file[0], other)
    run = given[-1].value if given else next(iter(in_file), None)
    if run is None:
        return Finding(entry.key_place, "run is missing", f"write run: {hints.agents()}")
    if not isinstance(run.value, str):
        message = f"run must be the name of an agent, got {shown(run.plain())}"
        return Finding(run.place, message, f"use {hints.agents()}")
    name = agent_name(run.value)
    found = find_agent(name)
    if found is not None and found not in AGENTS and not packaged:
        return Finding(run.place, f"agent {found} is of a package, and only rlexp's own are allowed here")
    if found is not None:
        try:
            experiment_class(found)
        except UsageError as error:
            return Finding(run.place, error.message, error.hint)
        return found
    known = "an algorithm of RLlib that rlexp does not have" if name in hints.RLLIB_ALGORITHMS else None
    message = f"{shown_key(run.value)} is {known}" if known else f"unknown agent {shown_key(run.value)}"
    return Finding(run.place, message, hints.for_unknown_agent(name))


def nodes_of_agent(entry: Node) -> list[Node]:
    """Return the nodes of an entry that name its agent; two of them are one too many."""
    return [node for node in map(entry.child, _NAMES_OF_RUN) if node is not None]


def assembled(
    entry: Node, overrides: Sequence[Override], run: str, is_sweep: bool = False, name: str = ""
) -> Assembled:
    """Return an entry in current spelling, with the overrides and, if its file proves an age, that age's defaults.

    Values of the command line belong to no age.
    """
    for key in _NAMES_OF_RUN:
        entry = entry.without(key)
    dating = dated(entry, run) if run in AGENTS else Dating()
    age = dating.age
    translation = Translation(entry, run)
    report_stale_keys(translation, dating)
    _use_todays_spelling(translation, is_sweep)
    if age is not None:
        leave_out_ignored(translation, age)
        report_meanings(translation, age)
        share_out_fragments(translation, age)
    _use_track_section(translation)  # before the overrides, as they may set keys in it
    if overrides:
        _lay_over(translation, overrides, is_sweep)
        _use_todays_spelling(translation, is_sweep)
    defaults = use_defaults(translation, age) if age is not None else frozenset()
    if age is None:
        _shorten_iterations(translation, name)
    report_undecided(translation, dating, name)
    _use_search_section(translation, is_sweep)
    _use_track_section(translation)
    return Assembled(translation, age, defaults)


_RATE, _SCHEDULE = "config.lr", "config.lr_schedule"
_STEPS, _SECONDS = "config.timesteps_per_iteration", "config.min_iter_time_s"
_ROWS_OF_A_SHORT_RUN = 20
_LEAST_STEPS, _LEAST_SECONDS = 1000, 1.0
"""Iterations are not made shorter than DQN's."""
_TIMES = ("stop.time_total_s", "time_budget_s")
_BEYOND = 1e15
_COUNT_ITERATIONS = ("checkpoint_freq", "stop.training_iteration", "config.evaluation_interval", SEARCH)


def _shorten_iterations(translation: Translation, name: str) -> None:
    """Let a run that ends within a few iterations of Ape-X's default length have more rows: a curve.

    A file that gives a length keeps it, and so does one that counts in iterations.
    """
    table, path = key_table(translation.run), key_path(_STEPS)
    given = (_STEPS, _SECONDS, *(key for key in _COUNT_ITERATIONS if translation.value(key) != 0))
    config = translation.find("config")
    is_wrong = config is not None and not isinstance(config.value, Mapping)
    if path not in table or is_wrong or any(translation.find(key) is not None for key in given):
        return
    usual: tuple[float, float] = (table[path].default or 0, table[key_path(_SECONDS)].default or 0.0)
    total = _limit(translation, "stop.timesteps_total")
    steps = max(_LEAST_STEPS, int(total // _ROWS_OF_A_SHORT_RUN))
    seconds = max(_LEAST_SECONDS, min(_limit(translation, key) for key in _TIMES) / _ROWS_OF_A_SHORT_RUN)
    if total <= _LEAST_STEPS:
        return
    if steps < usual[0]:
        length = (steps, 0.0)
    elif seconds < usual[1]:
        length = (0, seconds)
    else:
        return
    at = translation.experiment
    translation.put(_STEPS, length[0], at)
    translation.put(_SECONDS, length[1], at)
    chosen = f"{_STEPS}: {length[0]} and {_SECONDS}: {length[1]:g} give it a curve of about {_ROWS_OF_A_SHORT_RUN} rows"
    theirs = f"the defaults, {usual[0]:g} and {usual[1]:g}, are for long runs"
    translation.notice(at, f"{shown_key(name)} is short: {chosen}; {theirs}")


def _limit(translation: Translation, key: str) -> float:
    """Return the value of a key that ends a run; without one number that ends it, beyond every run."""
    value = translation.value(key)
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < _BEYOND
    return value if is_number else _BEYOND


def _use_todays_spelling(translation: Translation, is_sweep: bool) -> None:
    """Read every word in the meaning of its age, and give every key its current name and place."""
    read_yaml_1_1_words(translation)
    use_current_names(translation)
    _use_num_seeds(translation, is_sweep)
    arrange(translation)


def _use_num_seeds(translation: Translation, is_sweep: bool) -> None:
    """Write ``num_seeds`` beside ``config`` as the key with this number in a run, or a sweep; notice the other name."""
    node = translation.take(NUM_SEEDS)
    key = _key_of_seeds(translation, is_sweep)
    given = translation.find(key)
    if node is None:
        if given is not None and key == "num_samples":
            translation.notice(given, f"{key} is {NUM_SEEDS} now", is_minor=True)
    elif given is None or given.is_same_as(node):
        translation.put(key, node, node)
    else:
        message = f"{NUM_SEEDS} and {key} are both the number of seeds here, but they differ"
        translation.problem(node, message, f"keep {NUM_SEEDS}")


def _key_of_seeds(translation: Translation, is_sweep: bool) -> str:
    is_searched = is_sweep or translation.find(SEARCH) is not None
    return f"{SEARCH}.{NUM_SEEDS}" if is_searched else "num_samples"


def _lay_over(translation: Translation, overrides: Sequence[Override], is_sweep: bool) -> None:
    """Set the values of the command line in an arranged experiment; refuse those that cannot be set.

    A learning rate takes the place of the file's schedule, which would overrule it.
    """
    run = translation.run
    set_here: dict[KeyName, Node] = {}
    for override in overrides:
        path = override.path
        if path[0] in _NAMES_OF_RUN:
            continue
        if path == (NUM_SEEDS,):
            path = tuple(_key_of_seeds(translation, is_sweep).split("."))
        path = current_path(path, run)
        if path[0] not in old_keys_beside_config(run):
            path = proper_path(path, run)
        if _is_open(translation.experiment, path):
            translation.experiment = translation.experiment.put(path, override.value)
            set_here[path] = override.value
        else:
            message = f"{dotted(path[:-1])} is not a mapping here, so {path[-1]} cannot be set in it"
            translation.problems.append(Finding(override.value.place, message))
    rate, schedule = key_path(_RATE), key_path(_SCHEDULE)
    if rate in set_here and schedule not in set_here and translation.value(_SCHEDULE) is not None:
        translation.take(_SCHEDULE)
        translation.notice(set_here[rate], f"{_RATE} takes the place of {_SCHEDULE}")


def _is_open(experiment: Node, path: KeyName) -> bool:
    """Return whether a key can be set: everything above it is a mapping, or missing."""
    above = (experiment.find(path[:depth]) for depth in range(len(path)))
    values = [node.value for node in above if node is not None and node.value is not None]
    return all(isinstance(value, Mapping) and GRID not in value for value in values)


def _use_search_section(translation: Translation, is_sweep: bool) -> None:
    """Add the section if a command asks for it, and move its keys into it."""
    experiment = translation.experiment
    section = experiment.child(SEARCH)
    if section is None and is_sweep:
        translation.experiment = experiment.with_value({**experiment.entries(), SEARCH: experiment.with_value({})})
    elif section is None:
        return
    for key, words in _WORDS_OF_TUNE.items():
        node = translation.find(f"{SEARCH}.{key}")
        if node is not None and isinstance(node.value, str):
            _respell(translation, f"{SEARCH}.{key}", node, node.value, words)
    _move_samples(translation)
    for scheduler in ("asha", "hyperband"):  # Tune's max_t, at which every trial ends, belongs to stop
        unit = translation.value(f"{SEARCH}.{scheduler}.time_attr")
        translation.move((SEARCH, scheduler, "max_t"), ("stop", str(unit or SchedulerConfig().time_attr)))


def _use_track_section(translation: Translation) -> None:
    """Write the short forms of ``track``, a name, a list of names and options alone, as the full mapping."""
    node = translation.find(TRACK)
    if node is None:
        return
    if isinstance(node.value, str | tuple):
        listed = node if isinstance(node.value, tuple) else node.with_value((node,))
        translation.put(TRACK, node.with_value({"to": listed}), node)
    elif isinstance(node.value, Mapping) and "to" in node.entries():
        names = node.entries()["to"]
        if isinstance(names.value, str):
            translation.put(f"{TRACK}.to", names.with_value((names,)), names)
    elif isinstance(node.value, Mapping):
        given = tuple(child.with_value(name) for name, child in node.entries().items() if name in TRACKERS)
        translation.put(f"{TRACK}.to", node.with_value(given), node)


def _respell(translation: Translation, key: str, node: Node, word: str, words: Mapping[str, str]) -> None:
    known = words.get(word.lower(), word.lower())
    if known != word:
        translation.put(key, known, node)
    if word.lower() in words:
        translation.notice(node, f"{key}: {word} is {known} now")


def _move_samples(translation: Translation) -> None:
    """Give ``num_samples`` beside a ``search`` section Tune's meaning: the number of configurations."""
    node = translation.take("num_samples")
    if node is None or (node.value == 1 and node.place.line):
        return
    if not translation.put_over(f"{SEARCH}.num_samples", node, node):
        message = "num_samples is given twice with different values: beside search and under it"
        translation.problem(node, message, "keep search.num_samples")
