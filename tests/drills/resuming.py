"""Drills on going on: a run that was killed, one that was damaged; and on secrets in the files that runs leave."""

from __future__ import annotations

import json
import os
import stat

from tests.drills.runs import (
    apex,
    check_no_step_twice,
    checkpoints_of,
    dqn,
    iteration_of,
    resumed,
    stopped_run,
    trial_of,
)
from tests.drills.scene import Scene, check, drill


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


@drill(45, "token-perms")
def token_perms(scene: Scene) -> str:
    """No file of Ray's with a secret that others could read."""
    command = scene.start_run(apex())
    command.wait_for_result()
    tokens = list(scene.folder.rglob("auth_token"))
    modes = {stat.filemode(path.stat().st_mode) for path in tokens}
    command.stop()
    check(modes == {"-rw-------"}, f"tokens {tokens} have {modes}")
    return f"{len(tokens)} token, -rw-------"
