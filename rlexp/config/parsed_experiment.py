"""One entry of a file with the overrides, validated in every variant of its grid.

Values of a grid that change nothing, so that variants make equal trials, are reported and left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from rlexp.config.assembly import Assembled, agent_of, assembled, nodes_of_agent
from rlexp.config.command_line import LoadOptions, Override
from rlexp.config.domains import Listed
from rlexp.config.grid import GRID, Axis, find_axes, variant_indices, variants
from rlexp.config.keys.agents import AGENTS
from rlexp.config.keys.experiment import Experiment
from rlexp.config.keys.key_table import key_table
from rlexp.config.sweep import Space
from rlexp.config.validation import conflict_findings, validated
from rlexp.config.variants import Variant, is_at_a_key, located, variants_of
from rlexp.config.yaml.nodes import Finding, Node, Place, dotted, one_mapping, shown, shown_key, written


@dataclass(frozen=True)
class ParsedExperiment:
    """An entry that is valid in all its variants; seeds and names of its trials are still missing."""

    name: str
    place: Place
    variants: tuple[Experiment, ...]
    """The first choice on every axis, and so on; the last axis varies fastest."""
    written: tuple[Node, ...]
    """The same variants with only the keys of the file, in current spelling."""
    space: Space
    """What is searched in it, and how to make an experiment from any point."""
    notices: tuple[Finding, ...]
    named: Node
    """What names its agent in the file, or the whole entry if nothing does."""

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The axes of its space."""
        return self.space.axes

    @property
    def pairs(self) -> list[tuple[Experiment, Node]]:
        """Each variant, and what is written of it."""
        return list(zip(self.variants, self.written, strict=True))

    @cached_property
    def distinct(self) -> tuple[int, ...]:
        """The first variant of each kind; later ones that differ only in keys without effect train the same."""
        first = {variant.essence: number for number, variant in reversed(list(enumerate(self.variants)))}
        return tuple(sorted(first.values()))

    @property
    def number_of_trials(self) -> int:
        """Variants times samples; for a sweep, the most trials that it makes."""
        if self.variants[0].is_sweep:
            return self.space.number_of_configurations(self.variants[0].search) * self.variants[0].search.num_seeds
        return len(self.variants) * self.variants[0].num_samples


def parsed_experiment_of(
    name: str, entry: Node, overrides: Sequence[Override], options: LoadOptions
) -> tuple[ParsedExperiment | None, tuple[Finding, ...]]:
    """Return the entry ``name`` of a file with the overrides applied; None if it has an error."""
    if not isinstance(entry.value, Mapping):
        message = f"experiment {shown_key(name)} must be a mapping, got {shown(entry.plain())}"
        one = one_mapping(entry.plain()) if isinstance(entry.value, tuple) else None
        hint = "it needs run and env at least" if one is None else f"write one mapping, without dashes: {one}"
        return None, (Finding(entry.place, message, hint),)
    run = agent_of(entry, overrides, options.packaged_agents)
    if isinstance(run, Finding):
        return None, (run, *_wrong_beside_config(name, entry, options.most_trials))
    assembly = assembled(entry, overrides, run, options.is_sweep, name)
    axes, malformed = find_axes(assembly.translation.experiment, options.most_trials)
    findings = (*assembly.translation.problems, *malformed)
    if (inside := entry.child("name")) is not None:
        hint = "the name of an experiment is the key above it in the file"
        findings += (Finding(inside.key_place, "unknown key name", hint),)
    if malformed:
        return None, findings
    nodes = tuple(variants(assembly.translation.experiment, axes))
    made = variants_of(name, nodes, run, assembly.age, assembly.defaults, options)
    findings += tuple(problem for variant in made for problem in variant.problems)
    if findings:
        return None, findings
    parsed, wrong = _located(name, entry, assembly, axes, made, options)
    if wrong:
        return None, wrong
    parsed = _adjusted(parsed, options)
    unused = dict.fromkeys(
        finding
        for experiment, written in parsed.pairs
        for finding in conflict_findings(experiment.config.unused_resources(), written, ("config",))
    )
    return (None if unused else parsed), tuple(unused)


def _located(
    name: str, entry: Node, assembly: Assembled, axes: tuple[Axis, ...], made: Sequence[Variant], options: LoadOptions
) -> tuple[ParsedExperiment, tuple[Finding, ...]]:
    """Return the experiment of an entry with valid variants, and findings about axes that cannot be searched."""
    experiment, run = assembly.translation.experiment, assembly.translation.run
    valid = tuple(variant.experiment for variant in made if variant.experiment)
    placed, unplaced = located(axes, valid)
    space = Space(name, run, experiment, placed, assembly.age, options)
    is_searched = valid[0].is_sweep and (placed or not unplaced)  # else one problem would show up as two
    wrong = (*unplaced, *(space.findings(valid[0]) if is_searched else ()))
    of_variants = (notice for variant in made for notice in variant.notices)
    notices = (*_notice_of_defaults(name, assembly, made[0].written), *assembly.translation.notices, *of_variants)
    notices += tuple(space.notices(valid[0]))
    written = tuple(variant.written for variant in made)
    named = next(iter(nodes_of_agent(entry)), entry)
    parsed = ParsedExperiment(name, entry.key_place, valid, written, space, tuple(dict.fromkeys(notices)), named)
    return parsed, wrong


