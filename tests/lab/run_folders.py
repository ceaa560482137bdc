"""Directories of runs and sweeps as ``rlexp run`` leaves them, made of a few numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlexp.config.yaml.reader import to_yaml
from rlexp.runs.record import RecordedError, RunRecord, Status, TrialRecord

STEPS_PER_ROW = 100
SECONDS_PER_ROW = 2.0


@dataclass
class MadeTrial:
    """One trial: its rewards become rows 100 env steps and 2 seconds apart."""

    rewards: Sequence[float | None]
    seed: int = 0
    varied: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    env: str = "CartPole-v1"
    status: Status = Status.TERMINATED


def row(iteration: int, reward: float | None, **changes: Any) -> dict[str, Any]:
    return {
        "training_iteration": iteration,
        "timesteps_total": STEPS_PER_ROW * iteration,
        "timesteps_this_iter": STEPS_PER_ROW,
        "time_total_s": SECONDS_PER_ROW * iteration,
        "episode_reward_mean": reward,
        "info": {"learner": {"loss": 1.0 / iteration}},
    } | changes


def make_run(path: Path, trials: Sequence[MadeTrial], **record: Any) -> Path:
    """Write a run with ``trials`` to ``path``; ``record`` changes its ``run.json``."""
    path.mkdir(parents=True)
    records = [_make_trial(path, index, trial) for index, trial in enumerate(trials)]
    known: dict[str, Any] = {
        "name": path.name,
        "command": ["rlexp", "run", "pong.yaml"],
        "versions": {"rlexp": "0.1.0", "torch": None},
        "git_commit": "0123abc",
        "host": "somewhere",
        "cpus": 2,
        "started": "2026-01-02T03:04:05+00:00",
        "status": Status.TERMINATED,
        "trials": records,
    }
    RunRecord(**(known | record)).write(path)
    return path


def write_resolved(path: Path, experiments: Mapping[str, Any]) -> None:
    (path / "resolved.yaml").write_text(to_yaml(experiments))


def _make_trial(run: Path, index: int, trial: MadeTrial) -> TrialRecord:
    directory = run / f"{index:05d}-DQN-{trial.env}"
    directory.mkdir()
    config = {"lr": 0.001, "seed": trial.seed, **trial.config}
    config |= {key: value for key, value in trial.varied.items() if "." not in key}
    (directory / "params.json").write_text(json.dumps({"run": "DQN", "env": trial.env, **config}))
    rows = [row(iteration, reward) for iteration, reward in enumerate(trial.rewards, start=1)]
    (directory / "result.json").write_text("".join(json.dumps(each) + "\n" for each in rows))
    record = TrialRecord(directory.name, directory.name, trial.seed, trial.varied, trial.status)
    if trial.status is Status.ERROR:
        record.error = RecordedError("ValueError: no more")
    for each in rows:
        record.add_result(each)
    return record


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
