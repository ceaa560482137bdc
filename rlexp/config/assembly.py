"""Assembly: one entry of a file in today's spelling, its keys in place, with the overrides."""

from __future__ import annotations

from collections.abc import Sequence

from rlexp.config.dialects import use_current_names
from rlexp.config.layout import arranged
from rlexp.config.nodes import Node
from rlexp.config.overrides import Override, overridden
from rlexp.config.translation import Translation
from rlexp.config.yaml_1_1 import read_yaml_1_1_words


def assembled(entry: Node, overrides: Sequence[Override], run: str) -> Translation:
    """Return an entry in today's spelling, with the overrides; its grids are still in place."""
    translation = Translation(entry, run)
    read_yaml_1_1_words(translation)
    use_current_names(translation)
    translation.experiment, misplaced = arranged(translation.experiment, run)
    translation.experiment, unplaced = overridden(translation.experiment, overrides, run)
    read_yaml_1_1_words(translation)
    use_current_names(translation)
    translation.experiment, contradictory = arranged(translation.experiment, run)
    translation.problems += [*misplaced, *unplaced, *contradictory]
    return translation
