"""Drills on going on: runs that are killed or damaged, once or again and again; what is lost is counted."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import psutil

from tests.drills.runs import (
    CARTPOLE,
    apex,
    check_no_step_twice,
    checkpoints_of,
    dqn,
    iteration_of,
    resumed,
    rows_of,
    stopped_run,
    trial_of,
)
from tests.drills.scene import Command, Scene, check, drill, own_bytes
from tests.drills.workers import SHARD, TRIAL, WORKER, check_no_shared_memory, replaced_in

SEED = 11
SOAK_S, EVERY_S = 600.0, 15.0
UNDISTURBED_S = 120.0
REWARD = 475.0
LEAST_THROUGHPUT = 0.7
"""Of the undisturbed run's env steps per second."""
MOST_MEMORY = 1.3
"""Times what all processes of the run had in the beginning; replay is full by then."""
REPLACEMENTS = 36
LONGEST_P50_S, LONGEST_P99_S = 3.0, 6.0
COMMAND = "command"


def percentiles(seconds: Sequence[float]) -> str:
    """Return how long something took, as it is told."""
    if not seconds:
        return "no time, as it was never killed"
    p50, p99 = np.percentile(seconds, [50, 99])
    return f"p50 {p50:.1f} s, p99 {p99:.1f} s of {len(seconds)}"


def follow(command: Command, until_s: float) -> None:
    """Take in what a run says until a moment has passed."""
    while time.monotonic() < until_s:
        command.wait_for("event", lambda event: True)


def throughput_of(run: Path, seconds: float, since_steps: int) -> float:
    """Return the env steps per second of what a run has kept."""
    return float(rows_of(run)[-1]["timesteps_total"] - since_steps) / seconds


def kill_at_random_moments(scene: Scene, moments: int) -> str:
    """Kill a run that writes a checkpoint every few milliseconds; before every other resume, one that still starts."""
    rng, run, redone, gone_s = random.Random(SEED), scene.out / "drill", 0, []
    command = scene.start_run(dqn(checkpoint_freq=1), "-o", "keep_checkpoints_num=3")
    command.wait_for_result()
    for moment in range(moments):
        time.sleep(rng.uniform(0, 1))  # the moment is what is random
        gone_s.append(scene.kill(command))
        newest = iteration_of(checkpoints_of(run)[-1])
        reported = (trial_of(run) / "result.json").read_text(encoding="utf-8").count("\n")  # the last line may be half
        redone = max(redone, reported - newest)
        if moment % 2:
            command = scene.start("resume", run)
            time.sleep(rng.uniform(0, 5))
            scene.kill(command)
            newest = iteration_of(checkpoints_of(run)[-1])  # it may have come so far as to write one
        command = resumed(scene, run, newest)
    command.stop()
    check_no_step_twice(run)
    return (
        f"{moments} of {moments} went on from the newest checkpoint, at most {redone} iterations were done again;"
        f" all processes gone after {max(gone_s):.1f} s at most"
    )


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


@drill(23, "ckpt-kill-mid-write")
def ckpt_kill_mid_write(scene: Scene) -> str:
    """Killed with -9 at three random moments of a run that writes a checkpoint every few milliseconds."""
    return kill_at_random_moments(scene, 3)


@drill(63, "ckpt-kill-fifty", is_long=True)
def ckpt_kill_fifty(scene: Scene) -> str:
    """Killed with -9 at fifty random moments of such a run."""
    return kill_at_random_moments(scene, 50)


@drill(64, "worker-recovery", is_long=True)
def worker_recovery(scene: Scene) -> str:
    """Thirty-six times, one of the two workers that have lived longest is killed with -9."""
    command = scene.start_run(apex(workers=4))
    command.wait_until_it_learns()
    follow(command, time.monotonic() + 10)
    rng, seconds = random.Random(SEED), []
    for _ in range(REPLACEMENTS):
        oldest = sorted(scene.processes(WORKER), key=lambda process: process.create_time())
        rng.choice(oldest[:2]).kill()
        seconds.append(replaced_in(command.wait_for_note(r"^worker \d failed.*replaced in")))
        follow(command, time.monotonic() + 4)
    command.stop()
    p50, p99 = np.percentile(seconds, [50, 99])
    check(p50 <= LONGEST_P50_S and p99 <= LONGEST_P99_S, percentiles(seconds))
    return f"replaced in {percentiles(seconds)}"


