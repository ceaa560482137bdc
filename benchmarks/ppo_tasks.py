"""What benchmarks/ppo.py trains: the experiments of rlexp, and the same settings in the words of other libraries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

EXPERIMENTS = Path(__file__).parents[1] / "experiments"

RLLIB_DEFAULTS = """\
cartpole-defaults:
  run: PPO
  env: CartPole-v1
  stop: {timesteps_total: 20000}
  config:
    num_workers: 2
    num_cpus_per_worker: 0.5
    num_envs_per_worker: 8
    rollout_fragment_length: auto
    batch_mode: truncate_episodes
    observation_filter: NoFilter
"""
"""The defaults of RLlib 2.6.3, which are rlexp's; two workers and the learner fit two cores."""

SB3, SBX, TIANSHOU, TORCHRL, CLEANRL = "SB3", "SBX", "Tianshou", "TorchRL", "CleanRL"
RLLIB_NEW, RLLIB, SAMPLE_FACTORY = "RLlib-new", "RLlib", "Sample-Factory"
PACKAGES = {
    SB3: "stable-baselines3",
    SBX: "sbx-rl",
    TIANSHOU: "tianshou",
    TORCHRL: "torchrl",
    CLEANRL: "tyro",
    RLLIB_NEW: "dm-tree",
    RLLIB: "ray",
    SAMPLE_FACTORY: "sample-factory",
}
"""What the Python of each peer has. CleanRL is files, which need tyro; RLlib's new API stack needs dm-tree."""

APPO = """\
appo:
  run: APPO
  env: CartPole-v1
  stop: {episode_reward_mean: 475, timesteps_total: 500000}
  config:
    num_workers: 2
    num_cpus_per_worker: 0.5
    num_cpus_for_driver: 1
    timesteps_per_iteration: 10000
    min_iter_time_s: 0
    num_envs_per_worker: 8
    sample_batch_size: 32
    train_batch_size: 256
    num_sgd_iter: 2
    max_policy_lag: 8
    vtrace: false
    lambda: 0.95
    clip_param: 0.2
    grad_norm_clipping: 0.5
    lr_schedule: [[0, 2e-3], [500000, 0]]
    entropy_coeff: 0
    model: {fcnet_hiddens: [64, 64], vf_share_layers: false}
"""
"""experiments/cartpole-appo.yaml with two workers and without V-trace, which fails in Sample Factory 2.1.1."""

PONG = """\
pong:
  run: APPO
  env: PongNoFrameskip-v4
  stop: {timesteps_total: 30000}
  config:
    num_workers: 2
    num_cpus_per_worker: 0.5
    num_cpus_for_driver: 1
    timesteps_per_iteration: 2048
    min_iter_time_s: 0
    num_envs_per_worker: 8
    sample_batch_size: 32
    train_batch_size: 256
    num_sgd_iter: 1
    max_policy_lag: 8
    vtrace: false
    lambda: 0.95
    clip_param: 0.1
    grad_norm_clipping: 0.5
    lr: 2.5e-4
    entropy_coeff: 0.01
    model:
      vf_share_layers: true
      conv_filters: [[32, 8, 4], [64, 4, 2], [64, 3, 1]]
      post_fcnet_hiddens: [512]
      post_fcnet_activation: relu
"""
"""For its speed alone: the envs of Sample Factory, its frames and its network."""

PQN = """\
pqn:
  run: PQN
  env: CartPole-v1
  stop: {episode_reward_mean: 475, timesteps_total: 150000}
  config:
    num_workers: 0
    timesteps_per_iteration: 2048
    lambda: 0.65
    num_envs_per_worker: 32
    sample_batch_size: 32
    train_batch_size: 1024
    sgd_minibatch_size: 64
    num_sgd_iter: 4
    lr_schedule: [[0, 1e-3], [150000, 0]]
    adam_epsilon: 1e-5
    epsilon_timesteps: 30000
    exploration_final_eps: 0.02
    model: {fcnet_hiddens: [120, 84]}
"""
"""experiments/cartpole-pqn.yaml with the network and the lambda of CleanRL, whose file does not learn with 0.95."""

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Task:
    """One experiment, and how peers train the same env."""

    name: str
    experiment: Path | str
    """A file, or its text. Its ``stop`` is that of the peers as well."""
    goal: float | None
    """The mean return to which seconds and env steps are counted."""
    max_s: float
    """Seconds of training after which a program ends without the goal."""
    peers: Mapping[str, Settings]
    """Those of each that is compared. ``linear_to_zero`` names what is annealed over all steps."""

    def file(self, folder: Path) -> Path:
        """Return the experiment's file, which is written to ``folder`` where it is a text."""
        if isinstance(self.experiment, Path):
            return self.experiment
        file = folder / f"{self.name}.yaml"
        file.write_text(self.experiment, encoding="utf-8")
        return file


