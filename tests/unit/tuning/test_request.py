"""The options of a training: the commands and the functions of Python have those of a request, with its defaults."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

import rlexp
from rlexp.commands import training
from rlexp.tuning.request import OPTIONS, Source, TrainingRequest

SOURCES: Final = {"files", "file", "experiments", "path", "algo", "env", "stop", "config", "seeds", "lr"}
"""What is trained: files, a dict, a run, an agent on an env; and values of keys, which Python writes as overrides."""
ONLY_OF_COMMANDS: Final = {"dry_run", "wait", "working_dir", "board", "keys", "queue", "insecure", "track"}
"""What makes the fields that are derived, beside ``address``, and ``--dry-run``."""
OF_SEARCH: Final = {
    "searched",
    "searcher",
    "scheduler",
    "num_samples",
    "num_seeds",
    "max_concurrent",
    "time_budget_s",
    "metric",
    "mode",
}
"""Values of the keys of ``search``, which Python's users write as overrides."""


def options_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the parameters but the experiments, with their defaults: no value, an empty list of them, are one."""
    parameters = inspect.signature(function).parameters.values()
    return {each.name: each.default or None for each in parameters if each.name not in SOURCES}


@pytest.mark.parametrize("kind", ["run", "sweep", "resume"])
def test_command_function_and_request_have_the_same_options_and_defaults(kind: str) -> None:
    command, function = options_of(getattr(training, kind)), options_of(getattr(rlexp, kind))
    beside = ONLY_OF_COMMANDS | (OF_SEARCH if kind == "sweep" else set())
    assert set(command) - beside - {"as_json"} == set(function)
    for given in (command, function):
        for name in given.keys() & OPTIONS.keys():
            assert type(OPTIONS[name])(given[name]) == OPTIONS[name] if given[name] else not OPTIONS[name], name
    assert not (set(function) - OPTIONS.keys())


def test_every_option_is_one_of_a_command_and_of_a_function() -> None:
    for module in (training, rlexp):
        offered = set().union(*(options_of(getattr(module, kind)) for kind in ("run", "sweep", "resume")))
        assert OPTIONS.keys() - offered - SOURCES - {"command", "draws"} <= ({"as_json"} if module is rlexp else set())


def test_request_goes_through_json() -> None:
    options = {
        "out": "elsewhere",
        "overrides": ["a=1"],
        "imports": None,
        "seed": 3,
        "fit": True,
        "command": ["rlexp"],
        "experiments": "no option",
        "board": "redis://HOST",
    }
    request = TrainingRequest.of("sweep", options, source=Source((Path("a.yaml"),), {"a": [1]}, ("folder",)))
    assert (request.out, request.overrides, request.imports) == (Path("elsewhere"), ("a=1",), ())
    assert request.board is None
    assert TrainingRequest.from_json(json.loads(json.dumps(request.to_json()))) == request
    preset = TrainingRequest("run", Source(agent="PPO", env="CartPole-v1"))
    assert TrainingRequest.from_json(json.loads(json.dumps(preset.to_json()))) == preset
