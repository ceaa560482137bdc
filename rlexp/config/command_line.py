"""An experiment from flags, as on RLlib's command line, to the text of a file."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from rlexp.config.yaml.writer import to_yaml
from rlexp.errors import UsageError

_KEY_OF_EXPERIMENT: Final = re.compile(r"  (\w+):")

_EXAMPLES: Final = {"--config": '{"lr": 0.001}', "--stop": '{"timesteps_total": 10000}'}


def experiment_text(name: str, run: str | None, env: str | None, config: str, stop: str, **keys: Any) -> str:
    """Return a file with one experiment; ``config`` and ``stop`` are JSON. Raises UsageError."""
    if run is None or env is None:
        raise UsageError(
            "train needs a file, or --run and --env", "rlexp train -f FILE, or --run DQN --env CartPole-v1"
        )
    experiment = {"run": run, "env": env, "stop": _group("--stop", stop), "config": _group("--config", config)}
    return to_yaml({name: experiment | {key: value for key, value in keys.items() if value is not False}})


def option_at(text: str, line: int) -> str:
    """Return the option that a line (from 1) of such a file comes from: messages must not name a file nobody wrote."""
    lines = text.splitlines()[:line]
    keys = (found[1] for each in reversed(lines) if (found := _KEY_OF_EXPERIMENT.match(each)))
    return "--" + next(keys, "experiment-name").replace("_", "-")


def _group(option: str, text: str) -> dict[str, Any]:
    hint = f"for example {option} '{_EXAMPLES[option]}'"
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{option} is not JSON: {error}", hint) from error
    if not isinstance(data, dict):
        raise UsageError(f"{option} must be a JSON object", hint)
    return data
