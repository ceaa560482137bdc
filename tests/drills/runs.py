"""What a drill's run left in its directory."""

from __future__ import annotations

import csv
import json
import logging
import signal
from pathlib import Path
from typing import Any

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.drills.scene import Command, Scene, check

STEPS_TAG = "ray/tune/timesteps_total"


def trial_of(run: Path) -> Path:
    """Return the directory of a run's only trial."""
    (trial,) = json.loads((run / "run.json").read_text(encoding="utf-8"))["trials"]
    return run / str(trial["directory"])


def rows_of(run: Path) -> list[dict[str, Any]]:
    """Return the rows of its ``result.json``."""
    lines = (trial_of(run) / "result.json").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def checkpoints_of(run: Path) -> list[Path]:
    """Return the checkpoints of its trial, the oldest first."""
    return sorted(path for path in trial_of(run).glob("checkpoint_*") if path.name[-1].isdigit())


def iteration_of(checkpoint: Path) -> int:
    """Return the iteration in a checkpoint's name."""
    return int(checkpoint.name.split("_")[1])


def check_no_step_twice(run: Path) -> None:
    """Check that result.json, progress.csv and TensorBoard have every iteration once, in order."""
    rows = rows_of(run)
    iterations = [row["training_iteration"] for row in rows]
    check(iterations == list(range(1, len(rows) + 1)), f"result.json has iterations {iterations}")
    steps = [row["timesteps_total"] for row in rows]
    check(steps == sorted(set(steps)), f"result.json has steps {steps}")
    with (trial_of(run) / "progress.csv").open(encoding="utf-8", newline="") as file:
        cells = [int(row["training_iteration"]) for row in csv.DictReader(file)]
    check(cells == iterations, f"progress.csv has iterations {cells}")
    logging.getLogger("tensorboard").setLevel(logging.ERROR)  # it tells of every point that is taken back
    events = EventAccumulator(str(trial_of(run)), size_guidance={"scalars": 0})
    events.Reload()
    points = [event.step for event in events.Scalars(STEPS_TAG)]
    check(points == steps, f"TensorBoard has steps {points}, result.json {steps}")


def stopped_run(scene: Scene, text: str, iterations: int = 4) -> Path:
    """Run an experiment for some iterations, stop it with SIGINT and return its directory."""
    command = scene.start("run", scene.write("drill.yaml", text), "--out", scene.out, "--name", "drill", "--json")
    command.wait_for_result(lambda row: row["training_iteration"] >= iterations)
    stop(command)
    return scene.out / "drill"


def stop(command: Command) -> None:
    """Stop a run with SIGINT; check that it ends as it should."""
    command.process.send_signal(signal.SIGINT)
    code = command.end()
    check(code == 130, f"exit {code}: {command.stderr[-300:]}")