class Soak:
    """A run of which something is killed now and then, and what was seen of it; goes on with ``rlexp resume``."""

    def __init__(self, scene: Scene, name: str) -> None:
        self.scene = scene
        self.run = scene.out / name
        self.kills: Counter[str] = Counter()
        self.seconds: dict[str, list[float]] = {COMMAND: [], "trial": [], "worker": []}
        self.best = 0.0
        self._seen = 0
        self.command = scene.start_run(CARTPOLE, name=name)
        self.command.wait_until_it_learns()

    def victims(self) -> list[tuple[str, psutil.Process]]:
        """Return the processes of the run that are ours; Ray's own are the drill ray-gone's."""
        kinds: dict[str, str | tuple[str, ...]] = {"trial": TRIAL, "worker": WORKER, "shard": SHARD}
        found = [(name, process) for name, kind in kinds.items() for process in self.scene.processes(kind)]
        return [(COMMAND, psutil.Process(self.command.process.pid)), *found]

    def kill(self, kind: str, process: psutil.Process) -> None:
        """Kill a process with -9; where it is the command, resume its run as soon as it is gone."""
        self.look()
        self.kills[kind] += 1
        killed_s = time.monotonic()
        process.kill()
        if kind == COMMAND:
            self.command.process.wait()
            self.command, self._seen = self.scene.start("resume", self.run, "--json"), 0
        elif kind == "trial":
            self.command.wait_for_start()
        else:
            return
        self.command.wait_for_result()
        self.seconds[kind].append(time.monotonic() - killed_s)

    def look(self) -> None:
        """Take in what was said since the last look."""
        new, self._seen = self.command.events[self._seen :], len(self.command.events)
        for event in new:
            if event["event"] == "result":
                self.best = max(self.best, event["result"]["episode_reward_mean"] or 0.0)
            elif event["event"] == "note" and "replaced in" in event["text"]:
                self.seconds["worker"].append(replaced_in(event["text"]))


def undisturbed(scene: Scene) -> float:
    """Return the env steps per second of a run to which nothing happens."""
    soak = Soak(scene, "undisturbed")
    first, started_s = soak.command.wait_for_result()["timesteps_total"], time.monotonic()
    follow(soak.command, started_s + UNDISTURBED_S)
    seconds = time.monotonic() - started_s
    rate = throughput_of(soak.run, seconds, first)
    soak.command.stop()
    return rate


@drill(59, "soak-chaos", is_long=True)
def soak_chaos(scene: Scene) -> str:
    """For ten minutes some process of a run is killed with -9 every fifteen seconds."""
    shared, rng = set(os.listdir("/dev/shm")), random.Random(SEED)
    expected = undisturbed(scene)
    soak = Soak(scene, "soak")
    first, started_s = soak.command.wait_for_result()["timesteps_total"], time.monotonic()
    memory = []
    for count in range(1, int(SOAK_S / EVERY_S) + 1):
        follow(soak.command, started_s + count * EVERY_S)
        memory.append(sum(map(own_bytes, scene.processes())))
        soak.kill(*rng.choice(soak.victims()))
    follow(soak.command, started_s + SOAK_S + EVERY_S)
    rate = throughput_of(soak.run, time.monotonic() - started_s, first)
    soak.command.stop()
    soak.look()
    check_no_step_twice(soak.run)
    early, late = np.median(memory[4:12]), np.median(memory[-8:])
    told = (
        f"{dict(soak.kills)}; command back in {percentiles(soak.seconds[COMMAND])}, trial in"
        f" {percentiles(soak.seconds['trial'])}, worker in {percentiles(soak.seconds['worker'])}; best mean return"
        f" {soak.best:.0f}; {rate:.0f} steps/s of {expected:.0f} ({rate / expected:.0%}); memory"
        f" {early / 1e6:.0f} to {late / 1e6:.0f} MB"
    )
    check(soak.best >= REWARD, f"did not reach {REWARD:g}: {told}")
    check(rate >= LEAST_THROUGHPUT * expected, told)
    check(late <= MOST_MEMORY * early, told)
    scene.check_nothing_lingers()
    check_no_shared_memory(shared)
    scene.run("doctor", "--clean")
    left = sorted(path.name for path in scene.folder.iterdir() if path.suffix != ".yaml" and path.name != "out")
    check(not left, f"left after doctor --clean: {left}")
    return told
