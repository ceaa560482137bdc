"""The texts of ``explain`` and the page of keys about keys, and of ``explain`` about metrics, samplers and the like."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Any, Final

from rlexp.config.keys.agents import AGENTS
from rlexp.config.keys.experiment import NUM_SEEDS
from rlexp.config.keys.fields import KeyGroup
from rlexp.config.keys.key_table import Key, KeyName, flat_keys_of_optimizer, key_table
from rlexp.config.keys.metrics import KNOWN_METRICS, METRICS, STOP_METRICS, current_metric
from rlexp.config.keys.search import SCHEDULERS
from rlexp.config.reference.hints import first_words_meant, nearest_of_both, words_meant
from rlexp.config.rllib.names import Absent, absent_keys, computed_keys, old_groups, renamed_keys
from rlexp.config.yaml.reader import to_yaml


@dataclass(frozen=True)
class KeyReference:
    """One key, for all agents."""

    path: KeyName
    expects: str
    """What it expects, with the agents in parentheses if they differ."""
    defaults: Mapping[str, Any]
    """Defaults by agent; agents that lack the key are left out."""
    required: bool
    keys: Mapping[str, Key]
    """The key of each agent."""
    spellings: tuple[str, ...]
    """Its other names in files of RLlib."""
    is_group: bool

    @property
    def meaning(self) -> str:
        """Its meaning; if agents differ, each text after its agents."""
        agents = _agents_by_text({run: key.meaning for run, key in self.keys.items()})
        return next(iter(agents)) if len(agents) == 1 else " ".join(f"{runs}: {text}" for text, runs in agents.items())

    @property
    def dotted(self) -> str:
        """The key in the form of an override."""
        return ".".join(self.path)


@dataclass(frozen=True)
class OldKey:
    """A key of RLlib that rlexp does not have."""

    dotted: str
    says: str
    """What happens to it, as the end of a sentence."""


@cache
def key_references() -> tuple[KeyReference, ...]:
    """Return every key of every agent, in the order of ``key_paths``."""
    return tuple(key_reference(path) for path in key_paths())


def key_paths() -> tuple[KeyName, ...]:
    """Return the paths of the keys of all agents, in the models' order, the keys beside ``config`` first."""
    paths = dict.fromkeys(path for run in AGENTS for path in key_table(run))
    return tuple(sorted(paths, key=lambda path: path[0] == "config"))


def key_reference(path: KeyName) -> KeyReference:
    """Return the key with a path."""
    keys = {run: key_table(run)[path] for run in AGENTS if path in key_table(run)}
    first = next(iter(keys.values()))
    defaults = {run: key.default for run, key in keys.items()}
    spellings = tuple(_spellings().get(path, ()))
    expected = by_agents({run: key.expects for run, key in keys.items()})
    expects = f"one of {', '.join(AGENTS)}" if path == ("run",) else expected
    return KeyReference(path, expects, defaults, first.required, keys, spellings, first.is_group)


def by_agents(texts: Mapping[str, str]) -> str:
    """Return a text that is equal for all agents, or each text with its agents: ``0 (DQN), 32 (APEX), 2 (PPO)``."""
    agents = _agents_by_text(texts)
    return next(iter(agents)) if len(agents) == 1 else ", ".join(f"{text} ({runs})" for text, runs in agents.items())


def shown_default(default: Any) -> str:
    """Return a default as in a file."""
    if isinstance(default, KeyGroup):
        default = default.model_dump(mode="json", by_alias=True)
    if isinstance(default, tuple):
        default = list(default)
    return to_yaml({"x": default}).removeprefix("x:").strip() if default != {} else "{}"


def _agents_by_text(texts: Mapping[str, str]) -> Mapping[str, str]:
    agents: dict[str, list[str]] = {}
    for run, text in texts.items():
        agents.setdefault(text, []).append(run)
    return {text: ", ".join(runs) for text, runs in agents.items()}


@cache
def _spellings() -> Mapping[KeyName, Iterable[str]]:
    """Return the other spellings of keys, each once."""
    spellings: dict[KeyName, dict[str, None]] = {}
    for run in AGENTS:
        flat = {("config", "optimizer", name): ("config", name) for name in flat_keys_of_optimizer(run)}
        for new, old in [*flat.items(), *((new, old) for old, new in renamed_keys(run).items())]:
            spellings.setdefault(new, {})[".".join(old)] = None
    spellings.setdefault(("num_samples",), {})[NUM_SEEDS] = None
    for old, computed in computed_keys().items():
        for new in computed:
            spellings.setdefault(new, {})[".".join(old)] = None
    return spellings


