"""Drills on envs that load the process they are in: with output, threads, processes and waits."""

from __future__ import annotations

import signal
import time

from tests.drills.experiments import apex, dqn
from tests.drills.files import refused
from tests.drills.scene import Command, Scene, check, checkpoints_of, drill, stop
from tests.drills.workers import WORKER, goes_on_and_stops

LONGEST_END_S = 20.0
MOST_PRINTED = 1 << 20
"""Characters of a run's own output, whatever its env prints."""


def started(scene: Scene, env: str, *arguments: object) -> Command:
    """Start an Ape-X run in one of the drills' envs."""
    file = scene.write("drill.yaml", apex(env=f"tests.drills.envs:{env}"))
    return scene.start("run", file, "--out", scene.out, "--json", *arguments)


def seconds_to_stop(command: Command) -> float:
    """Stop a run with SIGINT; return how long that took."""
    asked_s = time.monotonic()
    stop(command)
    took_s = time.monotonic() - asked_s
    check(took_s < LONGEST_END_S, f"took {took_s:.1f} s")
    return took_s


@drill(67, "env-flood")
def env_flood(scene: Scene) -> str:
    """Every step of the env prints 100 kB to stdout and as much to stderr."""
    command = started(scene, "Flooding")
    row = command.wait_for_result(lambda row: row["timesteps_total"] > 2000)
    took_s = seconds_to_stop(command)
    printed = len(command.stderr) + sum(map(len, command.output))
    check("xxx" not in command.stderr and printed < MOST_PRINTED, f"it printed {printed} characters")
    size = sum(path.stat().st_size for path in scene.folder.rglob("*") if path.is_file())
    check(size < 50e6, f"{size / 1e6:.0f} MB are left")
    return f"{row['timesteps_total']} steps, {row['timesteps_total'] / 5000:.1f} GB printed; ended after {took_s:.1f} s"


@drill(68, "env-crowd")
def env_crowd(scene: Scene) -> str:
    """The env starts a thread and two processes that never end; a worker is killed, then the run is stopped."""
    command = started(scene, "Crowded")
    row = command.wait_for_result(lambda row: row["info"]["num_updates"] > 10)
    scene.one(WORKER).send_signal(signal.SIGKILL)
    command.wait_for_note(r"^worker \d failed.*replaced in")
    goes_on_and_stops(command, row)
    check(not scene.lingering(), f"still there: {scene.lingering()}")
    return "a worker replaced; no process left"


@drill(69, "env-slow-reset")
def env_slow_reset(scene: Scene) -> str:
    """``env.reset`` takes 20 seconds, with a ``sample_timeout_s`` above that, and then without."""
    text = dqn(env="tests.drills.envs:SlowToReset", steps=1000)
    alone = scene.start("run", scene.write("alone.yaml", text), "--out", scene.out, "--name", "alone", "--json")
    command = started(scene, "SlowToReset", "-o", "sample_timeout_s=60")
    row = command.wait_for_result(lambda row: row["info"]["num_updates"] > 10)
    goes_on_and_stops(command, row)
    restarts = row["info"]["num_worker_restarts"]
    check(restarts == 0, f"{restarts} restarts")
    code = alone.end()
    check(code == 0, f"exit {code}: {alone.stderr[-300:]}")
    return f"no worker replaced; trained {row['timesteps_total']} steps"


@drill(70, "env-hang-close")
def env_hang_close(scene: Scene) -> str:
    """``env.close`` never returns: at once, then only after some steps, in workers and in one process."""
    env, soon, late = "tests.drills.envs:HangingInClose", "{steps: 0}", "{steps: 100}"
    file = scene.write("soon.yaml", apex(env=env, env_config=soon))
    line = refused(scene, 2, "close", "run", file, "--out", scene.out)
    texts = {"workers": apex(env=env, env_config=late), "alone": dqn(env=env, env_config=late, min_iter_time_s=0.5)}
    seconds = []
    for name, text in texts.items():
        file = scene.write(f"{name}.yaml", text)
        command = scene.start("run", file, "--out", scene.out, "--name", name, "--json")
        command.wait_for_result(lambda row: row["info"]["num_updates"] > 10)
        seconds.append(seconds_to_stop(command))
        check(not scene.lingering(), f"still there: {scene.lingering()}")
        check(checkpoints_of(scene.out / name), "no checkpoint")
    return f"{line}; after some steps: exit 130 after {seconds[0]:.1f} and {seconds[1]:.1f} s"
