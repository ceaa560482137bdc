"""Drills on going on: runs that were killed, damaged, moved, edited or made by somebody else."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
import time
from pathlib import Path

import numpy as np

from rlexp.runs.checkpoint_contents import read_checkpoint
from tests.drills.runs import (
    apex,
    check_no_step_twice,
    checkpoints_of,
    dqn,
    iteration_of,
    refused,
    resumed,
    rows_of,
    stopped_run,
    trial_of,
)
from tests.drills.scene import Scene, check, drill
from tests.lab.checkpoints import Bomb, forge

LEAST_ITERATIONS = 3


def go_on_from_newest(scene: Scene, run: Path) -> int:
    """Resume a run for two iterations and stop it; return the first one, which is behind its newest checkpoint."""
    newest = iteration_of(checkpoints_of(run)[-1])
    command = resumed(scene, run, newest)
    command.wait_for_result()
    command.stop()
    check_no_step_twice(run)
    return newest + 1


@drill(2, "kill-driver-resume")
def kill_driver_resume(scene: Scene) -> str:
    """``rlexp run`` is killed with -9; ``rlexp resume`` goes on."""
    command = scene.start_run(apex(checkpoint_freq=3))
    before = command.wait_for_result(lambda row: row["training_iteration"] >= 5)["training_iteration"]
    scene.kill(command)
    run = scene.out / "drill"
    newest = iteration_of(checkpoints_of(run)[-1])
    again = resumed(scene, run, newest)
    after = again.wait_for_result(lambda row: row["training_iteration"] >= before + 2)
    again.stop()
    check(f"continues from checkpoint_{newest:06d}" in again.notes, f"notes {again.notes}")
    check_no_step_twice(run)
    return f"killed after iteration {before}, went on from {newest}, to {after['training_iteration']}"


@drill(24, "resume-twice")
def resume_twice(scene: Scene) -> str:
    """Killed with -9 and resumed, four times in a row; the counts are those of a run that nothing happened to."""
    steps = 20_000
    command = scene.start_run(dqn(steps=steps, checkpoint_freq=10))
    for _ in range(4):
        command.wait_for_result()
        command.wait_for_result()
        scene.kill(command)
        command = scene.start("resume", scene.out / "drill", "--json")
    command.end_with(0)
    check_no_step_twice(scene.out / "drill")
    last = rows_of(scene.out / "drill")[-1]
    check(steps <= last["timesteps_total"] < steps + 200, f"ended at {last['timesteps_total']} steps")
    return f"ended at {last['timesteps_total']} steps in iteration {last['training_iteration']}"


@drill(25, "resume-bitwise")
def resume_bitwise(scene: Scene) -> str:
    """DQN in one process: in one go, and stopped and resumed half way, it ends with the same bits."""
    file = scene.write("drill.yaml", dqn(steps=2000))
    for name, steps in (("whole", 2000), ("halves", 1000)):
        stop_at = f"stop.timesteps_total={steps}"
        scene.start("run", file, "--out", scene.out, "--name", name, "-q", "-o", stop_at).end_with(0)
    scene.start("resume", scene.out / "halves", "-q", "-o", "stop.timesteps_total=2000").end_with(0)
    whole, halves = (read_checkpoint(checkpoints_of(scene.out / name)[-1]) for name in ("whole", "halves"))
    check(whole.sequence == halves.sequence, f"iterations {whole.sequence} and {halves.sequence}")
    groups = whole.arrays.keys() | halves.arrays.keys()
    different = [
        f"{group}/{name}"
        for group in sorted(groups)
        for name in sorted(whole.arrays[group].keys() | halves.arrays[group].keys())
        if not np.array_equal(whole.arrays[group][name], halves.arrays[group][name], equal_nan=True)
    ]
    check(not different, f"not the same: {different}")
    updates = rows_of(scene.out / "halves")[-1]["info"]["num_updates"]
    count = sum(len(named) for named in whole.arrays.values())
    return f"{updates} updates; {count} arrays in {', '.join(sorted(groups))} are the same, bit by bit"


@drill(7, "trunc-ckpt")
def trunc_ckpt(scene: Scene) -> str:
    """The newest checkpoint is cut, emptied, overwritten, or has one bit turned."""
    run = stopped_run(scene, apex(), iterations=5)
    checkpoints = checkpoints_of(run)
    largest = max(checkpoints[-1].iterdir(), key=lambda path: path.stat().st_size)
    os.truncate(largest, largest.stat().st_size // 2)
    state = bytearray((checkpoints[-2] / "learner.safetensors").read_bytes())
    state[len(state) // 2] ^= 1
    (checkpoints[-2] / "learner.safetensors").write_bytes(state)
    newest_whole = iteration_of(checkpoints[-3])
    command = resumed(scene, run, newest_whole)
    command.stop()
    aside = sorted(path.name for path in trial_of(run).glob("*.damaged"))
    check(len(aside) == 2, f"set aside: {aside}")
    check(sum("is damaged" in note for note in command.notes) == 2, f"notes {command.notes}")
    return f"{largest.name} of the newest cut, a bit of the one before turned: on with iteration {newest_whole + 1}"


@drill(5, "trunc-state")
def trunc_state(scene: Scene) -> str:
    """``run.json`` is cut."""
    run = stopped_run(scene, dqn())
    before = checkpoints_of(run)
    os.truncate(run / "run.json", 300)
    line = refused(scene, 3, "damaged", "resume", run)
    check(all(checkpoint.exists() for checkpoint in before), "checkpoints were removed")
    return line


@drill(8, "evil-ckpt")
def evil_ckpt(scene: Scene) -> str:
    """Pickles that run code, wherever a run directory could have one."""
    run = stopped_run(scene, dqn())
    sentinel = scene.folder / "sentinel"
    bomb = pickle.dumps(Bomb(sentinel))
    (newest,) = checkpoints_of(run)[-1:]
    for older in checkpoints_of(run)[:-1]:
        shutil.rmtree(older)
    for place in (run / "tuner.pkl", run / ".tune", trial_of(run) / "params.pkl"):
        if place.suffix:
            place.write_bytes(bomb)
        else:
            place.mkdir(exist_ok=True)
            (place / "tuner.pkl").write_bytes(bomb)
    (newest / "learner.pkl").write_bytes(bomb)
    files = json.loads((newest / "manifest.json").read_text(encoding="utf-8"))["files"]
    files["learner.pkl"] = {"bytes": len(bomb), "sha256": hashlib.sha256(bomb).hexdigest()}
    forge(newest, files=files)
    line = refused(scene, 3, "learner.pkl", "evaluate", newest)
    refused(scene, 3, "learner.pkl", "resume", run)
    for command in (("ls", run), ("logs", run), ("compare", run)):
        ended = scene.run(*command)
        check("Traceback" not in ended.stderr, f"{command[0]}: {ended.stderr[-300:]}")
    check(not sentinel.exists(), "the pickle was run")
    return line


@drill(37, "clock-jump")
def clock_jump(scene: Scene) -> str:
    """The clock went back between two checkpoints: the newest is that of the highest iteration."""
    run = stopped_run(scene, dqn())
    checkpoints = checkpoints_of(run)
    for age, checkpoint in enumerate(checkpoints):
        moment = time.time() - 86_400 * age
        os.utime(checkpoint, (moment, moment))
    return f"went on with iteration {go_on_from_newest(scene, run)}"


@drill(42, "move-dir")
def move_dir(scene: Scene) -> str:
    """The run's directory is moved elsewhere, to a name with a blank."""
    run = stopped_run(scene, dqn())
    moved = scene.folder / "another place" / "run"
    moved.parent.mkdir()
    shutil.move(run, moved)
    scene.start("evaluate", moved, "--episodes", 2, "--json").end_with(0)
    first = go_on_from_newest(scene, moved)
    check(not run.exists(), "something was written to the old place")
    return f"evaluated, and resumed with iteration {first}"


