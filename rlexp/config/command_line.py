"""An experiment from flags, as on RLlib's command line, to the text of a file."""

from __future__ import annotations

import json
from typing import Any

from rlexp.config.yaml_writer import to_yaml
from rlexp.errors import UsageError


def experiment_text(name: str, run: str | None, env: str | None, config: str, stop: str, **keys: Any) -> str:
    """Return a file with one experiment; ``config`` and ``stop`` are JSON. Raises UsageError."""
    if run is None or env is None:
        raise UsageError("train needs a file, or --run and --env", "use rlexp train file FILE, or rlexp run FILE")
    experiment = {"run": run, "env": env, "stop": _group("--stop", stop), "config": _group("--config", config)}
    return to_yaml({name: experiment | {key: value for key, value in keys.items() if value}})


def _group(option: str, text: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{option} is not JSON: {error}", """for example '{"lr": 0.001}'""") from error
    if not isinstance(data, dict):
        raise UsageError(f"{option} must be a JSON object", """for example '{"lr": 0.001}'""")
    return data
