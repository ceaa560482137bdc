"""Trains by DQN with another library; benchmarks/dqn.py runs this file with the Python that has the library.

Imports nothing of rlexp. TASK is a JSON object: `env`, `warm_up` and `updates` are numbers of updates, and `settings`
the library's own. The line on stdout has the `seconds` that the last `updates` took and their `cpu_s`.

    PYTHON benchmarks/dqn_peers.py {sb3,srl} TASK
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from importlib import import_module
from typing import Any

Task = Mapping[str, Any]
Times = dict[str, float]


class Clock:
    """Measures from its making on."""

    def __init__(self) -> None:
        self._seconds, self._cpu_s = time.perf_counter(), time.process_time()

    def read(self) -> Times:
        """Return the seconds and the CPU seconds since then."""
        return {"seconds": time.perf_counter() - self._seconds, "cpu_s": time.process_time() - self._cpu_s}


def train_sb3(task: Task) -> Times:
    """Train with Stable-Baselines3."""
    sb3 = import_module("stable_baselines3")
    settings = dict(task["settings"])
    policy = {"net_arch": settings.pop("net_arch")}
    model = sb3.DQN("MlpPolicy", task["env"], seed=0, device="cpu", policy_kwargs=policy, **settings)
    per_update = settings["train_freq"] / settings["gradient_steps"]
    model.learn(int(settings["learning_starts"] + task["warm_up"] * per_update), progress_bar=False)
    before, clock = model._n_updates, Clock()
    model.learn(int(task["updates"] * per_update), reset_num_timesteps=False, progress_bar=False)
    times = clock.read()
    return {**times, "updates": model._n_updates - before}


def train_srl(task: Task) -> Times:
    """Train with simple_distributed_rl, in its one process."""
    srl, dqn = import_module("srl"), import_module("srl.algorithms.dqn")
    settings = task["settings"]
    config = dqn.Config(batch_size=settings["batch_size"])
    config.set_torch()
    config.hidden_block.set(tuple(settings["hiddens"]))
    config.memory.set_proportional()
    config.memory.capacity, config.memory.warmup_size = settings["capacity"], settings["warmup_size"]
    runner = srl.Runner(task["env"], config)
    fixed = {"train_interval": settings["train_interval"], "enable_progress": False}
    runner.train(max_train_count=task["warm_up"], **fixed)
    clock = Clock()
    state = runner.train(max_train_count=task["updates"], **fixed)
    return {**clock.read(), "updates": state.train_count}


def main() -> None:
    # A library that prints something must not get between the lines.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as lines:
        os.dup2(2, 1)
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        import_module("torch").set_num_threads(1)
        train = {"sb3": train_sb3, "srl": train_srl}[sys.argv[1]]
        print(json.dumps({"event": "trained", **train(json.loads(sys.argv[2]))}), file=lines, flush=True)


if __name__ == "__main__":
    main()