def _notice_of_defaults(name: str, assembly: Assembled, variant: Node) -> Iterator[Finding]:
    """Yield a notice with the keys that have the default of the file's age in a variant."""
    found = ((path, variant.find(path)) for path in sorted(assembly.defaults))
    used = {path: node for path, node in found if node is not None}
    if not used:
        return
    table = key_table(assembly.translation.run)
    theirs = ", ".join(f"{dotted(path)}: {written(node.plain())}" for path, node in used.items())
    ours = ", ".join(f"{dotted(path)}: {written(table[path].default)}" for path in used)
    message = (
        f"{shown_key(name)} is spelled as in RLlib {assembly.age}. Keys that it does not give have the "
        f"defaults of these releases: {theirs}. To use rlexp's defaults, write {ours}"
    )
    yield Finding(assembly.translation.experiment.key_place, message)


def _adjusted(parsed: ParsedExperiment, options: LoadOptions) -> ParsedExperiment:
    """Return the experiment with the caller's changes to its variants, and notices of them."""
    if options.adjust is None:
        return parsed
    adjusted = [options.adjust(variant) for variant in parsed.variants]
    changes = dict.fromkeys(change for _, texts in adjusted for change in texts)
    notices = (*parsed.notices, *(Finding(parsed.place, f"{parsed.name}: {change}") for change in changes))
    return replace(parsed, variants=tuple(experiment for experiment, _ in adjusted), notices=notices)


def _wrong_beside_config(name: str, entry: Node, most_variants: int) -> tuple[Finding, ...]:
    """Return findings about the keys that every agent's experiments have."""
    translation = assembled(entry.without("config"), (), next(iter(AGENTS))).translation
    axes, malformed = find_axes(translation.experiment, most_variants)
    if malformed:
        return malformed
    nodes = variants(translation.experiment, axes)
    return tuple(wrong for node in nodes for wrong in validated(name, node, translation.run)[1])


def without_repetitions(parsed: ParsedExperiment) -> ParsedExperiment:
    """Return the experiment without grid values that change nothing, and notices of them.

    An axis remains if it has several kept values, or had one at a key of rlexp.
    """
    kept, notices = _kept_choices(parsed.axes, parsed.variants)
    node, axes = parsed.space.node, []
    for axis, choices in zip(parsed.axes, kept, strict=True):
        left, path = tuple(axis.choices[choice] for choice in choices), axis.given or axis.path
        if len(left) == 1 and (len(axis.choices) > 1 or not is_at_a_key(axis, parsed.variants[0])):
            node = node.put(path, left[0])
        elif len(left) < len(axis.choices):
            node = node.put(path, left[0].with_value({GRID: left[0].with_value(left)}))
            axes.append(replace(axis, choices=left, domain=Listed(GRID, [choice.plain() for choice in left])))
        else:
            axes.append(axis)
    numbers = [
        number
        for number, point in enumerate(variant_indices(parsed.axes))
        if all(choice in choices for choice, choices in zip(point, kept, strict=True))
    ]
    return replace(
        parsed,
        variants=tuple(parsed.variants[number] for number in numbers),
        written=tuple(parsed.written[number] for number in numbers),
        space=replace(parsed.space, node=node, axes=tuple(axes)),
        notices=(*parsed.notices, *notices),
    )


def _kept_choices(
    axes: Sequence[Axis], experiments: Sequence[Experiment]
) -> tuple[Sequence[Sequence[int]], Sequence[Finding]]:
    """Return the choices on each axis without grid values that change nothing, and a notice of each of these.

    ``experiments`` are all variants, in the order of ``variant_indices``.
    """
    indices = variant_indices(axes)
    if len(indices) != prod(len(axis.choices) for axis in axes):
        return [range(len(axis.choices)) for axis in axes], ()
    kept: list[Sequence[int]] = []
    notices: list[Finding] = []
    names = [experiment.essence for experiment in experiments]
    for number, axis in enumerate(axes):
        firsts = _firsts(names, indices, number) if axis.is_grid else list(range(len(axis.choices)))
        kept.append([choice for choice, first in enumerate(firsts) if choice == first])
        for choice, first in enumerate(firsts):
            if choice != first:
                values = (written(axis.choices[place].plain()) for place in (choice, first))
                message = f"{axis.key}: in {GRID}, {' makes the same trial as '.join(values)}, which runs once"
                notices.append(Finding(axis.choices[choice].place, message))
    return kept, notices


def _firsts(names: Sequence[str], indices: Sequence[tuple[int, ...]], number: int) -> list[int]:
    """For each choice of an axis, return the first one with equal experiments for all choices of other axes."""
    experiments: dict[int, list[str]] = {}
    for point, name in zip(indices, names, strict=True):
        experiments.setdefault(point[number], []).append(name)
    first_of: dict[tuple[str, ...], int] = {}
    return [first_of.setdefault(tuple(experiments[choice]), choice) for choice in sorted(experiments)]
