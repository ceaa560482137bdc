"""The ``search`` section in the words of other tools, or missing although the command is a search."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from rlexp.config.space.grid import SEARCH
from rlexp.config.translation import Translation
from rlexp.config.yaml.nodes import Node

_WORDS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "scheduler": {
            "async_hyperband": "asha",
            "asynchyperband": "asha",
            "asynchyperbandscheduler": "asha",
            "ashascheduler": "asha",
            "hyperband": "asha",
            "median_stopping": "median",
            "median_stopping_rule": "median",
            "medianstoppingrule": "median",
            "population_based_training": "pbt",
            "populationbasedtraining": "pbt",
            "fifoscheduler": "fifo",
        },
        "searcher": {
            "variant_generator": "random",
            "basicvariantgenerator": "random",
            "basic_variant": "random",
            "optunasearch": "optuna",
        },
    }
)


def use_search_section(translation: Translation, is_sweep: bool) -> None:
    """Make the section where a command asks for it, and bring what belongs there into it."""
    experiment = translation.experiment
    section = experiment.child(SEARCH)
    if section is None and is_sweep:
        translation.experiment = experiment.with_value({**experiment.entries(), SEARCH: experiment.with_value({})})
    elif section is None:
        return
    for key, words in _WORDS.items():
        node = translation.find(f"{SEARCH}.{key}")
        if node is not None and isinstance(node.value, str):
            _respell(translation, f"{SEARCH}.{key}", node, node.value, words)
    _move_samples(translation)


def _respell(translation: Translation, key: str, node: Node, word: str, words: Mapping[str, str]) -> None:
    known = words.get(word.lower(), word.lower())
    if known != word:
        translation.put(key, known, node)
    if word.lower() in words:
        translation.notice(node, f"{key}: {word} is {known} now")


def _move_samples(translation: Translation) -> None:
    """Beside a ``search`` section, ``num_samples`` is what Tune means by it: configurations to try."""
    node = translation.take("num_samples")
    if node is None or node.value == 1:
        return
    if not translation.put_unless_given(f"{SEARCH}.num_samples", node, node):
        message = "num_samples is given twice with different values: beside search and under it"
        translation.problem(node, message, "keep search.num_samples")
