"""The experiments that drills run, what a run leaves in its directory, and how it is stopped, resumed and refused."""

from __future__ import annotations

import csv
import json
import logging
from pathlib import Path
from typing import Any

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.drills.scene import Command, Scene, check

APEX = """
drill:
  run: APEX
  env: {env}
  stop: {{timesteps_total: {steps}}}
  checkpoint_freq: {checkpoint_freq}
  config:
    seed: 0
    num_workers: {workers}
    num_cpus_per_worker: 0
    num_envs_per_worker: 2
    env_config: {env_config}
    sample_batch_size: 10
    sample_timeout_s: 5
    learning_starts: 200
    train_batch_size: 32
    training_intensity: 4
    buffer_size: 5000
    target_network_update_freq: 2000
    timesteps_per_iteration: 200
    min_iter_time_s: 0.5
    replay_storage: {storage}
    model: {{fcnet_hiddens: [32]}}
    optimizer: {{num_replay_buffer_shards: 2}}
"""
DQN = """
drill:
  run: DQN
  env: {env}
  stop: {{timesteps_total: {steps}}}
  checkpoint_freq: {checkpoint_freq}
  config:
    seed: 0
    num_workers: 0
    env_config: {env_config}
    learning_starts: 200
    train_batch_size: 32
    buffer_size: 5000
    lr: {lr}
    timesteps_per_iteration: 200
    min_iter_time_s: {min_iter_time_s}
    model: {{fcnet_hiddens: [32]}}
"""
PPO = """
drill:
  run: PPO
  env: tests.lab.envs:EndlessEnv
  stop: {{timesteps_total: {steps}}}
  checkpoint_freq: 1
  max_failures: 1
  config:
    seed: 0
    num_workers: 2
    num_cpus_per_worker: 0
    num_learners: {learners}
    num_cpus_per_learner: 0
    num_envs_per_worker: 4
    sample_batch_size: 25
    train_batch_size: 800
    sgd_minibatch_size: 100
    num_sgd_iter: {epochs}
    observation_filter: NoFilter
    batch_mode: truncate_episodes
    model: {{fcnet_hiddens: [32]}}
"""
PPO_BATCH = 800
"""Env steps of a train batch, and of an iteration: the episodes of its env do not end."""
CARTPOLE = """
drill:
  run: APEX
  env: CartPole-v1
  stop: {timesteps_total: 1000000000}
  checkpoint_freq: 2
  keep_checkpoints_num: 3
  max_failures: -1
  config:
    seed: 0
    num_workers: 2
    num_cpus_per_worker: 0.5
    num_envs_per_worker: 8
    n_step: 3
    lr: 1e-3
    train_batch_size: 256
    target_network_update_freq: 12800
    learning_starts: 1000
    buffer_size: 100000
    training_intensity: 5
    timesteps_per_iteration: 1000
    min_iter_time_s: 1
    replay_storage: actors
    hiddens: [64]
    model: {fcnet_hiddens: [64, 64], fcnet_activation: relu}
    optimizer: {num_replay_buffer_shards: 2, max_weight_sync_delay: 400}
"""
"""Learns CartPole, and goes on when it has."""
NEVER = 10**9


def apex(
    env: str = "CartPole-v1",
    steps: int = NEVER,
    workers: int = 2,
    storage: str = "local",
    env_config: str = "{}",
    checkpoint_freq: int = 1,
) -> str:
    """Return an Ape-X experiment with a row of results every half second."""
    return APEX.format(
        env=env, steps=steps, workers=workers, storage=storage, env_config=env_config, checkpoint_freq=checkpoint_freq
    )


def dqn(
    env: str = "CartPole-v1",
    steps: int = NEVER,
    lr: str = "1e-3",
    env_config: str = "{}",
    checkpoint_freq: int = 1,
    min_iter_time_s: float = 0,
) -> str:
    """Return a DQN experiment in one process."""
    return DQN.format(
        env=env,
        steps=steps,
        lr=lr,
        env_config=env_config,
        checkpoint_freq=checkpoint_freq,
        min_iter_time_s=min_iter_time_s,
    )


def ppo(batches: int, learners: int, epochs: int) -> str:
    """Return a PPO experiment of some train batches."""
    return PPO.format(steps=batches * PPO_BATCH, learners=learners, epochs=epochs)


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


def check_newest_is_last(command: Command, run: Path) -> int:
    """Check that the newest checkpoint is that of the last iteration that a run reported; return the iteration."""
    last: int = command.rows[-1]["training_iteration"]
    newest = checkpoints_of(run)[-1]
    check(newest.name == f"checkpoint_{last:06d}", f"iteration {last} was reported, {newest.name} kept")
    return last


def stopped_run(scene: Scene, text: str, iterations: int = 4) -> Path:
    """Run an experiment for some iterations, stop it with SIGINT and return its directory."""
    command = scene.start_run(text)
    command.wait_for_result(lambda row: row["training_iteration"] >= iterations)
    command.stop()
    return scene.out / "drill"


def resumed(scene: Scene, run: Path, newest: int) -> Command:
    """Resume a run; check that it goes on behind its checkpoint of iteration ``newest``."""
    command = scene.start("resume", run, "--json")
    first = command.wait_for_result()["training_iteration"]
    check(first == newest + 1, f"checkpoint {newest}, went on with iteration {first}")
    return command


def refused(scene: Scene, code: int, said: str, *arguments: object) -> str:
    """Check that a command ends with ``code`` and says ``said`` on stderr, without a traceback; return that line."""
    command = scene.run(*arguments)
    command.end_with(code)
    lines = [line for line in command.stderr.splitlines() if said in line]
    check(lines, f"{said!r} is not in {command.stderr[-300:]!r}")
    return lines[0]


def refused_run(scene: Scene, code: int, said: str, text: str, *arguments: object) -> str:
    """Check that an experiment is refused so before anything is created; return the line."""
    line = refused(scene, code, said, "run", scene.write("drill.yaml", text), "--out", scene.out, *arguments)
    check(not scene.out.exists(), "something was created")
    return line
