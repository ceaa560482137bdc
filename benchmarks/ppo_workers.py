"""How PPO gains from more workers where the env is slow: CartPole with 5 ms a step, 1 worker against 8.

The env sleeps, so that workers need no cores of their own: what is measured is how well they sample at the same time.
A run ends at a mean reward of 150, or after ``--steps`` env steps. All runs have the same hyperparameters and the
same train batches, so that their rewards can be compared at equal env steps. Seconds are counted from the
end of the first train batch, so that the start of the processes is in none of them.
``--plot FILE`` draws the rewards over seconds and over env steps.

    python benchmarks/ppo_workers.py [--workers 1 8] [--seeds 0 1 2] [--steps 60000] [--plot FILE] [--json]
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gymnasium as gym
import numpy as np

from benchmarks.comparison import Column, Table, conditions, options
from benchmarks.processes import run_experiment, unwind_on_sigterm
from rlexp.config.yaml.reader import to_yaml

STEP_S = 0.005
GOAL = 150.0
COLUMNS = (
    Column("workers", "workers", 8),
    Column("seed", "seed", 6),
    Column("steps_s", "steps/s", 8, ",.0f"),
    Column("goal_s", "s to 150", 9, ".1f"),
    Column("goal_steps", "steps to 150", 12, ",.0f"),
)


class SlowCartPole(gym.Wrapper[Any, Any, Any, Any]):
    """CartPole-v1 with a step that takes STEP_S, as a simulator or a robot would."""

    def __init__(self) -> None:
        super().__init__(gym.make("CartPole-v1"))

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        time.sleep(STEP_S)
        return self.env.step(action)


def experiment(workers: int, steps: int) -> dict[str, Any]:
    """Return the experiment of a number of workers."""
    config = {
        "num_workers": workers,
        "num_cpus_per_worker": 1 / (2 * workers),
        "num_cpus_for_driver": 1,
        "sample_batch_size": 100,
        "train_batch_size": 1600,
        "sgd_minibatch_size": 200,
        "num_sgd_iter": 10,
        "lr": 0.001,
        "gamma": 0.98,
        "lambda": 0.9,
        "kl_coeff": 0,
        "clip_param": 0.2,
        "vf_clip_param": 1000.0,
        "vf_loss_coeff": 0.5,
        "grad_norm_clipping": 0.5,
        "model": {"fcnet_hiddens": [64, 64]},
    }
    stop = {"episode_reward_mean": GOAL, "timesteps_total": steps}
    env = "benchmarks.ppo_workers:SlowCartPole"
    return {"slow": {"run": "PPO", "env": env, "stop": stop, "config": config}}


@dataclass(frozen=True)
class Curve:
    """What a run reported after each train batch."""

    seconds: list[float]
    """Since the first train batch, which contains the start of the processes."""
    steps: list[int]
    rewards: list[float | None]

    @property
    def steps_per_s(self) -> float:
        """Env steps a second."""
        return (self.steps[-1] - self.steps[0]) / self.seconds[-1]

    def goal(self) -> int | None:
        """Return the index of the first result that reached GOAL."""
        return next((index for index, reward in enumerate(self.rewards) if reward and reward >= GOAL), None)


def measure(workers: int, seed: int, steps: int, timeout_s: float) -> Curve:
    """Return the curve of one run."""
    with TemporaryDirectory(prefix="rlexp-benchmark-") as folder:
        file = Path(folder) / "slow.yaml"
        file.write_text(to_yaml(experiment(workers, steps)), encoding="utf-8")
        events = run_experiment(file, Path(folder), ["--seed", str(seed)], timeout_s)
    rows = [event.fields["result"] for event in events if event.kind == "result"]
    first_s = rows[0]["time_total_s"]
    return Curve(
        [row["time_total_s"] - first_s for row in rows],
        [row["timesteps_total"] for row in rows],
        [row["episode_reward_mean"] for row in rows],
    )


def line_of(workers: int, seed: int | str, curves: Sequence[Curve]) -> dict[str, Any]:
    """Return a line with the medians of ``curves``."""
    goals = [curve.goal() for curve in curves]
    reached = [(curve, goal) for curve, goal in zip(curves, goals, strict=True) if goal is not None]
    is_known = len(reached) == len(curves)
    return {
        "workers": workers,
        "seed": seed,
        "steps_s": statistics.median(curve.steps_per_s for curve in curves),
        "goal_s": statistics.median(curve.seconds[goal] for curve, goal in reached) if is_known else None,
        "goal_steps": statistics.median(curve.steps[goal] for curve, goal in reached) if is_known else None,
    }


def draw(curves: Mapping[int, Sequence[Curve]], file: Path) -> None:
    """Draw the mean reward of each number of workers over seconds and over env steps."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    over_time, over_steps = figure.subplots(1, 2, sharey=True)
    for workers, runs in curves.items():
        for axes, name in ((over_time, "seconds"), (over_steps, "steps")):
            end = min(getattr(curve, name)[-1] for curve in runs)
            at = np.linspace(0.0, end, 100)
            rewards = [
                np.interp(at, getattr(curve, name), [reward or np.nan for reward in curve.rewards]) for curve in runs
            ]
            axes.plot(at, np.nanmean(rewards, axis=0), label=f"{workers} worker{'s' if workers > 1 else ''}")
    over_time.set(xlabel="seconds", ylabel="mean reward of 100 episodes")
    over_steps.set(xlabel="env steps")
    over_time.legend()
    figure.savefig(file)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--workers", nargs="+", type=int, default=(1, 8), metavar="N", help="compared with each other")
    parser.add_argument("--seeds", nargs="+", type=int, default=range(3), metavar="N", help="one run each")
    parser.add_argument("--steps", type=int, default=60_000, metavar="N", help="env steps of a run, at most")
    parser.add_argument("--timeout", type=float, default=600.0, metavar="S", help="when a run is given up")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the curves into this file")
    args = parser.parse_args()
    unwind_on_sigterm()
    print(conditions(), file=sys.stderr)
    table = Table(COLUMNS, args.json)
    curves: dict[int, list[Curve]] = {workers: [] for workers in args.workers}
    for seed in args.seeds:
        for workers, runs in curves.items():
            runs.append(measure(workers, seed, args.steps, args.timeout))
            table.add(line_of(workers, seed, runs[-1:]))
    for workers, runs in curves.items():
        table.add(line_of(workers, "median", runs))
    if args.plot:
        draw(curves, args.plot)


if __name__ == "__main__":
    main()
