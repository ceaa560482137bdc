"""Trains by PPO with another library; benchmarks/ppo.py runs this file with the Python that has the library.

Imports nothing of rlexp. TASK is a JSON object. Each line on stdout is an event of kind `row`: `seconds` of training,
without the start; `steps` of the env; `reward`, the mean return of the last 100 episodes; and `cpu_s` where this
process does all the work.

    PYTHON benchmarks/ppo_peers.py {sb3,rllib} TASK
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Mapping
from importlib import import_module
from typing import Any, TextIO

EPISODES = 100
"""How many of the newest ones a mean is taken over."""

Task = Mapping[str, Any]
"""`env`, `seed`, `goal` (or null), `max_steps`, `max_s`, and the library's own `settings`."""


class Report:
    """Writes rows, and says when the task ends."""

    def __init__(self, task: Task, rows: TextIO) -> None:
        self._goal = math.inf if task["goal"] is None else task["goal"]
        self._max_steps, self._max_s = task["max_steps"], task["max_s"]
        self._rows = rows
        self._start = time.perf_counter()

    def add(self, steps: int, reward: float | None, **others: float) -> bool:
        """Write a row; return whether it is the last one."""
        seconds = time.perf_counter() - self._start
        row = {"event": "row", "seconds": seconds, "steps": steps, "reward": reward, **others}
        print(json.dumps(row), file=self._rows, flush=True)
        has_goal = reward is not None and reward >= self._goal
        return has_goal or steps >= self._max_steps or seconds >= self._max_s


def linear(initial: float) -> Any:
    """Return a schedule of Stable-Baselines3 from ``initial`` to 0, given the share of the steps that are left."""
    return lambda left: initial * left


def train_sb3(task: Task, rows: TextIO) -> None:
    """Train with Stable-Baselines3, one row for each train batch."""
    torch, sb3 = import_module("torch"), import_module("stable_baselines3")
    torch.set_num_threads(1)
    make_vec_env = import_module("stable_baselines3.common.env_util").make_vec_env
    callbacks = import_module("stable_baselines3.common.callbacks")
    settings = dict(task["settings"])
    for key in settings.pop("linear_to_zero", ()):
        settings[key] = linear(settings[key])
    env = make_vec_env(task["env"], n_envs=settings.pop("n_envs"), seed=task["seed"])
    model = sb3.PPO("MlpPolicy", env, seed=task["seed"], device="cpu", **settings)

    class Rows(callbacks.BaseCallback):  # type: ignore[misc, name-defined]
        """A row before each train batch is collected, so after the one before is learned."""

        def _on_training_start(self) -> None:
            self.report = Report(task, rows)
            self.has_ended = False

        def _on_rollout_start(self) -> None:
            self._add_row()

        def _on_training_end(self) -> None:
            if not self.has_ended:
                self._add_row()

        def _add_row(self) -> None:
            returns = [episode["r"] for episode in self.model.ep_info_buffer]
            reward = float(sum(returns) / len(returns)) if len(returns) == EPISODES else None
            self.has_ended = self.report.add(self.num_timesteps, reward, cpu_s=time.process_time())

        def _on_step(self) -> bool:
            return not self.has_ended

    model.learn(task["max_steps"], callback=Rows())


def train_rllib(task: Task, rows: TextIO) -> None:
    """Train with the RLlib of Ray 2.6.3, one row for each of its iterations."""
    ray = import_module("ray")
    ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR", num_cpus=4)
    settings = {"framework": "torch", "seed": task["seed"], "log_level": "ERROR", **task["settings"]}
    config = import_module("ray.rllib.algorithms.ppo").PPOConfig().environment(task["env"])
    algorithm = config.update_from_dict(settings).build()
    report = Report(task, rows)
    has_ended = report.add(0, None)
    while not has_ended:
        result = algorithm.train()
        reward = result["episode_reward_mean"] if result["episodes_total"] >= EPISODES else None
        has_ended = report.add(result["timesteps_total"], reward)
    algorithm.stop()
    ray.shutdown()


def main() -> None:
    # A library that prints something must not get between the rows.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as rows:
        os.dup2(2, 1)
        train = {"sb3": train_sb3, "rllib": train_rllib}[sys.argv[1]]
        train(json.loads(sys.argv[2]), rows)


if __name__ == "__main__":
    main()
