"""The texts of ``explain`` and the page of keys about keys, and of ``explain`` about metrics, samplers and the like.

Also what a shell may add to a partly typed key: the keys below a group, and values that have names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, Final

from rlexp.config.keys.agents import AGENTS
from rlexp.config.keys.fields import KeyGroup
from rlexp.config.keys.key_table import Key, KeyName, flat_keys_of_optimizer, key_table
from rlexp.config.keys.metrics import KNOWN_METRICS, METRICS, STOP_METRICS, current_metric
from rlexp.config.keys.search import SCHEDULERS
from rlexp.config.reference.hints import nearest_of
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
    """Return every key of every agent, in the models' order, the keys beside ``config`` first."""
    paths = dict.fromkeys(path for run in AGENTS for path in key_table(run))
    return tuple(_reference(path) for path in sorted(paths, key=lambda path: path[0] == "config"))


def _reference(path: KeyName) -> KeyReference:
    keys = {run: key_table(run)[path] for run in AGENTS if path in key_table(run)}
    first = next(iter(keys.values()))
    defaults = {run: key.default for run, key in keys.items()}
    spellings = tuple(dict.fromkeys(_spellings(path)))
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


def _spellings(path: KeyName) -> Iterator[str]:
    for run in AGENTS:
        if path[:2] == ("config", "optimizer") and path[-1] in flat_keys_of_optimizer(run):
            yield f"config.{path[-1]}"
        yield from (".".join(old) for old, new in renamed_keys(run).items() if new == path)
    yield from (".".join(old) for old, new in computed_keys().items() if path in new)


def find_keys(name: str) -> tuple[KeyReference, ...]:
    """Return the keys with a name: a path, the end of a path, or another spelling."""
    wanted = tuple(name.split("."))
    exact = [key for key in key_references() if key.path == wanted or key.path[1:] == wanted]
    ending = [key for key in key_references() if key.path[-len(wanted) :] == wanted]
    return tuple(exact or ending or _spelled(wanted, from_the_start=True) or _spelled(wanted, from_the_start=False))


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
    for absent in (absent for run in AGENTS for absent in absent_keys(run)):
        if absent.path[-len(wanted) :] == wanted:
            return OldKey(".".join(absent.path), _says(absent))
    group = next((group for group in sorted(old_groups()) if group[-len(wanted) :] == wanted), None)
    return OldKey(".".join(group), "is a mapping of RLlib; rlexp explain has its keys") if group else None


def _says(absent: Absent) -> str:
    if not absent.is_feature:
        return f"has no effect here: {absent.reason}"
    hint = f"; {absent.hint}" if absent.hint else ""
    return f"is not supported by rlexp: {absent.reason}{hint}"


def nearest_key(name: str) -> str | None:
    """Return the key that is spelled most like an unknown name."""
    return nearest_of(name.rpartition(".")[2], [key.path[-1] for key in key_references()])


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


_CHOICES: Final = re.compile(r"one of (.+)")
_SEPARATORS: Final = re.compile(r", | or ")
_CONFIG: Final = "config."
_STOP: Final = "stop."
_LONGEST_MEANING: Final = 60
"""Most characters: typer breaks lines of 80."""
_EXAMPLE: Final = "100000"


@dataclass(frozen=True)
class Candidate:
    """A possible completion of a word."""

    text: str
    meaning: str = ""
    """One sentence, or its beginning."""


def overrides_from(typed: str, agents: Iterable[str] = ()) -> list[Candidate]:
    """Return the completions of an override that begins with ``typed``: ``config.`` or ``lr=`` and so on.

    ``agents``: names that ``find_agent`` returned; if empty, the keys of all our agents. There is a single candidate
        only if it completes the word, as a shell then adds a space. So one group alone becomes its keys, and one key
        alone becomes two candidates, with a value.
    """
    keys = _keys(agents)
    dotted, equals, _ = typed.partition("=")
    if equals:
        return [each for each in _with_values(keys, dotted) if each.text.startswith(typed)]
    while True:
        found = _next_level(keys, typed)
        if len(found) != 1:
            return found
        if not found[0].text.endswith("."):
            return _with_values(keys, found[0].text.removesuffix("="))
        typed = found[0].text


