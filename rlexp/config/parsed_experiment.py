"""One entry of a file in today's spelling, with the overrides, validated in every variant of its grid."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from rlexp.config.assembly import Assembled, agent_of, assembled
from rlexp.config.command_line import LoadOptions, Override
from rlexp.config.keys.agents import AGENTS
from rlexp.config.keys.experiment import Experiment
from rlexp.config.keys.key_table import key_table
from rlexp.config.space.grid import Axis, find_axes, variants
from rlexp.config.validation import conflict_findings, validated
from rlexp.config.variants.axes import (
    Computed,
    computed_values,
    located,
)
from rlexp.config.variants.space import Space
from rlexp.config.variants.variant import Variant, variants_of
from rlexp.config.yaml.nodes import Finding, Node, Place, dotted, shown, shown_key, written


@dataclass(frozen=True)
class ParsedExperiment:
    """An entry that is right in all its variants; what is left is to give its trials their seeds and names."""

    name: str
    place: Place
    axes: tuple[Axis, ...]
    variants: tuple[Experiment, ...]
    """The first choice on every axis, and so on; the last axis varies fastest."""
    written: tuple[Node, ...]
    """The same variants with no more keys than the file has, in today's spelling."""
    space: Space
    """What of it is searched, and how to make an experiment of any point of it."""
    computed: Computed
    notices: tuple[Finding, ...]

    @cached_property
    def distinct(self) -> tuple[int, ...]:
        """The first variant of each kind: others that differ from it only in keys without effect do the same."""
        first = {variant.essence: number for number, variant in reversed(list(enumerate(self.variants)))}
        return tuple(sorted(first.values()))

    @property
    def number_of_trials(self) -> int:
        """Variants times samples; of a sweep, the trials that it makes at most."""
        if self.variants[0].is_sweep:
            return self.space.number_of_configurations(self.variants[0].search) * self.variants[0].search.num_seeds
        return len(self.variants) * self.variants[0].num_samples


def parsed_experiment_of(
    name: str, entry: Node, overrides: Sequence[Override], options: LoadOptions
) -> tuple[ParsedExperiment | None, tuple[Finding, ...]]:
    """Return the entry ``name`` of a file with the overrides applied; None where anything is wrong."""
    if not isinstance(entry.value, Mapping):
        message = f"experiment {shown_key(name)} must be a mapping, got {shown(entry.plain())}"
        return None, (Finding(entry.place, message, "it needs run and env at least"),)
    run = agent_of(entry, overrides, options.packaged_agents)
    if isinstance(run, Finding):
        return None, (run, *_wrong_beside_config(name, entry, options.most_trials))
    assembly = assembled(entry, overrides, run, options.is_sweep, name)
    axes, malformed = find_axes(assembly.translation.experiment, options.most_trials)
    findings = (*assembly.translation.problems, *_named_inside(entry), *malformed)
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
    unused = tuple(_unused_resources(parsed))
    return (None if unused else parsed), unused


def _located(
    name: str, entry: Node, assembly: Assembled, axes: tuple[Axis, ...], made: Sequence[Variant], options: LoadOptions
) -> tuple[ParsedExperiment, tuple[Finding, ...]]:
    """Return the experiment of an entry that is right in all its variants, and the axes that cannot be searched."""
    experiment, run = assembly.translation.experiment, assembly.translation.run
    valid = tuple(variant.experiment for variant in made if variant.experiment)
    computed = computed_values(experiment, valid)
    placed, unplaced = located(axes, valid, computed)
    space = Space(name, run, experiment, axes, placed, assembly.age, options)
    wrong = (*unplaced, *(space.findings(valid[0]) if valid[0].is_sweep else ()))
    of_variants = (notice for variant in made for notice in variant.notices)
    notices = (*_notice_of_defaults(name, assembly, made[0].written), *assembly.translation.notices, *of_variants)
    notices += tuple(space.notices(valid[0]))
    written = tuple(variant.written for variant in made)
    return ParsedExperiment(
        name, entry.key_place, placed, valid, written, space, computed, tuple(dict.fromkeys(notices))
    ), wrong


def _notice_of_defaults(name: str, assembly: Assembled, variant: Node) -> Iterator[Finding]:
    """Yield a notice that names the keys that have the default of the file's age in a variant."""
    found = ((path, variant.find(path)) for path in sorted(assembly.defaults))
    used = {path: node for path, node in found if node is not None}
    if not used:
        return
    table = key_table(assembly.translation.run)
    theirs = ", ".join(f"{dotted(path)}: {written(node.plain())}" for path, node in used.items())
    ours = ", ".join(f"{dotted(path)}: {written(table[path].default)}" for path in used)
    message = (
        f"the spelling of {shown_key(name)} is that of RLlib {assembly.age}. Keys that it does not give have the "
        f"defaults of these releases: {theirs}. To use rlexp's defaults, write {ours}"
    )
    yield Finding(assembly.translation.experiment.key_place, message)


def _adjusted(parsed: ParsedExperiment, options: LoadOptions) -> ParsedExperiment:
    """Return the experiment with its variants as the caller wants them, and notices of what that changed."""
    if options.adjust is None:
        return parsed
    adjusted = [options.adjust(variant) for variant in parsed.variants]
    changes = dict.fromkeys(change for _, texts in adjusted for change in texts)
    notices = (*parsed.notices, *(Finding(parsed.place, f"{parsed.name}: {change}") for change in changes))
    return replace(parsed, variants=tuple(experiment for experiment, _ in adjusted), notices=notices)


def _unused_resources(parsed: ParsedExperiment) -> Iterator[Finding]:
    """Yield what a variant would reserve, but its agent cannot use, each once."""
    yield from dict.fromkeys(
        finding
        for experiment, written in zip(parsed.variants, parsed.written, strict=True)
        for finding in conflict_findings(experiment.config.unused_resources(), written, ("config",))
    )


def _wrong_beside_config(name: str, entry: Node, most_variants: int) -> tuple[Finding, ...]:
    """Return what is wrong with the keys that every agent's experiments have."""
    translation = assembled(entry.without("config"), (), next(iter(AGENTS))).translation
    axes, malformed = find_axes(translation.experiment, most_variants)
    if malformed:
        return malformed
    nodes = variants(translation.experiment, axes)
    return tuple(wrong for node in nodes for wrong in validated(name, node, translation.run)[1])


def _named_inside(entry: Node) -> tuple[Finding, ...]:
    inside = entry.child("name")
    if inside is None:
        return ()
    hint = "the name of an experiment is the key above it in the file"
    return (Finding(inside.key_place, "unknown key name", hint),)
