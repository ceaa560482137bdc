"""The surface of rlexp as text: what users type, import and find in files; equal before and after a file is moved.

``python -m tests.house.surface > tests/house/surface.txt`` writes it anew where a change of it is wanted.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from safetensors import safe_open
from typer.testing import CliRunner

import rlexp
from rlexp.agents.agent import Agent
from rlexp.agents.registry import agent_class
from rlexp.cli import COMMANDS, app
from rlexp.config.keys.agents import AGENTS
from rlexp.config.load import load_plan
from rlexp.config.reference.json_schema import experiment_schema
from rlexp.errors import RlexpError
from rlexp.runs.record import RunRecord
from rlexp.runs.rows import COLUMNS
from tests.lab import a2c, critics, evolution, ppo, pqn, r2d2
from tests.lab.agents import ONE_SHARD, TINY, CountingPool

ROOT = Path(__file__).parents[2]
TRAINED: dict[str, Mapping[str, Any]] = {
    "DQN": TINY,
    "APEX": {**TINY, "num_workers": 1, "num_envs_per_worker": 1, "optimizer": ONE_SHARD},
    "PPO": ppo.TINY,
    "PQN": pqn.TINY,
    **dict.fromkeys(("A2C", "A3C", "PG"), a2c.TINY),
    "SIMPLEQ": TINY,
    "DDPPO": ppo.TINY,
    **{run: {**critics.TINY, **own} for run, (_, _, own) in critics.AGENTS.items()},
    **{run: {**evolution.TINY, **own} for run, own in evolution.OWN.items()},
    "R2D2": r2d2.TINY,
    "APEX_R2D2": {**r2d2.TINY, "num_workers": 1, "num_envs_per_worker": 1, "optimizer": ONE_SHARD},
}
"""Agents whose checkpoints are looked at, and their keys."""
ENVS = dict.fromkeys(critics.AGENTS, "Pendulum-v1")
"""Their envs, if they cannot play CartPole-v1."""


def surface() -> str:
    """Return the text, a heading for each part."""
    parts = {
        "commands": commands(),
        "python": python(),
        "exit codes": exit_codes(),
        "schema": schema(),
        "explain": explanations(),
        "check": checks(),
        "columns": iter(COLUMNS),
        "run.json": (field.name for field in fields(RunRecord)),
        "checkpoints": checkpoints(),
    }
    return "".join(f"# {name}\n" + "".join(f"{line}\n" for line in lines) + "\n" for name, lines in parts.items())


def digest(text: str) -> str:
    """Return some digits that differ where texts differ."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def commands() -> Iterator[str]:
    """Yield what each command prints for ``--help``."""
    groups = [[], *([name] for name in COMMANDS)]
    while groups:
        words = groups.pop(0)
        text = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "100"}).output
        yield from (line.rstrip() for line in text.splitlines())
        _, _, listed = text.partition("\nCommands:\n")
        if words:
            groups += [[*words, line.split()[0]] for line in listed.splitlines() if line[:2] == "  " != line[2:4]]


def python() -> Iterator[str]:
    """Yield the signature of each public function, with the digest of its docstring."""
    for name in rlexp.__all__:
        value = getattr(rlexp, name)
        yield f"{name}{inspect.signature(value)}  {digest(str(value.__doc__))}" if callable(value) else name


def exit_codes() -> Iterator[str]:
    """Yield each class of errors with the exit code of a command that it ends."""

    def walk(kind: type[RlexpError]) -> Iterator[str]:
        yield f"{kind.__name__} {kind.exit_code}"
        for each in sorted(kind.__subclasses__(), key=lambda each: each.__name__):
            if each.__module__ == RlexpError.__module__:
                yield from walk(each)

    yield from walk(RlexpError)


def schema() -> Iterator[str]:
    """Yield the digest of each definition of the JSON Schema, and of the rest."""
    whole: dict[str, Any] = experiment_schema()
    for name, definition in sorted(whole.pop("definitions").items()):
        yield f"{name} {digest(json.dumps(definition))}"
    yield f"the rest {digest(json.dumps(whole))}"


def explanations() -> Iterator[str]:
    """Yield the digest of what ``rlexp explain`` prints of each agent and each of its keys."""
    configs: list[Any] = [agent.model_fields["config"].annotation for agent in AGENTS.values()]
    keys = {str(key) for config in configs for key in config.model_fields}
    for name in (*AGENTS, *sorted(keys)):
        result = CliRunner().invoke(app, ["explain", name], env={"COLUMNS": "100"})
        yield f"{name} {result.exit_code} {digest(result.output)}"


def checks() -> Iterator[str]:
    """Yield the digest of each shipped experiment with all its defaults, and the names of its trials."""
    for path in sorted((ROOT / "experiments").glob("*.yaml")):
        plan = load_plan([path], seed=1)
        yield path.name
        yield from (f"  {each.name} {digest(json.dumps(each.resolved, sort_keys=True))}" for each in plan.experiments)
        yield from (f"  {trial.name} {json.dumps(trial.varied)}" for trial in plan.trials)


def checkpoints() -> Iterator[str]:
    """Yield files, arrays, and state keys of a checkpoint of each agent."""
    for run, config in TRAINED.items():
        described = {"name": "small", "run": run, "env": ENVS.get(run, "CartPole-v1"), "config": dict(config)}
        experiment = AGENTS[run].model_validate(described)
        agent: Agent[Any] = agent_class(experiment)(experiment.env, experiment.config, CountingPool(), 0)
        with tempfile.TemporaryDirectory() as folder:
            agent.train()
            path = agent.save(Path(folder) / "checkpoint_000001", {})
            agent.stop()
            yield run
            for file in sorted(path.iterdir()):
                yield f"  {file.name}"
                yield from (f"    {line}" for line in contents(file))


def contents(file: Path) -> Iterator[str]:
    """Yield the arrays of a file and their types, or the keys of one in JSON."""
    if file.suffix == ".json":
        yield from sorted(set(keys(json.loads(file.read_text(encoding="utf-8")))))
    else:
        with safe_open(file, "np") as arrays:
            yield from (f"{name} {arrays.get_slice(name).get_dtype()}" for name in sorted(arrays.keys()))


def keys(value: Any, prefix: str = "") -> Iterator[str]:
    """Yield the paths of a value's items; those of a list are alike."""
    items = (
        value.items()
        if isinstance(value, dict)
        else [("[]", item) for item in value]
        if isinstance(value, list)
        else []
    )
    for name, item in items:
        yield f"{prefix}{name}"
        yield from keys(item, f"{prefix}{name}.")


if __name__ == "__main__":
    print(surface(), end="")
