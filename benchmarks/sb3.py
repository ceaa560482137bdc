"""Trains Stable-Baselines3 on the tasks of docs/results.md, one run for each seed, and writes what compare reads.

Settings are those of rl-baselines3-zoo (hyperparams/dqn.yml and sac.yml), where it has the env. Its DQN has none for
Pendulum, whose actions are continuous, and for Taxi: those are the settings of experiments/pendulum-dqn.yaml and
taxi-dqn.yaml, and the torque is one of five as there; `taxi-hidden` has a hidden layer. One process, one thread.
Now and then 20 greedy episodes are played in an env with other seeds, the last ones with the final weights; their
seconds are not counted.
Each folder OUT/TASK-SEED has `result.json` and `params.json` in RLlib's form: `rlexp compare sb3=OUT/acrobot-*`
reads them.

    python benchmarks/sb3.py TASK [--seeds 0 1 2] [--out results/sb3] [--evaluations 10]
    python benchmarks/sb3.py TASK --file > same.yaml        # the same settings for rlexp; nothing is trained
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final, TextIO

from benchmarks.comparison import conditions
from rlexp.schedules import derive_seed

EPISODES: Final = 20
"""How many greedy ones are played for an evaluation."""
TRAINING_EPISODES: Final = 100
"""How many of the newest ones the mean return of training is taken over."""
ROWS: Final = 50
"""Of a run."""

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Task:
    """What is trained, and how."""

    env: str
    steps: int
    settings: Settings
    """Arguments of the agent; ``net_arch`` is that of its policy."""
    agent: str = "DQN"
    """Its name, here and there."""
    torques: int | None = None
    """Into how many actions a continuous one is divided."""


_TAXI: Final[Settings] = {
    "learning_rate": 0.05,
    "batch_size": 128,
    "buffer_size": 50_000,
    "learning_starts": 1000,
    "gamma": 0.99,
    "target_update_interval": 1000,
    "train_freq": 8,
    "gradient_steps": 1,
    "exploration_fraction": 20_000 / 150_000,
    "exploration_final_eps": 0.02,
    "net_arch": [],
}
_ACROBOT: Final[Settings] = {
    "learning_rate": 6.3e-4,
    "batch_size": 128,
    "buffer_size": 50_000,
    "learning_starts": 0,
    "gamma": 0.99,
    "target_update_interval": 250,
    "train_freq": 4,
    "gradient_steps": -1,
    "exploration_fraction": 0.12,
    "exploration_final_eps": 0.1,
    "net_arch": [256, 256],
}
TASKS: Final[Mapping[str, Task]] = {
    "cartpole": Task(
        "CartPole-v1",
        50_000,
        {
            "learning_rate": 2.3e-3,
            "batch_size": 64,
            "buffer_size": 100_000,
            "learning_starts": 1000,
            "gamma": 0.99,
            "target_update_interval": 10,
            "train_freq": 256,
            "gradient_steps": 128,
            "exploration_fraction": 0.16,
            "exploration_final_eps": 0.04,
            "net_arch": [256, 256],
        },
    ),
    "acrobot": Task("Acrobot-v1", 100_000, _ACROBOT),
    "mountaincar": Task(
        "MountainCar-v0",
        120_000,
        {
            "learning_rate": 4e-3,
            "batch_size": 128,
            "buffer_size": 10_000,
            "learning_starts": 1000,
            "gamma": 0.98,
            "target_update_interval": 600,
            "train_freq": 16,
            "gradient_steps": 8,
            "exploration_fraction": 0.2,
            "exploration_final_eps": 0.07,
            "net_arch": [256, 256],
        },
    ),
    "lunarlander": Task("LunarLander-v3", 100_000, _ACROBOT),
    "pendulum": Task(
        "Pendulum-v1",
        42_000,
        {
            "learning_rate": 2e-3,
            "batch_size": 32,
            "buffer_size": 5000,
            "learning_starts": 1000,
            "gamma": 0.98,
            "target_update_interval": 400,
            "train_freq": 2,
            "gradient_steps": 1,
            "exploration_fraction": 10_000 / 42_000,
            "exploration_final_eps": 0.02,
            "net_arch": [64, 64],
        },
        torques=5,
    ),
    "halfcheetah": Task(
        "HalfCheetah-v5",
        100_000,
        {
            "learning_rate": 3e-4,
            "batch_size": 256,
            "buffer_size": 1_000_000,
            "learning_starts": 10_000,
            "gamma": 0.99,
            "tau": 0.005,
            "train_freq": 1,
            "gradient_steps": 1,
            "net_arch": [256, 256],
        },
        agent="SAC",
    ),
    "taxi": Task("Taxi-v4", 150_000, _TAXI),
    "taxi-hidden": Task("Taxi-v4", 150_000, {**_TAXI, "learning_rate": 1e-3, "net_arch": [64]}),
}


class Recorder:
    """Writes the rows of one run, each with the evaluation that was played there."""

    def __init__(self, task: Task, evaluations: int, seed: int, rows: TextIO) -> None:
        self._task = task
        self._row_steps = task.steps // ROWS
        self._evaluation_steps = task.steps // evaluations
        self._env = make_env(task, derive_seed(seed, "evaluation"))
        self._rows = rows
        self._steps = 0
        self._start_s, self._start_cpu_s = time.perf_counter(), time.process_time()

    def is_due(self, steps: int) -> bool:
        """Return whether a row is to be written after ``steps`` steps."""
        return steps // self._row_steps > self._steps // self._row_steps

    def add(self, model: Any, steps: int) -> None:
        """Write a row; an evaluation takes none of the seconds of training."""
        seconds, cpu_s = time.perf_counter() - self._start_s, time.process_time() - self._start_cpu_s
        returns = [episode["r"] for episode in model.ep_info_buffer or ()]
        row: dict[str, Any] = {
            "timesteps_total": steps,
            "time_total_s": seconds,
            "cpu_total_s": cpu_s,
            "episode_reward_mean": sum(returns) / len(returns) if returns else None,
        }
        if steps // self._evaluation_steps > self._steps // self._evaluation_steps:
            row["evaluation"] = {"episode_reward_mean": self._played(model), "episodes_this_iter": EPISODES}
        self._steps = steps
        print(json.dumps(row), file=self._rows, flush=True)
        self._start_s, self._start_cpu_s = time.perf_counter() - seconds, time.process_time() - cpu_s

    def _played(self, model: Any) -> float:
        """Return the mean return of greedy episodes."""
        evaluate_policy = import_module("stable_baselines3.common.evaluation").evaluate_policy
        mean, _ = evaluate_policy(model, self._env, n_eval_episodes=EPISODES, deterministic=True)
        return float(mean)


def make_env(task: Task, seed: int) -> Any:
    """Return the env in which ``task`` is trained or evaluated, with what counts its episodes."""
    import gymnasium as gym

    from rlexp.envs.spaces import DiscreteActions

    env = gym.make(task.env)
    if task.torques is not None:
        env = DiscreteActions(env, task.env, task.torques)
    env = import_module("stable_baselines3.common.monitor").Monitor(env)
    env.reset(seed=seed)
    return env


def train(task: Task, seed: int, evaluations: int, folder: Path) -> None:
    """Train one run; its files are in ``folder``."""
    import torch

    torch.set_num_threads(1)
    sb3, callbacks = import_module("stable_baselines3"), import_module("stable_baselines3.common.callbacks")
    folder.mkdir(parents=True)
    parameters = {"run": f"SB3 {task.agent}", "env": task.env, "seed": seed, **task.settings}
    (folder / "params.json").write_text(json.dumps(parameters), encoding="utf-8")
    settings = dict(task.settings)
    policy = {"net_arch": settings.pop("net_arch")}
    env = make_env(task, derive_seed(seed, "env"))
    model = getattr(sb3, task.agent)("MlpPolicy", env, seed=seed, device="cpu", policy_kwargs=policy, **settings)

    class Rows(callbacks.BaseCallback):  # type: ignore[misc, name-defined]
        """A row before steps are taken, so after what was learned from those before, and one at the end."""

        def _on_rollout_start(self) -> None:
            if recorder.is_due(self.num_timesteps):
                recorder.add(self.model, self.num_timesteps)

        def _on_training_end(self) -> None:
            recorder.add(self.model, max(self.num_timesteps, task.steps))

        def _on_step(self) -> bool:
            return True

    with (folder / "result.json").open("x", encoding="utf-8") as rows:
        recorder = Recorder(task, evaluations, seed, rows)
        model.learn(task.steps, callback=Rows())


def same_settings(task: Task) -> dict[str, Any]:
    """Return a block of an experiment file of rlexp that trains the same algorithm with the same settings."""
    settings = dict(task.settings)
    train_freq, batch = settings.pop("train_freq"), settings.pop("batch_size")
    gradient_steps, rate = settings.pop("gradient_steps"), settings.pop("learning_rate")
    different = _DIFFERENT[task.agent](settings, task.steps)
    config = {
        **settings,
        "num_workers": 0,
        "min_iter_time_s": 0,
        "timesteps_per_iteration": task.steps // ROWS,
        "sample_batch_size": train_freq,
        "train_batch_size": batch,
        "training_intensity": (train_freq if gradient_steps == -1 else gradient_steps) * batch / train_freq,
        "lr": rate,
        "learning_starts": max(settings["learning_starts"], 1),
        "prioritized_replay": False,
        **different,
    }
    if task.torques is not None:
        config["discretize_actions"] = task.torques
    stop = {"timesteps_total": task.steps}
    return {"run": task.agent, "env": task.env, "stop": stop, "checkpoint_at_end": True, "config": config}


def _of_dqn(settings: dict[str, Any], steps: int) -> dict[str, Any]:
    """Return the keys of rlexp for what only DQN has; it is taken out of ``settings``."""
    return {
        "target_network_update_freq": settings.pop("target_update_interval"),
        "epsilon_timesteps": round(settings.pop("exploration_fraction") * steps),
        "model": {"fcnet_hiddens": settings.pop("net_arch"), "fcnet_activation": "relu"},
        "hiddens": [],
        "double_q": False,
        "dueling": False,
        "grad_norm_clipping": 10,
        "action_mask": None,
    }


def _of_sac(settings: dict[str, Any], steps: int) -> dict[str, Any]:
    """Return the keys of rlexp for what only SAC has; it is taken out of ``settings``.

    The peer acts at random until learning starts.
    """
    layers = {"fcnet_hiddens": settings.pop("net_arch")}
    return {
        "policy_model_config": layers,
        "q_model_config": layers,
        "pure_exploration_steps": settings["learning_starts"],
    }


_DIFFERENT: Final = {"DQN": _of_dqn, "SAC": _of_sac}


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("task", choices=list(TASKS), help="what is trained")
    parser.add_argument("--seeds", nargs="+", type=int, default=range(3), metavar="N", help="one run each")
    parser.add_argument("--out", type=Path, default=Path("results/sb3"), metavar="DIR", help="where runs are written")
    parser.add_argument("--evaluations", type=int, default=10, metavar="N", help="how many of a run; the last counts")
    parser.add_argument("--file", action="store_true", help="print the same settings as a file of rlexp")
    args = parser.parse_args()
    if args.file:
        print(json.dumps({f"{args.task}-same": same_settings(TASKS[args.task])}, indent=2))
        return
    print(conditions(), file=sys.stderr)
    for seed in args.seeds:
        train(TASKS[args.task], seed, args.evaluations, args.out / f"{args.task}-{seed}")


if __name__ == "__main__":
    main()