ZOO: Settings = {
    "n_envs": 8,
    "n_steps": 32,
    "batch_size": 256,
    "n_epochs": 20,
    "gamma": 0.98,
    "gae_lambda": 0.8,
    "ent_coef": 0.0,
    "learning_rate": 1e-3,
    "clip_range": 0.2,
    "linear_to_zero": ["learning_rate", "clip_range"],
}
"""The tuned values of rl-baselines3-zoo for CartPole, in the words of Stable-Baselines3."""

TASKS = (
    Task(
        "cartpole",
        EXPERIMENTS / "cartpole-ppo.yaml",
        goal=475,
        max_s=120,
        peers={
            **dict.fromkeys((SB3, SBX, TIANSHOU, TORCHRL, RLLIB_NEW), ZOO),
            CLEANRL: {
                "file": "ppo.py",
                "num-envs": 8,
                "num-steps": 32,
                "num-minibatches": 1,
                "update-epochs": 20,
                "gamma": 0.98,
                "gae-lambda": 0.8,
                "ent-coef": 0.0,
                "learning-rate": 1e-3,
                "clip-coef": 0.2,
                "no-clip-vloss": None,
            },
        },
    ),
    Task(
        "pendulum",
        EXPERIMENTS / "pendulum-ppo.yaml",
        goal=-200,
        max_s=300,
        peers={
            SB3: {
                "n_envs": 4,
                "n_steps": 1024,
                "n_epochs": 10,
                "gamma": 0.9,
                "gae_lambda": 0.95,
                "ent_coef": 0.0,
                "learning_rate": 1e-3,
                "clip_range": 0.2,
                "use_sde": True,
                "sde_sample_freq": 4,
            }
        },
    ),
    Task(
        "appo",
        APPO,
        goal=475,
        max_s=60,
        peers={
            SAMPLE_FACTORY: {
                "num_workers": 2,
                "num_envs_per_worker": 8,
                "rollout": 32,
                "batch_size": 256,
                "num_epochs": 2,
                "use_rnn": False,
                "recurrence": 1,
                "encoder_mlp_layers": [64, 64],
                "nonlinearity": "tanh",
                "actor_critic_share_weights": False,
                "gae_lambda": 0.95,
                "ppo_clip_ratio": 0.2,
                "ppo_clip_value": 1000.0,
                "max_policy_lag": 8,
                "learning_rate": 2e-3,
                "lr_schedule": "linear_decay",
                "exploration_loss_coeff": 0.0,
                "max_grad_norm": 0.5,
                "normalize_input": False,
                "normalize_returns": False,
            }
        },
    ),
    Task(
        "pong",
        PONG,
        goal=None,
        max_s=30,
        peers={
            SAMPLE_FACTORY: {
                "num_workers": 2,
                "num_envs_per_worker": 8,
                "rollout": 32,
                "batch_size": 256,
                "num_epochs": 1,
                "use_rnn": False,
                "recurrence": 1,
                "encoder_conv_architecture": "convnet_atari",
                "encoder_conv_mlp_layers": [512],
                "nonlinearity": "relu",
                "env_frameskip": 4,
                "env_framestack": 4,
                "obs_scale": 255.0,
                "gae_lambda": 0.95,
                "ppo_clip_ratio": 0.1,
                "max_policy_lag": 8,
                "learning_rate": 2.5e-4,
                "exploration_loss_coeff": 0.01,
                "max_grad_norm": 0.5,
                "normalize_input": False,
                "normalize_returns": False,
            }
        },
    ),
    Task(
        "pqn",
        PQN,
        goal=475,
        max_s=60,
        peers={
            CLEANRL: {
                "file": "pqn.py",
                "num-envs": 32,
                "num-steps": 32,
                "num-minibatches": 16,
                "update-epochs": 4,
                "q-lambda": 0.65,
                "learning-rate": 1e-3,
                "end-e": 0.02,
                "exploration-fraction": 0.2,
            }
        },
    ),
    Task("defaults", RLLIB_DEFAULTS, goal=None, max_s=120, peers={RLLIB: {"num_workers": 2, "num_envs_per_worker": 8}}),
)


def published(file: Path) -> Task:
    """Return the task of ``cartpole-ppo.yaml`` of Ray 2.5.0, a ``file`` that the user has; RLlib's settings are its."""
    return Task(
        "published",
        file,
        goal=150,
        max_s=60,
        peers={
            RLLIB: {
                "gamma": 0.99,
                "lr": 0.0003,
                "num_workers": 1,
                "observation_filter": "MeanStdFilter",
                "num_sgd_iter": 6,
                "vf_loss_coeff": 0.01,
                "model": {"fcnet_hiddens": [32], "fcnet_activation": "linear", "vf_share_layers": True},
                "enable_connectors": True,
            }
        },
    )