@drill(43, "version-skew")
def version_skew(scene: Scene) -> str:
    """A checkpoint of another format, and one of another env."""
    run = stopped_run(scene, dqn())
    newest = checkpoints_of(run)[-1]
    forge(newest, format=99)
    line = refused(scene, 3, "format 99", "resume", run)
    check(newest.exists(), "it was moved")
    forge(newest, format=1)
    resolved = run / "resolved.yaml"
    resolved.write_text(resolved.read_text(encoding="utf-8").replace("CartPole-v1", "CartPole-v0"), encoding="utf-8")
    refused(scene, 3, "CartPole", "resume", run)
    return line


@drill(44, "config-drift")
def config_drift(scene: Scene) -> str:
    """``resolved.yaml`` was edited, or ``-o`` gives what must not change; a later stop is no such thing."""
    run = stopped_run(scene, dqn(min_iter_time_s=0.2))
    soon, later = (rows_of(run)[-1]["timesteps_total"] + more for more in (500, 5000))
    line = refused(scene, 3, "lr 0.001", "resume", run, "-o", "lr=0.5")
    resolved = run / "resolved.yaml"
    text = resolved.read_text(encoding="utf-8")
    resolved.write_text(text.replace("gamma: 0.99", "gamma: 0.5"), encoding="utf-8")
    refused(scene, 3, "gamma 0.99", "resume", run)
    resolved.write_text(text, encoding="utf-8")
    scene.start("resume", run, "--json", "-o", f"stop.timesteps_total={soon}").end_with(0)
    refused(scene, 3, "reached its stop", "resume", run)
    scene.start("resume", run, "--json", "-o", f"stop.timesteps_total={later}").end_with(0)
    check(rows_of(run)[-1]["timesteps_total"] >= later, "it did not go on")
    check_no_step_twice(run)
    return line


