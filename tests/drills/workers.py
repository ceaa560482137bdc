"""Drills on what moves and learns experience: rollout workers, replay shards, the trial, and the learners of PPO."""

from __future__ import annotations

import os
import re
import signal
import time
from typing import Any

from tests.drills.runs import PPO_BATCH, apex, check_no_step_twice, ppo, rows_of
from tests.drills.scene import Command, Scene, check, drill

WORKER, SHARD, LEARNER = "ray::RolloutWorker", "ray::ReplayShard", "ray::LearnerProcess"
TRIAL = ("ray::ExperimentTrainable", "ray::ResourceTrainable")
"""Ray names a trial's process after its class between two calls, and after Tune's wrapper of it within one."""
LONGEST_REPLACEMENT_S = 10.0
"""Of a worker, beyond the time it takes to see that it hangs, and of a learner; others use the machine as well."""


def steps_only_grow(command: Command) -> None:
    """Check that no count went back in the results so far."""
    for count in ("training_iteration", "timesteps_total", "time_total_s"):
        counts = [row[count] for row in command.rows]
        check(counts == sorted(counts), f"{count} went back: {counts}")
    iterations = [row["training_iteration"] for row in command.rows]
    check(iterations == sorted(set(iterations)), f"iterations twice: {iterations}")


def goes_on_and_stops(command: Command, after: dict[str, Any], updates: int = 50) -> None:
    """Check that ``command`` samples and learns on after a row of results, and that Ctrl-C ends it well."""
    wanted = after["info"]["num_updates"] + updates, after["timesteps_total"] + 500
    command.wait_for_result(lambda row: row["info"]["num_updates"] > wanted[0] and row["timesteps_total"] > wanted[1])
    command.stop()
    steps_only_grow(command)


def replaced_in(note: str) -> float:
    """Return the seconds that a note says a replacement took."""
    match = re.search(r"replaced in ([\d.]+) s", note)
    assert match is not None
    return float(match[1])


def lose_worker(scene: Scene, number: int) -> str:
    """Send a signal to a worker of a run that learns; check that it is replaced and all goes on."""
    command = scene.start_run(apex())
    row = command.wait_until_it_learns()
    scene.one(WORKER).send_signal(number)
    note = command.wait_for_note(r"^worker \d (failed|delivered nothing).*replaced in")
    check(replaced_in(note) < LONGEST_REPLACEMENT_S, note)
    goes_on_and_stops(command, row)
    restarts = command.rows[-1]["info"]["num_worker_restarts"]
    check(restarts == 1, f"restarts {restarts}")
    return note


@drill(1, "kill-rollout")
def kill_rollout(scene: Scene) -> str:
    """A rollout worker is killed with -9 in the middle of an episode."""
    return lose_worker(scene, signal.SIGKILL)


@drill(31, "sigstop")
def sigstop(scene: Scene) -> str:
    """A rollout worker is stopped by a signal: it hangs, and is not dead."""
    return lose_worker(scene, signal.SIGSTOP)


@drill(10, "kill-trial")
def kill_trial(scene: Scene) -> str:
    """The process that learns is killed with -9; ``max_failures`` lets it begin again."""
    command = scene.start_run(apex(), "-o", "max_failures=1")
    command.wait_for_result(lambda row: row["info"]["num_updates"] > 10 and row["training_iteration"] >= 3)
    scene.one(TRIAL).kill()
    killed_s = time.monotonic()
    command.wait_for_start()
    before = command.rows[-1]["training_iteration"]
    again = command.wait_for_result()["training_iteration"]
    took_s = time.monotonic() - killed_s
    check(before <= again <= before + 2, f"was at iteration {before}, goes on with {again}")
    command.wait_for_result()
    command.stop()
    check_no_step_twice(scene.out / "drill")
    return f"killed at iteration {before}, went on with {again} after {took_s:.1f} s"


@drill(27, "starved-nested")
def starved_nested(scene: Scene) -> str:
    """A trial that needs every CPU there is, with shards in processes of their own, gets what it needs."""
    text = apex(workers=1, storage="actors").replace("num_cpus_per_worker: 0", "num_cpus_per_worker: 1")
    command = scene.start_run(text, "--fit")
    row = command.wait_until_it_learns()
    took_s = time.monotonic() - command.started_s
    goes_on_and_stops(command, row)
    return f"learned {took_s:.1f} s after the command"


