"""Drills on sweeps: a configuration that cannot learn, and a search that is killed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.drills.scene import Command, Scene, check, drill

SWEEP = """
{name}:
  run: DQN
  env: tests.lab.envs:FatefulEnv
  stop: {{timesteps_total: {steps}}}
  search: {{max_concurrent: 3, {search}}}
  config:
    seed: 0
    {searched}
    num_cpus_for_driver: 0.25
    timesteps_per_iteration: 40
    min_iter_time_s: 0
    learning_starts: 40
    train_batch_size: 8
    buffer_size: 1000
    prioritized_replay: false
    hiddens: [8]
    model: {{fcnet_hiddens: [8]}}
"""
STEPS = 240
OVER = {"TERMINATED", "PRUNED", "ERROR"}
LONGEST_S = 150.0
"""Bound of a sweep of eight trials, each with a process of its own, where others use the machine as well."""


def started(scene: Scene, name: str, search: str, searched: str, *arguments: object) -> Command:
    """Start a sweep of small trials in an env whose rewards are known."""
    file = scene.write(f"{name}.yaml", SWEEP.format(name=name, steps=STEPS, search=search, searched=searched))
    return scene.start("sweep", file, "--out", scene.out, "--json", *arguments)


def wait_for_ends(command: Command, count: int) -> list[str]:
    """Return the names of the first trials to end."""
    ends = (command.wait_for("end of a trial", lambda event: event["event"] == "trial_end") for _ in range(count))
    return [event["trial"] for event in ends]


def content(path: Path) -> Any:
    """Return the content of a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def results(scene: Scene, trials: list[str]) -> dict[str, bytes]:
    """Return ``result.json`` of some trials."""
    return {trial: (scene.out / "drill" / trial / "result.json").read_bytes() for trial in trials}


def resumed(scene: Scene) -> list[str]:
    """Resume it to its end; return the trials that were begun."""
    command = scene.start("resume", scene.out / "drill", "--json")
    command.end_with(0, timeout_s=LONGEST_S)
    return [event["trial"] for event in command.events_of("trial_start")]


@drill(40, "sweep-kill-resume")
def sweep_kill_resume(scene: Scene) -> str:
    """``rlexp sweep`` is killed with -9 after three of eight trials; ``rlexp resume`` goes on."""
    pays = [8, 5, 7, 1, 6, 2, 4, 3]
    search = "scheduler: asha, asha: {grace_period: 120, reduction_factor: 2}"
    command = started(scene, "drill", search, f"env_config: {{pay: {{grid_search: {pays}}}}}")
    ended = wait_for_ends(command, 3)
    scene.kill(command)
    before = results(scene, ended)
    begun = resumed(scene)
    check(not set(begun) & set(ended), f"began again: {set(begun) & set(ended)}")
    check(before == results(scene, ended), "results of finished trials have changed")
    saved = content(scene.out / "drill/sweep.json")
    statuses = [each["status"] for each in saved["configurations"]]
    check(len(statuses) == len(pays) and set(statuses) <= OVER, f"configurations end as {statuses}")
    rung = saved["early_stopping"][0]
    check(len(rung["values"]) == len(pays), f"the first rung has {len(rung['values'])} trials")
    best = saved["configurations"][0]["point"]
    check(best == {"env_config.pay": 8}, f"the best is {best}")
    return f"{len(ended)} of {len(pays)} had ended, {len(begun)} began, the first rung has all {len(rung['values'])}"


@drill(41, "optuna-crash")
def optuna_crash(scene: Scene) -> str:
    """A sweep by Optuna is killed with -9 while trials run; they go on, and no point is lost or tried twice."""
    search = "searcher: optuna, num_samples: 6, optuna: {n_startup_trials: 3}"
    command = started(scene, "drill", search, "lr: {loguniform: [1e-4, 1e-2]}")
    ended = wait_for_ends(command, 2)
    command.wait_for_start()  # that one is being tried
    scene.kill(command)
    ended += [trial for trial in trials_begun(scene) if trial not in ended and has_last_row(scene, trial)]
    tried = [trial for trial in trials_begun(scene) if trial not in ended]
    count = len(trials_begun(scene))
    check(tried, "no trial was being tried")
    resumed(scene)
    begun = trials_begun(scene)[count:]
    check(tried == begun[: len(tried)], f"{tried} were being tried, {begun} began")
    check(not set(begun) & set(ended), f"began again: {set(begun) & set(ended)}")
    configurations = content(scene.out / "drill/sweep.json")["configurations"]
    points = {each["point"]["lr"] for each in configurations}
    check(len(configurations) == len(points) == 6, f"{len(configurations)} configurations at {len(points)} points")
    for (trial,) in (each["trials"] for each in configurations):
        steps = [row["timesteps_total"] for row in rows_of(scene, trial["name"])]
        seen = f"{trial['name']} is {trial['status']} with rows at {steps}"
        check(trial["status"] == "TERMINATED" and steps == list(range(40, STEPS + 1, 40)), seen)
    return f"{len(tried)} were being tried and began first; 6 configurations, 6 points"


@drill(66, "sweep-ctrl-c")
def sweep_ctrl_c(scene: Scene) -> str:
    """SIGINT just when a trial of a population is paused to take over another one; ``rlexp resume`` goes on."""
    search = "scheduler: pbt, searcher: grid, pbt: {perturbation_interval: 80, resample_probability: 0}"
    searched = "lr: {grid_search: [1e-3, 1e-4]}\n    horizon: {grid_search: [10, 2]}"
    command = started(scene, "drill", search, searched, "-o", "stop.timesteps_total=400")
    exploit = command.wait_for_note("copies")
    command.stop()
    resumed(scene)
    configurations = content(scene.out / "drill/sweep.json")["configurations"]
    statuses = [each["status"] for each in configurations]
    check(statuses == ["TERMINATED"] * 4, f"configurations end as {statuses}")
    for each in configurations:
        (trial,) = each["trials"]
        rows = (scene.out / "drill" / trial["name"] / "result.json").read_text(encoding="utf-8").splitlines()
        check(json.loads(rows[-1])["timesteps_total"] >= 400, f"{trial['name']} ended before its time")
    return f"interrupted when {exploit.split(',')[0]}; all four trained to their end"


def has_last_row(scene: Scene, trial: str) -> bool:
    """Return whether a trial wrote the row at which it stops; its checkpoint has that row before the sweep records it.

    Then it has ended, although a killed sweep may not say so.
    """
    manifests = (scene.out / "drill" / trial).glob("checkpoint_*/manifest.json")
    written = [content(manifest)["metadata"]["metrics"] for manifest in manifests]
    return any(row["timesteps_total"] >= STEPS for row in [*rows_of(scene, trial), *written])


def rows_of(scene: Scene, trial: str) -> list[Any]:
    """Return the rows of ``result.json`` of a trial; a last line that a kill cut is none."""
    file = scene.out / "drill" / trial / "result.json"
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True) if file.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def trials_begun(scene: Scene) -> list[str]:
    """Return the trials in the order in which they began, those of a resume once more."""
    lines = (scene.out / "drill/search.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    events = (json.loads(line) for line in lines[1:] if line.endswith("\n"))
    return [event["trial"] for event in events if event["event"] == "begun"]