@drill(46, "secrets")
def secrets(scene: Scene) -> str:
    """A password in ``env_config`` is in no file that others are shown, nor in what is printed."""
    word = "hunter2-of-the-drill"
    command = scene.start_run(dqn(env="tests.drills.envs:WithPassword", env_config=f"{{password: {word}}}"))
    command.wait_for_result(lambda row: row["training_iteration"] >= 2)
    command.stop()
    check(word not in command.stderr + json.dumps(command.events), "it was printed")
    run = scene.out / "drill"
    found = {path.name for path in run.rglob("*") if path.is_file() and word.encode() in path.read_bytes()}
    needed = {"experiment.yaml", "resolved.yaml", "manifest.json", "state.json"}
    check(found <= needed, f"it is in {sorted(found - needed)}")
    check(run.stat().st_mode & 0o077 == 0, "others may look into the run's directory")
    return f"masked; {', '.join(sorted(found))} have it, in a directory for its owner alone"


@drill(58, "tb-corrupt")
def tb_corrupt(scene: Scene) -> str:
    """An event file is cut, and has garbage at its end."""
    run = stopped_run(scene, dqn(min_iter_time_s=0.1), iterations=8)
    (events,) = trial_of(run).glob("events.out.tfevents.*")
    with events.open("r+b") as file:
        file.truncate(events.stat().st_size * 3 // 4)
        file.seek(0, os.SEEK_END)
        file.write(b"\xff" * 100)
    command = scene.start("logs", run, "--tag", "timesteps_total", "--csv")
    command.end_with(0)
    check(events.name in command.stderr, f"it says nothing of the damage: {command.stderr[-200:]}")
    check(len(command.output) >= LEAST_ITERATIONS, f"it read {len(command.output)} points")
    return f"{len(command.output)} points read, and: {command.stderr.strip().splitlines()[0][:100]}"
