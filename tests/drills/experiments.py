"""The experiments that drills run."""

from __future__ import annotations

from pathlib import Path

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
  env: tests.drills.envs:SlowOnce
  stop: {{timesteps_total: {steps}}}
  checkpoint_freq: 1
  max_failures: 1
  config:
    seed: 0
    env_config: {{claim: '{claim}', step_s: {step_s}, slow_s: {step_s}}}
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


def ppo(claim: Path, batches: int, learners: int = 1, epochs: int = 10, step_s: float = 0) -> str:
    """Return a PPO experiment of some train batches; its env takes ``step_s`` for a step."""
    return PPO.format(claim=claim, steps=batches * PPO_BATCH, learners=learners, epochs=epochs, step_s=step_s)


def cartpole() -> str:
    """Return an Ape-X experiment that learns CartPole, and goes on when it has."""
    return CARTPOLE