def find_keys(name: str) -> tuple[KeyReference, ...]:
    """Return the keys with a name: a path, the end of a path, or another spelling."""
    wanted = tuple(name.split("."))
    exact = [key for key in key_references() if wanted in (key.path, key.path[1:])]
    if wanted == (NUM_SEEDS,):
        exact = [_number_of_seeds(), *exact]
    ending = [key for key in key_references() if key.path[-len(wanted) :] == wanted]
    return tuple(exact or ending or _spelled(wanted, from_the_start=True) or _spelled(wanted, from_the_start=False))


def _number_of_seeds() -> KeyReference:
    """Return ``num_samples`` under the name that rlexp writes, if no ``search`` gives it another meaning."""
    key = key_reference(("num_samples",))
    others = (*key.path, *(name for name in key.spellings if name != NUM_SEEDS))
    return replace(key, path=(NUM_SEEDS,), spellings=others)


def _spelled(wanted: KeyName, from_the_start: bool) -> list[KeyReference]:
    """Return the keys with a spelling that equals or ends in ``wanted``; ``config`` may be left out."""
    found = []
    for key in key_references():
        spellings = [tuple(spelling.split(".")) for spelling in key.spellings]
        if any(wanted in (path, path[1:]) if from_the_start else path[-len(wanted) :] == wanted for path in spellings):
            found.append(key)
    return found


def find_old_key(name: str) -> OldKey | None:
    """Return what happens to a key that rlexp does not have."""
    wanted = tuple(name.split("."))
    found: dict[KeyName, str] = {}
    for absent in (absent for run in AGENTS for absent in absent_keys(run)):
        found.setdefault(absent.path, _says(absent))
    for group in sorted(old_groups()):
        found.setdefault(group, "is a mapping of RLlib; rlexp explain has its keys")
    path = min((path for path in found if path[-len(wanted) :] == wanted), key=len, default=None)
    return None if path is None else OldKey(".".join(path), found[path])


def _says(absent: Absent) -> str:
    if not absent.is_feature:
        return f"has no effect here: {absent.reason}"
    hint = f"; {absent.hint}" if absent.hint else ""
    return f"is not supported by rlexp: {absent.reason}{hint}"


def nearest_name(name: str) -> str | None:
    """Return the name that is spelled most like an unknown one: a key, if that has groups of the same, or a value."""
    *group, word = name.split(".")
    paths = [
        path for key in key_references() for path in (key.path, *(tuple(each.split(".")) for each in key.spellings))
    ]
    if group:
        inside = {path[-1]: ".".join((*group, path[-1])) for path in paths if path[:-1][-len(group) :] == tuple(group)}
        if inside:
            return nearest_of_both(word, inside, {})
    near = [*(key.path[-1] for key in key_references()), *(value.name for value in named_values())]
    far = {**{path[-1]: path[-1] for path in paths}, **first_words_meant()}
    return nearest_of_both(word, dict(zip(near, near, strict=True)), far)


@dataclass(frozen=True)
class NamedValue:
    """A name that a file may have in place of a value."""

    name: str
    kind: str
    """``metric``, ``sampler`` ..."""
    meaning: str
    example: str
    """A line of a file that uses it; empty if it is only reported."""


