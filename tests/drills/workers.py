"""Drills on what moves experience: rollout workers, replay shards, and the envs in them.

And on PPO: what moves a train batch, and the learners that share it.
"""

from __future__ import annotations

import os
import re
import signal
import time
from typing import Any

from tests.drills.runs import PPO_BATCH, apex, check_no_step_twice, dqn, ppo, rows_of
from tests.drills.scene import Command, Scene, check, drill

WORKER, SHARD, LEARNER = "ray::RolloutWorker", "ray::ReplayShard", "ray::LearnerProcess"
TRIAL = ("ray::ExperimentTrainable", "ray::ResourceTrainable")
"""Ray names a trial's process after its class between two calls, and after Tune's wrapper of it within one."""
FAILING_ENV = "tests.lab.failing_env:FailsOnceEnv"
LONGEST_REPLACEMENT_S = 10.0
"""Beyond the time it takes to see that a worker hangs; on a machine that others use as well."""
LONGEST_REPLACEMENT_S = 10.0
"""From a learner's death to its replacement; on a machine that others use as well."""


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


def failing(scene: Scene, how: str) -> str:
    """Return the ``env_config`` of an env that fails as ``how`` says; it remembers in a file that it has."""
    return f"{{failed: '{scene.folder / 'failed'}', how: {how}}}"


def fail_once(scene: Scene, how: str, said: str) -> str:
    """Let an env fail once in one worker; check what is said and that all goes on."""
    command = scene.start_run(apex(env=FAILING_ENV, env_config=failing(scene, how)))
    note = command.wait_for_note(said)
    goes_on_and_stops(command, command.wait_until_it_learns())
    return note


@drill(1, "kill-rollout")
def kill_rollout(scene: Scene) -> str:
    """A rollout worker is killed with -9 in the middle of an episode."""
    return lose_worker(scene, signal.SIGKILL)


@drill(31, "sigstop")
def sigstop(scene: Scene) -> str:
    """A rollout worker is stopped by a signal: it hangs, and is not dead."""
    return lose_worker(scene, signal.SIGSTOP)


@drill(9, "kill-shard")
def kill_shard(scene: Scene) -> str:
    """A replay shard is killed with -9."""
    command = scene.start_run(apex(storage="actors"))
    row = command.wait_until_it_learns()
    scene.one(SHARD).kill()
    note = command.wait_for_note(r"^replay shard \d failed")
    check("transitions" in note, note)
    goes_on_and_stops(command, row)
    return note


@drill(11, "env-hang")
def env_hang(scene: Scene) -> str:
    """``env.step`` of one worker never returns."""
    return fail_once(scene, "hang", r"^worker \d delivered nothing for 5 s")


@drill(12, "env-raise")
def env_raise(scene: Scene) -> str:
    """``env.step`` raises once, and in another run always."""
    note = fail_once(scene, "raise", r"^worker \d failed: .*RuntimeError: this env fails")
    # So that the first fragment is never complete.
    words = ("-o", "sample_batch_size=200")
    command = scene.start_run(
        apex(env=FAILING_ENV, env_config=failing(scene, "raise, always: true")), *words, name="always"
    )
    command.end_with(1)
    check("RuntimeError: this env fails" in command.last_words, f"said {command.last_words}")
    return f"{note}; always: exit 1, {command.last_words}"


@drill(13, "env-segfault")
def env_segfault(scene: Scene) -> str:
    """An env takes its process with it."""
    return fail_once(scene, "die", r"^worker \d failed: its process died; replaced in")


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


@drill(14, "env-nan")
def env_nan(scene: Scene) -> str:
    """An env pays a reward of NaN, once; then, in one process, always."""
    note = fail_once(scene, "nan", r"^worker \d failed: .*a reward of nan")
    scene.start_run(dqn(env=FAILING_ENV, env_config=failing(scene, "nan, always: true")), name="always").end_with(1)
    return note


@drill(15, "nan-loss")
def nan_loss(scene: Scene) -> str:
    """Training diverges: the trial fails with what to do, and its last checkpoint is from before."""
    command = scene.start_run(dqn(lr="1e30"))
    command.end_with(1)
    message = command.last_words
    check("the loss is" in message and "lower lr" in message, message)
    return message


@drill(27, "starved-nested")
def starved_nested(scene: Scene) -> str:
    """A trial that needs every CPU there is, with shards in processes of their own, gets what it needs."""
    text = apex(workers=1, storage="actors").replace("num_cpus_per_worker: 0", "num_cpus_per_worker: 1")
    command = scene.start_run(text, "--fit")
    row = command.wait_until_it_learns()
    took_s = time.monotonic() - command.started_s
    goes_on_and_stops(command, row)
    return f"learned {took_s:.1f} s after the command"


def fail_always(scene: Scene, how: str, restarts: int) -> tuple[str, list[str]]:
    """Let the env of a run's only worker fail again and again; return the trial's last words and the notes."""
    text = apex(workers=1, env=FAILING_ENV, env_config=failing(scene, f"{how}, always: true"))
    command = scene.start_run(text, "-o", f"max_num_worker_restarts={restarts}")
    command.end_with(1)
    return command.last_words, command.notes


@drill(29, "stall-watchdog")
def stall_watchdog(scene: Scene) -> str:
    """The env of every worker hangs again and again: the run ends, and says why."""
    message, _ = fail_always(scene, "hang", restarts=1)
    check("delivered nothing" in message, message)
    return message


@drill(30, "worker-flap")
def worker_flap(scene: Scene) -> str:
    """A worker's process dies as soon as it has played a little, every time."""
    message, notes = fail_always(scene, "die", restarts=3)
    check(sum("replaced in" in note for note in notes) == 3, f"notes {notes}")
    return f"{len(notes)} notes, then: {message}"


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
    command = scene.start_run(ppo(scene.folder / "claim", batches, learners=2, epochs=150))
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


@drill(79, "kill-batch-worker")
def kill_batch_worker(scene: Scene) -> str:
    """A rollout worker of PPO is killed with -9 while a train batch is sampled: the others sample what it had not."""
    batches = 4
    command = scene.start_run(ppo(scene.folder / "claim", batches, step_s=0.02))
    command.wait_for_result(lambda row: row["training_iteration"] == 1)
    time.sleep(1.0)  # sampling a batch takes 2 s
    scene.one(WORKER).kill()
    note = command.wait_for_note(r"^worker \d failed: its process died; replaced in")
    check_batches(scene, command, batches)
    return note
