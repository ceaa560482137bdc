"""Draft: one entry of a file, arranged, overridden and validated in every corner of its grid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlexp.config import hints
from rlexp.config.experiment import AGENTS, Experiment
from rlexp.config.layout import arranged
from rlexp.config.nodes import Finding, Node, Place, shown, shown_key
from rlexp.config.overrides import Override, of_agent, overridden
from rlexp.config.search_space import Axis, corners, find_axes
from rlexp.config.validation import validated

RUN = "run"


@dataclass(frozen=True)
class Draft:
    """An entry that is right in all its corners; what is left is to give its trials their seeds and names."""

    name: str
    place: Place
    axes: tuple[Axis, ...]
    corners: tuple[Experiment, ...]
    """The first choice on every axis, and so on; the last axis varies fastest."""

    @property
    def number_of_trials(self) -> int:
        """Corners times samples."""
        return len(self.corners) * self.corners[0].num_samples


def draft_of(name: str, entry: Node, overrides: Sequence[Override]) -> tuple[Draft | None, tuple[Finding, ...]]:
    """Return the entry ``name`` of a file with the overrides laid over it; None where anything is wrong."""
    if not isinstance(entry.value, Mapping):
        message = f"experiment {shown_key(name)} must be a group of keys, got {shown(entry.plain())}"
        return None, (Finding(entry.place, message, "it needs run and env at least"),)
    run = _agent(entry, of_agent(overrides) or entry.child(RUN))
    if isinstance(run, Finding):
        return None, (run, *_wrong_beside_config(name, entry))
    experiment, findings = _assembled(entry.without(RUN), overrides, run)
    axes, malformed = find_axes(experiment)
    findings += (*_named_inside(entry), *malformed)
    if malformed:
        return None, findings
    valid: list[Experiment] = []
    for corner in corners(experiment, axes):
        concrete, wrong = validated(name, corner, run)
        findings += wrong
        valid.extend([concrete] if concrete else [])
    return (None if findings else Draft(name, entry.key_place, axes, tuple(valid))), findings


def _assembled(entry: Node, overrides: Sequence[Override], run: str) -> tuple[Node, tuple[Finding, ...]]:
    """Return the entry with its keys in place and the overrides laid over them."""
    experiment, misplaced = arranged(entry, run)
    experiment, unplaced = overridden(experiment, overrides, run)
    experiment, contradictory = arranged(experiment, run)
    return experiment, (*misplaced, *unplaced, *contradictory)


def _agent(entry: Node, run: Node | None) -> str | Finding:
    """Return the agent's name as the models spell it, or what is wrong with it."""
    if run is None:
        return Finding(entry.key_place, "run is missing", f"write run: {' or '.join(AGENTS)}")
    if not isinstance(run.value, str):
        return Finding(run.place, f"run must be an agent's name, got {shown(run.plain())}")
    name = run.value.upper()
    if name in AGENTS:
        return name
    origin = "an algorithm of RLlib that does not run here" if name in hints.RLLIB_ALGORITHMS else "no agent"
    return Finding(run.place, f"run: {shown_key(run.value)} is {origin}", hints.for_unknown_agent(name))


def _wrong_beside_config(name: str, entry: Node) -> tuple[Finding, ...]:
    """Return what is wrong with the keys that every agent's experiments have."""
    run = next(iter(AGENTS))
    experiment, _ = arranged(entry.without(RUN, "config"), run)
    axes, malformed = find_axes(experiment)
    if malformed:
        return malformed
    return tuple(wrong for corner in corners(experiment, axes) for wrong in validated(name, corner, run)[1])


def _named_inside(entry: Node) -> tuple[Finding, ...]:
    inside = entry.child("name")
    if inside is None:
        return ()
    return (Finding(inside.key_place, "name is not a key of an experiment", "its name is the key it stands under"),)