_OTHERS: Final[Mapping[str, tuple[str, str, str]]] = MappingProxyType(
    {
        "grid_search": (
            "grid",
            "lr: {grid_search: [1e-3, 1e-4]}",
            "Every value of the list becomes a trial, crossed with all other grids. It may replace any value, and "
            "rlexp run trains all of them; rlexp sweep ranks them.",
        ),
        "sample_from": (
            "sampler",
            'lr: {sample_from: "lambda spec: random.uniform(0, 1)"}',
            "RLlib's spelling of a sampler, as Python text. Only a single call of a sampler is understood; nothing is "
            "executed.",
        ),
        "choice": (
            "sampler",
            "n_step: {choice: [1, 3, 5]}",
            "One value of a list, each equally likely. Samplers in a value are drawn only if the value is drawn.",
        ),
        "uniform": ("sampler", "gamma: {uniform: [0.9, 0.999]}", "A number between low and high."),
        "loguniform": (
            "sampler",
            "lr: {loguniform: [1e-5, 1e-2]}",
            "A number between low and high whose logarithm is uniform: for learning rates and the like.",
        ),
        "quniform": ("sampler", "gamma: {quniform: [0.9, 0.99, 0.01]}", "A multiple of q between low and high."),
        "randint": ("sampler", "n_step: {randint: [1, 6]}", "A whole number from low to high - 1."),
        "lograndint": (
            "sampler",
            "train_batch_size: {lograndint: [16, 513]}",
            "A whole number from low to high - 1 whose logarithm is uniform.",
        ),
        "randn": (
            "sampler",
            "gamma: {randn: [0.95, 0.01]}",
            "A normally distributed number with this mean and standard deviation.",
        ),
        "grid": ("searcher", "search: {searcher: grid}", "Tries every point of the grids once."),
        "random": (
            "searcher",
            "search: {searcher: random, num_samples: 20}",
            "Draws num_samples points at random, at each point of the grids.",
        ),
        "optuna": (
            "searcher",
            "search: {searcher: optuna, num_samples: 20}",
            "Chooses each point by a sampler of Optuna (search.optuna.sampler), from the scores so far. "
            "Needs pip install 'rlexp[sweep]'.",
        ),
        **{name: ("scheduler", options.EXAMPLE, options.MEANING) for name, options in SCHEDULERS.items()},
    }
)
"""Kind, example and meaning."""


def named_values() -> Iterator[NamedValue]:
    """Yield all of them."""
    for name, (kind, example, meaning) in _OTHERS.items():
        yield NamedValue(name, kind, meaning, example)
    for name, metric in METRICS.items():
        yield NamedValue(name, "metric", metric.meaning, _example(name))


def find_named_value(name: str) -> NamedValue | None:
    """Return the meaning of a name, or of a metric's old name."""
    return next((each for each in named_values() if each.name == current_metric(name)), None)


def find_metric_by_end(name: str) -> NamedValue | None:
    """Return the metric whose name ends in ``/name``: ``replay_fill`` is ``info/replay_fill``."""
    return next((each for each in named_values() if each.name.endswith(f"/{name}")), None)


def _example(metric: str) -> str:
    if metric in STOP_METRICS:
        return f"stop: {{{metric}: 100}}"
    return f"checkpoint_score_attr: {metric}" if metric in KNOWN_METRICS else ""


_IN_A_NAME: Final = 8
_IN_THE_FIRST_SENTENCE: Final = 2


@dataclass(frozen=True)
class Match:
    """What ``explain`` can explain, found by what it means."""

    name: str
    sentence: str


def search_meanings(text: str) -> list[Match]:
    """Return the keys and named values whose name or meaning has all words of ``text``, the best first.

    Keys that other libraries call so come before them.
    """
    words = [_stem(word) for word in re.findall(r"[a-z0-9]+", text.lower())]
    if not words:
        return []
    scored: dict[str, tuple[int, str]] = {}
    meant = words_meant(text.lower().replace("-", "_").replace(" ", "_"))
    for key in key_references():
        bonus = 100 - meant.index(key.path[-1]) if key.path[-1] in meant else 0
        scored[key.dotted] = (bonus + _score(words, key.path[-1], key.meaning), key.meaning)
    for value in named_values():
        scored.setdefault(value.name, (_score(words, value.name, value.meaning), value.meaning))
    found = sorted((name for name in scored if scored[name][0]), key=lambda name: -scored[name][0])
    return [Match(name, first_sentence(scored[name][1])) for name in found]


def _score(words: Iterable[str], name: str, meaning: str) -> int:
    """Return how well a name and its meaning fit; 0 unless each word is in one of them."""
    in_name = [_stem(word) for word in re.findall(r"[a-z0-9]+", name.lower())]
    sentence = first_sentence(meaning).lower()
    score = 0
    for word in words:
        begins = re.compile(rf"\b{re.escape(word)}")
        if word in in_name:
            score += _IN_A_NAME
        elif begins.search(sentence):
            score += _IN_THE_FIRST_SENTENCE
        elif begins.search(meaning.lower()):
            score += 1
        else:
            return 0
    return score


def _stem(word: str) -> str:
    """Return a word without the ending of its plural."""
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


def first_sentence(text: str) -> str:
    """Return the first sentence of a meaning, on one line."""
    return re.split(r"(?<=\.)\s", " ".join(text.replace("``", "").split()), maxsplit=1)[0]