@drill(33, "slow-worker")
def slow_worker(scene: Scene) -> str:
    """One of three workers is twenty times as slow as the others; they are not held up by it."""
    rates = []
    for name, slow_s, workers in (("even", 0.002, 2), ("uneven", 0.04, 3)):
        env_config = f"{{claim: '{scene.folder / name}', step_s: 0.002, slow_s: {slow_s}}}"
        text = apex(env="tests.drills.envs:SlowOnce", env_config=env_config, workers=workers)
        command = scene.start_run(text, name=name)
        rows = [command.wait_for_result() for _ in range(8)]
        rates.append(sum(row["info"]["sample_throughput"] for row in rows[3:]) / len(rows[3:]))
        goes_on_and_stops(command, rows[-1])
    check(rates[1] > 0.7 * rates[0], f"{rates[1]:.0f} steps/s with a slow third worker, {rates[0]:.0f} without it")
    return f"{rates[1]:.0f} steps/s with a slow third worker, {rates[0]:.0f} without it"


@drill(32, "slow-learner")
def slow_learner(scene: Scene) -> str:
    """The learner is so slow that workers could play hundreds of times as much: they are held back."""
    text = (
        apex()
        .replace("fcnet_hiddens: [32]", "fcnet_hiddens: [1024, 1024]")
        .replace("batch_size: 32", "batch_size: 512")
    )
    command = scene.start_run(text)
    first = command.wait_until_it_learns(updates=5)["info"]
    last = command.wait_until_it_learns(updates=60)
    trained, sampled = (last["info"][key] - first[key] for key in ("num_steps_trained", "num_steps_sampled"))
    check(3.8 <= trained / sampled <= 4.2, f"{trained / sampled:.2f} steps trained for each sampled, not 4")
    goes_on_and_stops(command, last, updates=2)
    waiting = last["info"]["worker_wait_share"]
    return f"{trained / sampled:.2f} steps trained for each sampled, of 4; workers wait {waiting:.0%} of their time"


@drill(34, "object-store-full")
def object_store_full(scene: Scene) -> str:
    """Ray's object store is small, and observations are large."""
    text = apex(env="tests.lab.envs:PixelEnv", env_config="{size: 84}", storage="actors").replace(
        "    seed: 0\n", "    seed: 0\n    preprocessor_pref: null\n"
    )
    command = scene.start_run(text, RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES="80000000")
    row = command.wait_for_result(lambda row: row["timesteps_total"] > 4000)
    goes_on_and_stops(command, row)
    return f"{row['timesteps_total']} steps of 21 kB each through 80 MB"


@drill(49, "orphans")
def orphans(scene: Scene) -> str:
    """After a run that ended by itself nothing of it is left but its directory."""
    shared = set(os.listdir("/dev/shm"))
    scene.start_run(apex(steps=1000, storage="shared_memory")).end_with(0)
    scene.check_nothing_lingers()
    left = {path.name for path in scene.folder.iterdir()} - {"out", "drill.yaml"}
    check(not left, f"in the temporary folder: {left}")
    check_no_shared_memory(shared)
    return "no process, no temporary folder, no shared memory"


def check_no_shared_memory(before: set[str]) -> None:
    """Check that nothing of ours or Ray's was added to ``/dev/shm``; other programs use it as well."""
    more = {name for name in set(os.listdir("/dev/shm")) - before if "ray" in name or "rlexp" in name}
    check(not more, f"in /dev/shm: {more}")


def check_batches(scene: Scene, command: Command, batches: int) -> None:
    """Check that a run ends by itself, and that each of its iterations has the env steps of one train batch."""
    command.end_with(0)
    check_no_step_twice(scene.out / "drill")
    rows = rows_of(scene.out / "drill")
    steps = [row["timesteps_total"] for row in rows]
    check(steps == [PPO_BATCH * (number + 1) for number in range(batches)], f"env steps {steps}")
    trained = [row["info"]["num_steps_trained"] for row in rows]
    check(trained == steps, f"trained {trained}")


@drill(78, "kill-learner")
def kill_learner(scene: Scene) -> str:
    """One of several learners is killed with -9 while it learns: another one replaces it, and the trial goes on."""
    batches = 3
    command = scene.start_run(ppo(batches, learners=2, epochs=150))
    command.wait_for_result()
    time.sleep(0.5)  # it learns for longer than that
    learners = scene.processes(LEARNER)
    check(len(learners) == 2, f"{len(learners)} learners")
    learners[1].kill()
    killed_s = time.monotonic()
    said = command.wait_for_note(r"learner \d died; another one has replaced it")
    took_s = time.monotonic() - killed_s
    check(took_s < LONGEST_REPLACEMENT_S, f"replaced after {took_s:.1f} s")
    again = command.wait_for_result()["training_iteration"]
    check(again == 2, f"was at iteration 1, goes on with {again}")
    check_batches(scene, command, batches)
    return f"{said}, {took_s:.1f} s after the kill; went on with iteration {again}"
