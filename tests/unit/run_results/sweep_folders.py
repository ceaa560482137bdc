"""Directories of sweeps, made of a few numbers: the files that reports read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlexp.runs.record import Status
from tests.unit.run_results.run_folders import MadeTrial, make_run

SPACE = {"lr": {"loguniform": [1e-5, 1e-1]}, "n_step": {"randint": [1, 8]}, "hiddens": {"choice": [[32], [64, 64]]}}


def configuration(number: int, point: Mapping[str, Any], score: float | None, **changes: Any) -> dict[str, Any]:
    """Return a configuration of ``sweep.json``; it completed if it has a score."""
    status = Status.ERROR if score is None else Status.TERMINATED
    return {"configuration": number, "point": dict(point), "status": status, "score": score, **changes}


def ended_early(number: int, point: Mapping[str, Any], at: float, value: float) -> dict[str, Any]:
    """Return a configuration that ended early."""
    early = {"at": at, "value": value, "unit": "timesteps_total"}
    return configuration(number, point, None, status=Status.PRUNED, ended_early=early)


def write_sweep(path: Path, configurations: Sequence[Any], **changes: Any) -> Path:
    """Write ``sweep.json`` with configurations in the order of their ranking."""
    path.mkdir(parents=True, exist_ok=True)
    search = {"metric": "episode_reward_mean", "mode": "max", "scheduler": "asha"} | changes.pop("search", {})
    content = {"format": 1, "search": search, "space": SPACE, "configurations": list(configurations), **changes}
    (path / "sweep.json").write_text(json.dumps(content))
    return path


def make_sweep(path: Path, configurations: Sequence[Mapping[str, Any]], **changes: Any) -> Path:
    """Write a run of a sweep: ``sweep.json``, and a trial for each configuration with a score."""
    scored = [each for each in configurations if each["score"] is not None]
    make_run(path, [MadeTrial([each["score"]] * 5, 1, dict(each["point"])) for each in scored])
    names = {each["configuration"]: f"{index:05d}-DQN-CartPole-v1" for index, each in enumerate(scored)}
    trials = {number: [{"name": name}] for number, name in names.items()}
    for each in scored:
        trials[each["configuration"]][0]["score"] = each["score"]
    return write_sweep(
        path, [{**each, "trials": trials.get(each["configuration"], [])} for each in configurations], **changes
    )
