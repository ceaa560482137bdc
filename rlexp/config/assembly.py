"""Assembly: one entry of a file in today's spelling, its keys in place, with the overrides and its age's defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlexp.config.keys.key_table import KeyName, key_table
from rlexp.config.overrides import Override, overridden
from rlexp.config.rllib_compat.ages import Age, age_of, leave_out_ignored, use_defaults
from rlexp.config.rllib_compat.layout import arranged
from rlexp.config.rllib_compat.literals import read_yaml_1_1_words
from rlexp.config.rllib_compat.names import use_current_names
from rlexp.config.translation import Translation
from rlexp.config.yaml.nodes import Finding, Node, dotted, shown_key, written


@dataclass(frozen=True)
class Assembled:
    """An entry whose grids are still in place."""

    translation: Translation
    age: Age | None
    """The releases of RLlib that its spelling belongs to; None where it is rlexp's own, or tells nothing."""
    defaults: frozenset[KeyName]
    """The keys that it does not give, and that have the default of its age."""

    def notices_of(self, name: str, variant: Node) -> tuple[Finding, ...]:
        """Return what its user should know; one notice names the keys that have the default of the age in a variant."""
        found = ((path, variant.find(path)) for path in sorted(self.defaults))
        used = {path: node for path, node in found if node is not None}
        return (*(self._notice_of_defaults(name, used) if used else ()), *self.translation.notices)

    def _notice_of_defaults(self, name: str, used: Mapping[KeyName, Node]) -> tuple[Finding, ...]:
        table = key_table(self.translation.run)
        theirs = ", ".join(f"{dotted(path)}: {written(node.plain())}" for path, node in used.items())
        ours = ", ".join(f"{dotted(path)}: {written(table[path].default)}" for path in used)
        message = (
            f"the spelling of {shown_key(name)} is that of RLlib {self.age}. Keys that it does not give have the "
            f"defaults of these releases: {theirs}. To use rlexp's defaults, write {ours}"
        )
        return (Finding(self.translation.experiment.key_place, message),)


def assembled(entry: Node, overrides: Sequence[Override], run: str) -> Assembled:
    """Return an entry in today's spelling, with the overrides and, where its file proves an age, the defaults of that.

    What the command line says belongs to no age.
    """
    age = age_of(entry, run)
    translation = Translation(entry, run)
    read_yaml_1_1_words(translation)
    use_current_names(translation)
    translation.experiment, misplaced = arranged(translation.experiment, run)
    if age is not None:
        leave_out_ignored(translation, age)
    translation.experiment, unplaced = overridden(translation.experiment, overrides, run)
    read_yaml_1_1_words(translation)
    use_current_names(translation)
    translation.experiment, contradictory = arranged(translation.experiment, run)
    translation.problems += [*misplaced, *unplaced, *contradictory]
    defaults = use_defaults(translation, age) if age is not None else frozenset()
    return Assembled(translation, age, defaults)
