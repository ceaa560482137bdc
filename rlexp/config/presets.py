"""Presets: settings for an agent and an env without a file, as the text of an experiment that can be edited.

An example for just this agent and env has them, or else ``presets.yaml``: general settings for the agent and the kind
of env. What the command line says is written into the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal

from rlexp.config.command_line import LoadOptions, Override, parse_overrides
from rlexp.config.convert import converted
from rlexp.config.examples import MEASURED, UNSEEN, Example, examples
from rlexp.config.keys.agents import built_in_base
from rlexp.config.keys.env_ids import (
    current_env,
    has_continuous_actions,
    has_discrete_actions,
    has_images,
    is_minatar,
)
from rlexp.config.keys.fields import LARGEST_COUNT, whole
from rlexp.config.parsed_experiment import ParsedExperiment
from rlexp.config.translation import node_of
from rlexp.config.variants import data_of, differences
from rlexp.config.yaml.nodes import Node, Place, at
from rlexp.config.yaml.python_values import ExperimentText
from rlexp.config.yaml.reader import parse, to_yaml

Kind = Literal["vector", "continuous", "image", "table"]
"""What an env shows: numbers (and takes one of several actions, or continuous ones), images, the number of a state."""

_GENERAL: Final = Path(__file__).with_name("presets.yaml")
_WORDS: Final[Mapping[Kind, str]] = MappingProxyType(
    {
        "vector": "vector observations",
        "continuous": "vector observations and continuous actions",
        "image": "images",
        "table": "numbered states",
    }
)
_NAME: Final = re.compile(r"^([\w.-]+):(?: *#.*)?$", re.MULTILINE)
_SCHEDULE: Final = re.compile(r"^    lr_schedule: *(\[\[.*\]\])( *#.*)?$", re.MULTILINE)
_EXPLORATION: Final = re.compile(r"^(    (?:epsilon_timesteps|schedule_max_timesteps): *)(\d+)", re.MULTILINE)
_FILTER: Final = re.compile(r"^(    observation_filter: ).*$", re.MULTILINE)
_ITS_REASON: Final = re.compile(r",? and with observations standardised.*(?=\.$)", re.MULTILINE)
_FACTS: Final = re.compile(rf"^# (?:{'|'.join((*MEASURED, UNSEEN))}): .*\n(?:#  +\S.*\n)*", re.MULTILINE)
"""Lines in the head of an example: what was measured with all of its settings."""
_GPUS: Final = re.compile(r"^    num_gpus: *[1-9]", re.MULTILINE)
_GOAL: Final = re.compile(r"^  stop:.*?\bepisode_reward_mean: *(-?[\d.]+)", re.MULTILINE)
_LIMIT: Final = re.compile(r"^  stop:.*?\btimesteps_total: *([\d.e]+)", re.MULTILINE)
_REWARD: Final = "episode_reward_mean"
_STEPS: Final = ("stop", "timesteps_total")
_TABLES: Final = frozenset(
    {
        *("CliffWalking-v1", "CliffWalkingSlippery-v1", "FrozenLake-v1", "FrozenLake8x8-v1", "Taxi-v4"),
        "tabular/CliffWalking-v0",
    }
)
SOLVED: Final[Mapping[str, float]] = MappingProxyType(
    {
        "CartPole-v0": 195.0,
        "CartPole-v1": 475.0,
        "MountainCar-v0": -110.0,
        "MountainCarContinuous-v0": 90.0,
        "Acrobot-v1": -100.0,
        "LunarLander-v3": 200.0,
        "LunarLanderContinuous-v3": 200.0,
        "Taxi-v4": 8.0,
        "BipedalWalker-v3": 300.0,
        "BipedalWalkerHardcore-v3": 300.0,
        "CarRacing-v3": 900.0,
        "FrozenLake-v1": 0.7,
        "FrozenLake8x8-v1": 0.85,
    }
)
"""The mean return at which an env counts as solved: what Gymnasium registers as ``reward_threshold``."""


@dataclass(frozen=True)
class Preset:
    """Settings for an agent and an env."""

    title: str
    """Where they come from: ``the example cartpole-ppo``."""
    text: str
    """An experiment file with one experiment, whose env may be another one of the same kind."""

    def named(self, name: str) -> Preset:
        """Return it with another name of the experiment."""
        key = to_yaml({name: None}).partition(": null")[0]
        return replace(self, text=_NAME.sub(lambda _: f"{key}:", self.text, count=1))


def example_for(agent: str, env: str, has_gpu: bool) -> Preset | None:
    """Return the settings of the example with just this agent and env; None if there is none.

    Several are ranked: first those that were seen to learn, then those that need no GPU or for which the machine
    ``has_gpu``, then those with a goal, then those that are named after the agent, then those for this env alone. A
    goal below the score that solves the env is replaced by that score.
    """
    current = (current_env(env) or (env, {}))[0]
    found = [each for each in examples() if each.agents == (agent,) and current in each.envs and not each.is_sweep]
    read = [(each, each.path.read_text(encoding="utf-8")) for each in found if each.files == (each.path,)]

    def rank(one: tuple[Example, str]) -> tuple[bool, bool, bool, bool, int]:
        example, text = one
        lacks_gpu = not has_gpu and _GPUS.search(text) is not None
        has_name = example.name.endswith(f"-{agent.lower()}")
        return example.unseen is not None, lacks_gpu, _GOAL.search(text) is None, not has_name, len(example.envs)

    single = [(example, text) for example, text in read if len(_NAME.findall(text)) == 1]
    best = min(single, key=rank, default=None)
    if best is None:
        return None
    solved = SOLVED.get(current, float("-inf"))

    def raised(goal: re.Match[str]) -> str:
        return goal[0] if float(goal[1]) >= solved else f"{goal[0].removesuffix(goal[1])}{solved:g}"

    return Preset(f"the example {best[0].name}", _FACTS.sub("", _GOAL.sub(raised, best[1], count=1)))


def general_for(agent: str, env: str, kind: Kind) -> Preset:
    """Return the general settings of an agent for a kind of env; the defaults of an agent of a package."""
    texts, agents = _general_texts(), (agent, built_in_base(agent))
    kinds: tuple[Kind, ...] = (kind, "vector", "continuous")
    known = [(each, like) for each in kinds for like in agents if f"{like}-{each}".lower() in texts]
    name = _run_name(env, agent)
    if not known:
        return Preset(f"the defaults of {agent}", to_yaml({name: {"run": agent, "env": env}}))
    found, like = known[0]
    text, solved = texts[f"{like}-{found}".lower()], SOLVED.get((current_env(env) or (env, {}))[0])
    title = f"{agent} for {_WORDS[found]}"
    if found != kind:
        title += f", as it has none for {_WORDS[kind]}"
        if kind != "continuous":  # images and one-hot vectors need no filter
            text = _FILTER.sub(r"\1NoFilter", _ITS_REASON.sub("", text))
    if solved is not None:
        text = text.replace("  stop: {", f"  stop: {{{_REWARD}: {solved:g}, ", 1)
    return Preset(title, text).named(name)


@cache
def _general_texts() -> Mapping[str, str]:
    """Return the experiments of the file with the general settings, each with the comment above it, by name."""
    _, *blocks = _GENERAL.read_text(encoding="utf-8").strip().split("\n\n")
    return {name[1]: f"{block}\n" for block in blocks if (name := _NAME.search(block))}


def _run_name(env: str, agent: str) -> str:
    """Return what a run is called: ``lunarlander-v3-ppo``; of an env that is a class, after the class."""
    words = re.sub(r"[^a-z0-9]+", "-", env.rpartition(":")[2].lower()).strip("-")
    return f"{words or 'env'}-{agent.lower()}"


def kind_of(env: str, env_config: Mapping[str, Any]) -> Kind | None:
    """Return the kind of an env by its id alone; None if the env itself has to be asked."""
    env, implied = current_env(env) or (env, {})
    env_config = {**implied, **env_config}
    if has_images(env, env_config) or is_minatar(env):
        return "image"
    if env in _TABLES:
        return "table"
    if has_continuous_actions(env, env_config):
        return "continuous"
    return "vector" if has_discrete_actions(env, env_config) else None


def kind_of_spaces(observation_space: str, action_space: str, observation_shape: Sequence[int]) -> Kind:
    """Return the kind of an env by its spaces as they are printed, and the shape of what the agent sees."""
    if len(observation_shape) > 1:
        return "image"
    if observation_space.startswith("Discrete("):
        return "table"
    return "continuous" if action_space.startswith("Box(") else "vector"


def given_env_config(overrides: Sequence[Override]) -> Mapping[str, Any]:
    """Return what overrides give as arguments of the env."""
    given: dict[str, Any] = {}
    for override in overrides:
        path = override.path[1:] if override.path[0] == "config" else override.path
        value = override.value.plain()
        if path == ("env_config",) and isinstance(value, Mapping):
            given.update(value)
        elif len(path) == 2 and path[0] == "env_config":
            given[path[1]] = value
    return given


def layered(preset: Preset, texts: Sequence[str], options: LoadOptions) -> ExperimentText:
    """Return the text of a preset for a reader that lays the overrides ``texts`` and the flags over it.

    Its schedule of the learning rate ends with the training. In a shorter training exploration ends earlier too.
    """
    overrides, _ = parse_overrides(texts, None, options.flags)
    text, given = preset.text, {override.path: override.value.plain() for override in overrides}
    stop = given.get(_STEPS[:1])
    steps = given.get(_STEPS) or (stop.get(_STEPS[1]) if isinstance(stop, Mapping) else None)
    limit = _LIMIT.search(text)
    if limit is not None and isinstance(steps, int | float) and 1 < steps <= LARGEST_COUNT:
        share = steps / float(limit[1])
        text = _SCHEDULE.sub(lambda found: _stretched(found, share), text)
        text = _EXPLORATION.sub(lambda found: f"{found[1]}{round(int(found[2]) * min(share, 1)) or 1}", text)
    return ExperimentText(text, preset.title)


def _stretched(found: re.Match[str], share: float) -> str:
    """Return a schedule over a shorter or longer training."""
    root = parse(found[1], lambda line, column: Place("")).root
    assert root is not None
    points = [[round(float(step) * share), float(rate)] for step, rate in root.plain()]
    return f"    lr_schedule: [{', '.join(f'[{step}, {rate:g}]' for step, rate in points)}]{found[2] or ''}"


def written_out(
    preset: Preset, source: ExperimentText, parsed: ParsedExperiment, adjust: Callable[[Any], Any] | None
) -> ExperimentText:
    """Return a preset as the file of a run: with what the command line says, as ``adjust`` fits it to a machine.

    ``parsed`` is what was read of ``source``, not fitted.
    """
    read = source.read().root
    assert read is not None
    (original,) = read.entries().values()
    written = parsed.written[0]
    if adjust is not None:
        before, (after, _) = parsed.variants[0], adjust(parsed.variants[0])
        now = data_of(after)
        for path in differences(data_of(before), now):
            written = written.put(path, node_of(at(now, path), original))
    experiment = replace(parsed, written=(_placed(written, original, 1), *parsed.written[1:]), notices=())
    head = f"# Settings: {preset.title}. To change them, edit this file, then: rlexp run FILE\n"
    return replace(source, text=head + converted([experiment], source.text))


def _placed(written: Node, original: Node | None, line: int) -> Node:
    """Return what is written with the places of the same keys of the text; others are placed at ``line``.

    New keys come last in their group, but before ``config``.
    """
    line = line if original is None else original.key_place.line
    entries = original.entries() if original is not None else {}
    below = max((child.key_place.line for child in entries.values()), default=line)
    order = sorted(written.entries(), key=lambda key: key == "config")
    value = {key: _placed(written.entries()[key], entries.get(key), below) for key in order}
    place = replace(written.key_place, line=line) if original is None else original.key_place
    return replace(
        written, value=value if isinstance(written.value, Mapping) else whole(written.value), key_place=place
    )