def explained_from(typed: str) -> list[Candidate]:
    """Return words of ``rlexp explain`` that begin with ``typed``: agents, keys by name or path, metrics, values."""
    names = dict.fromkeys(AGENTS, "An agent: all its keys.")
    for key in key_references():
        meaning = _sentence(key.meaning)
        names.setdefault(key.path[-1], meaning)
        names.setdefault(key.dotted, meaning)
    names |= {value.name: _sentence(value.meaning) for value in named_values() if value.name not in names}
    return [Candidate(name, meaning) for name, meaning in names.items() if name.startswith(typed)]


def _keys(agents: Iterable[str]) -> dict[str, Key | None]:
    """Return settable keys by dotted path; keys of ``config`` also without it. None: a metric of ``stop``."""
    wanted = set(agents)
    runs = [*(run for run in AGENTS if run in wanted), *sorted(wanted - AGENTS.keys())] or list(AGENTS)
    keys: dict[str, Key | None] = {}
    for run in runs:
        groups = {path[:-1] for path in key_table(run)} | {("stop",)}
        leaves = {path: key for path, key in key_table(run).items() if path not in groups}
        keys = {**{".".join(path): key for path, key in leaves.items()}, **keys}
    keys |= dict.fromkeys((f"{_STOP}{metric}" for metric in STOP_METRICS), None)
    return keys | {dotted.removeprefix(_CONFIG): key for dotted, key in keys.items() if dotted.startswith(_CONFIG)}


def _next_level(keys: Mapping[str, Key | None], typed: str) -> list[Candidate]:
    """Return the keys that begin with ``typed``, to the next dot; short keys of ``config`` only if it is not empty."""
    found: dict[str, Candidate] = {}
    for dotted, key in keys.items():
        is_short = key is not None and dotted != ".".join(key.path)
        if not dotted.startswith(typed) or (is_short and not typed):
            continue
        level, dot, _ = dotted[len(typed) :].partition(".")
        text = f"{typed}{level}{dot or '='}"
        found.setdefault(text, Candidate(text, "" if dot else _meaning(dotted, key)))
    return list(found.values())


def _with_values(keys: Mapping[str, Key | None], dotted: str) -> list[Candidate]:
    """Return a key with its default, and with each value that has a name; a metric with an example."""
    if dotted not in keys:
        return []
    key = keys[dotted]
    values = {"": _meaning(dotted, key)} | ({_EXAMPLE: "for example"} if key is None else _values(key))
    return [Candidate(f"{dotted}={value}", meaning) for value, meaning in values.items()]


def _values(key: Key) -> dict[str, str]:
    default = _as_typed(key.default)
    return dict.fromkeys(_named(key), "") | ({} if key.required else {default: "default"})


def _meaning(dotted: str, key: Key | None) -> str:
    if key is not None:
        return _sentence(key.meaning)
    metric = METRICS.get(dotted.removeprefix(_STOP))
    return _sentence(metric.meaning) if metric else ""


def _as_typed(default: object) -> str:
    text = json.dumps(default, default=str, separators=(",", ":"))
    return text.strip('"')


def _named(key: Key) -> Iterator[str]:
    choices = _CHOICES.search(key.expects)
    if choices:
        yield from _SEPARATORS.split(choices[1])
    elif "true or false" in key.expects:
        yield from ("true", "false")


def _sentence(text: str) -> str:
    """Return the beginning of a text as one line, as some shells take a second line for a word to complete."""
    first = re.split(r"(?<=\.)\s", " ".join(text.replace("``", "").split()), maxsplit=1)[0]
    return first if len(first) <= _LONGEST_MEANING else f"{first[: _LONGEST_MEANING - 1].rstrip()}…"
