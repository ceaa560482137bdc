"""Updates a second of DQN in one process, env steps and replay included, beside those of other libraries.

pendulum: experiments/pendulum-dqn.yaml beside simple_distributed_rl (SRL): batches of 32 by priority from 5 000 rows,
two layers of 64, double Q-learning, an update for every two steps. cartpole: what the RL Baselines3 Zoo has for
CartPole-v1 beside Stable-Baselines3, SBX, Tianshou and TorchRL: two layers of 256, uniform batches of 64, and 128
updates after every 256 steps. All programs of a task do as many env steps for an update, with the same network, in one
process with one thread; their start, what they compile and the first WARM_UP updates do not count. They take turns.
rlexp's is the agent of a run, without Ray. A peer that is not installed is left out.

`make bench-peers` installs all but SRL, which is no package: `git clone
https://github.com/pocokhc/simple_distributed_rl`, and give its folder in PYTHONPATH.

    python benchmarks/dqn.py [--tasks cartpole pendulum] [--repeats 5] [--PEER PYTHON] [--json]
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.comparison import Column, Table, conditions, in_turns, median_of, options
from benchmarks.ppo_programs import experiment_of
from benchmarks.processes import (
    PEERS_ENVIRONMENT,
    add_peer_options,
    in_own_process,
    output_of,
    run_command,
    unwind_on_sigterm,
)
from benchmarks.sb3 import TASKS as SB3_TASKS
from benchmarks.sb3 import same_settings
from rlexp.agents.dqn.agent import DQNAgent
from rlexp.cluster.pool.pool import InlineTaskPool
from rlexp.config.keys.dqn import DQNConfig

PEERS = Path(__file__).with_name("dqn_peers.py")
PENDULUM = Path(__file__).parents[1] / "experiments" / "pendulum-dqn.yaml"
WARM_UP, UPDATES = 500, 3000
TIMEOUT_S = 300.0
ZOO = SB3_TASKS["cartpole"]
EPSILON_TIMESTEPS = 2000
"""Env steps of the first updates; then all programs have the last epsilon."""
OF_SRL = {"batch_size": 32, "hiddens": [64, 64], "capacity": 5000, "warmup_size": 1000, "train_interval": 2}

COLUMNS = (
    Column("task", "task", 8),
    Column("program", "program", 8),
    Column("updates_per_s", "updates/s", 9, ",.0f"),
    Column("updates_per_cpu_s", "updates/CPU s", 13, ",.0f"),
    Column("ratio", "rlexp by it", 11, ".2f"),
    Column("cpu_ratio", "by CPU time", 11, ".2f"),
)
Figures = dict[str, float]


@dataclass(frozen=True)
class Task:
    """What both programs train."""

    name: str
    env: str
    config: Mapping[str, Any] | None
    """rlexp's keys; None: those of PENDULUM."""
    peers: Sequence[str]
    settings: Mapping[str, Any]
    """The peers'."""


MODULES = {"sb3": "stable_baselines3", "sbx": "sbx", "tianshou": "tianshou", "torchrl": "torchrl", "srl": "srl"}
"""What the Python of each peer can import."""
TASKS = (
    Task(
        "cartpole",
        ZOO.env,
        {**same_settings(ZOO)["config"], "epsilon_timesteps": EPSILON_TIMESTEPS},
        ["sb3", "sbx", "tianshou", "torchrl"],
        ZOO.settings,
    ),
    Task("pendulum", "Pendulum-v1", None, ["srl"], OF_SRL),
)


def train_rlexp(env: str, keys: Mapping[str, Any] | None) -> Figures:
    """Train with the agent of a run in this process; return the speed of its last UPDATES updates."""
    config = experiment_of(PENDULUM).config if keys is None else DQNConfig.model_validate(keys)
    assert isinstance(config, DQNConfig)
    agent = DQNAgent(env, config, InlineTaskPool(), 0)
    updates = 0

    def train_until(limit: int) -> None:
        nonlocal updates
        while updates < limit:
            agent.train()
            updates = agent.optimizer.num_updates

    train_until(WARM_UP)
    before, seconds, cpu_s = updates, time.perf_counter(), time.process_time()
    train_until(before + UPDATES)
    figures = _figures(updates - before, time.perf_counter() - seconds, time.process_time() - cpu_s)
    agent.stop()
    return figures


def measure_peer(task: Task, peer: str, python: str) -> Figures:
    """Return the speed of a peer, which ``python`` has, at ``task``."""
    words = {"env": task.env, "warm_up": WARM_UP, "updates": UPDATES, "settings": dict(task.settings)}
    command = [python, "-W", "ignore", str(PEERS), peer, json.dumps(words)]
    trained = run_command(command, TIMEOUT_S, PEERS_ENVIRONMENT)[0].fields
    return _figures(trained["updates"], trained["seconds"], trained["cpu_s"])


def compare(task: Task, pythons: Mapping[str, str], repeats: int, table: Table) -> None:
    """Add a line for each program of ``task``: the medians, and rlexp's divided by them."""
    turns: dict[str, Callable[[], Figures]] = {
        "rlexp": partial(in_own_process, TIMEOUT_S, train_rlexp, task.env, task.config)
    }
    for peer in task.peers:
        found = f"import importlib.util; assert importlib.util.find_spec({MODULES[peer]!r})"
        if output_of(pythons[peer], found) is not None:
            turns[peer] = partial(measure_peer, task, peer, pythons[peer])
        else:
            print(f"{peer} is not installed, left out", file=sys.stderr)
    measured = in_turns(turns, repeats)
    medians = {
        name: {key: median_of([run[key] for run in runs]) or 0.0 for key in runs[0]} for name, runs in measured.items()
    }
    for name, speed in medians.items():
        wall, cpu = (medians["rlexp"][key] / speed[key] for key in ("updates_per_s", "updates_per_cpu_s"))
        table.add({"task": task.name, "program": name, **speed, "ratio": wall, "cpu_ratio": cpu})


def _figures(updates: float, seconds: float, cpu_s: float) -> Figures:
    return {"updates_per_s": updates / seconds, "updates_per_cpu_s": updates / cpu_s}


def main() -> None:
    parser = options(__doc__, repeats=5)
    names = [task.name for task in TASKS]
    parser.add_argument("--tasks", nargs="*", choices=names, default=names, help="what is trained")
    add_peer_options(parser, MODULES)
    args = parser.parse_args()
    unwind_on_sigterm()
    print(conditions(), file=sys.stderr)
    table = Table(COLUMNS, args.json)
    for task in TASKS:
        if task.name in args.tasks:
            compare(task, vars(args), args.repeats, table)


if __name__ == "__main__":
    main()
