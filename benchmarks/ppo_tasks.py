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
    sb3: Settings | None = None
    """For Stable-Baselines3; None: it is not compared. ``linear_to_zero`` names what is annealed over all steps."""
    rllib: Settings | None = None
    """For RLlib; None: it is not compared."""

    def file(self, folder: Path) -> Path:
        """Return the experiment's file, which is written to ``folder`` where it is a text."""
        if isinstance(self.experiment, Path):
            return self.experiment
        file = folder / f"{self.name}.yaml"
        file.write_text(self.experiment, encoding="utf-8")
        return file


TASKS = (
    Task(
        "cartpole",
        EXPERIMENTS / "cartpole-ppo.yaml",
        goal=475,
        max_s=120,
        sb3={
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
        },
    ),
    Task(
        "pendulum",
        EXPERIMENTS / "pendulum-ppo.yaml",
        goal=-200,
        max_s=300,
        sb3={
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
        },
    ),
    Task("defaults", RLLIB_DEFAULTS, goal=None, max_s=120, rllib={"num_workers": 2, "num_envs_per_worker": 8}),
)
"""For Stable-Baselines3 with the tuned values of rl-baselines3-zoo."""


def published(file: Path) -> Task:
    """Return the task of ``cartpole-ppo.yaml`` of Ray 2.5.0, a ``file`` that the user has; RLlib's settings are its."""
    return Task(
        "published",
        file,
        goal=150,
        max_s=60,
        rllib={
            "gamma": 0.99,
            "lr": 0.0003,
            "num_workers": 1,
            "observation_filter": "MeanStdFilter",
            "num_sgd_iter": 6,
            "vf_loss_coeff": 0.01,
            "model": {"fcnet_hiddens": [32], "fcnet_activation": "linear", "vf_share_layers": True},
            "enable_connectors": True,
        },
    )
