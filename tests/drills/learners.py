"""Drills on PPO: what moves a train batch, and the learners that share it."""

from __future__ import annotations

import re
import time

from tests.drills.experiments import PPO_BATCH, ppo
from tests.drills.scene import Command, Scene, check, check_no_step_twice, drill, rows_of, trial_of
from tests.drills.workers import WORKER

LEARNER = "ray::LearnerProcess"
LONGEST_NOTICE_S = 10.0
"""From a learner's death to the restart of its trial; on a machine that others use as well."""


def check_batches(scene: Scene, command: Command, batches: int) -> None:
    """Check that a run ends by itself, and that each of its iterations has the env steps of one train batch."""
    code = command.end()
    check(code == 0, f"exit {code}: {command.stderr[-300:]}")
    check_no_step_twice(scene.out / "drill")
    rows = rows_of(scene.out / "drill")
    steps = [row["timesteps_total"] for row in rows]
    check(steps == [PPO_BATCH * (number + 1) for number in range(batches)], f"env steps {steps}")
    trained = [row["info"]["num_steps_trained"] for row in rows]
    check(trained == steps, f"trained {trained}")


@drill(78, "kill-learner")
def kill_learner(scene: Scene) -> str:
    """One of several learners is killed with -9 while it learns; ``max_failures`` lets the trial begin again."""
    batches = 3
    file = scene.write("drill.yaml", ppo(scene.folder / "claim", batches, learners=2, epochs=150))
    command = scene.start("run", file, "--out", scene.out, "--json")
    command.wait_for_result()
    time.sleep(0.5)  # it learns for longer than that
    learners = scene.processes(LEARNER)
    check(len(learners) == 2, f"{len(learners)} learners")
    learners[1].kill()
    killed_s = time.monotonic()
    command.wait_for("second start", lambda event: event["event"] == "trial_start")
    took_s = time.monotonic() - killed_s
    check(took_s < LONGEST_NOTICE_S, f"started again after {took_s:.1f} s")
    said = (trial_of(scene.out / "drill") / "error.txt").read_text(encoding="utf-8").splitlines()[0]
    check(re.match(r"learner \d failed: its process died", said), said)
    again = command.wait_for_result()["training_iteration"]
    check(again == 2, f"was at iteration 1, goes on with {again}")
    check_batches(scene, command, batches)
    return f"{said.split(' (')[0]}; started again after {took_s:.1f} s, went on with iteration {again}"


@drill(79, "kill-batch-worker")
def kill_batch_worker(scene: Scene) -> str:
    """A rollout worker of PPO is killed with -9 while a train batch is sampled: the others sample what it had not."""
    batches = 4
    file = scene.write("drill.yaml", ppo(scene.folder / "claim", batches, step_s=0.02))
    command = scene.start("run", file, "--out", scene.out, "--json")
    command.wait_for_result(lambda row: row["training_iteration"] == 1)
    time.sleep(1.0)  # sampling a batch takes 2 s
    scene.one(WORKER).kill()
    note = command.wait_for_note(r"^worker \d failed: its process died; replaced in")
    check_batches(scene, command, batches)
    return note
