"""Trains by DQN with another library; benchmarks/dqn.py runs this file with the Python that has the library.

Imports nothing of rlexp. TASK is a JSON object: `env`, `warm_up` and `updates` are numbers of updates, and `settings`
those of Stable-Baselines3, by its names, or SRL's own. The line on stdout has the `seconds` that the last `updates`
took and their `cpu_s`. SBX does not clip gradients; TorchRL runs without torch.compile. Tianshou and TorchRL, which
count updates, copy the target network once for each round of updates, as Stable-Baselines3 does with these settings.

    PYTHON benchmarks/dqn_peers.py {sb3,sbx,tianshou,torchrl,srl} TASK
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
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


def train_sb3(task: Task, package: str = "stable_baselines3") -> Times:
    """Train with Stable-Baselines3, or with another package of the same form."""
    library = import_module(package)
    settings = dict(task["settings"])
    policy = {"net_arch": settings.pop("net_arch")}
    model = library.DQN("MlpPolicy", task["env"], seed=0, device="cpu", policy_kwargs=policy, **settings)
    per_update = settings["train_freq"] / settings["gradient_steps"]
    model.learn(int(settings["learning_starts"] + task["warm_up"] * per_update), progress_bar=False)
    before, clock = model._n_updates, Clock()
    model.learn(int(task["updates"] * per_update), reset_num_timesteps=False, progress_bar=False)
    times = clock.read()
    return {**times, "updates": model._n_updates - before}


def train_tianshou(task: Task) -> Times:
    """Train with Tianshou 2, without its logger and progress bar."""
    gymnasium, torch, data = (import_module(name) for name in ("gymnasium", "torch", "tianshou.data"))
    dqn, optim = import_module("tianshou.algorithm.modelfree.dqn"), import_module("tianshou.algorithm.optim")
    training = import_module("tianshou.utils.torch_utils").policy_within_training_step
    settings = task["settings"]
    env = gymnasium.make(task["env"])
    network = import_module("tianshou.utils.net.common").Net(
        state_shape=env.observation_space.shape,
        action_shape=env.action_space.n,
        hidden_sizes=settings["net_arch"],
        activation=torch.nn.ReLU,
    )
    policy = dqn.DiscreteQLearningPolicy(model=network, action_space=env.action_space)
    algorithm = dqn.DQN(
        policy=policy,
        optim=optim.AdamOptimizerFactory(lr=settings["learning_rate"]),
        gamma=settings["gamma"],
        target_update_freq=settings["gradient_steps"],
        is_double=False,
        huber_loss_delta=1.0,
    )
    buffer = data.VectorReplayBuffer(settings["buffer_size"], 1)
    collector = data.Collector(algorithm, env, buffer)
    collector.reset()
    collector.collect(n_step=settings["learning_starts"], random=True)

    def round_of_updates(epsilon: float) -> None:
        policy.set_eps_training(epsilon)
        with training(policy):
            collector.collect(n_step=settings["train_freq"])
            for _ in range(settings["gradient_steps"]):
                algorithm.update(buffer=buffer, sample_size=settings["batch_size"])

    return _times_of_rounds(task, round_of_updates)


def train_torchrl(task: Task) -> Times:
    """Train with TorchRL."""
    torch, envs, modules = (import_module(name) for name in ("torch", "torchrl.envs", "torchrl.modules"))
    data, objectives = import_module("torchrl.data"), import_module("torchrl.objectives")
    settings = task["settings"]
    env = envs.GymEnv(task["env"], categorical_action_encoding=True)
    spec = env.action_spec
    network = modules.MLP(
        in_features=env.observation_spec["observation"].shape[-1],
        out_features=spec.n,
        num_cells=settings["net_arch"],
        activation_class=torch.nn.ReLU,
    )
    actor = modules.QValueActor(network, spec=spec, in_keys=["observation"])
    exploring = modules.EGreedyModule(spec, eps_init=1.0, eps_end=1.0)
    collector = import_module("torchrl.collectors").Collector(
        env,
        import_module("tensordict.nn").TensorDictSequential(actor, exploring),
        frames_per_batch=settings["train_freq"],
        total_frames=-1,
    )
    buffer = data.TensorDictReplayBuffer(
        storage=data.LazyTensorStorage(settings["buffer_size"]), batch_size=settings["batch_size"]
    )
    loss_of = objectives.DQNLoss(actor, loss_function="smooth_l1", delay_value=True, double_dqn=False)
    loss_of.make_value_estimator(gamma=settings["gamma"])
    target = objectives.HardUpdate(loss_of, value_network_update_interval=settings["gradient_steps"])
    optimizer = torch.optim.Adam(loss_of.parameters(), lr=settings["learning_rate"])
    batches = iter(collector)
    while len(buffer) < settings["learning_starts"]:
        buffer.extend(next(batches).reshape(-1))

    def round_of_updates(epsilon: float) -> None:
        exploring.eps.fill_(epsilon)
        buffer.extend(next(batches).reshape(-1))
        for _ in range(settings["gradient_steps"]):
            loss = loss_of(buffer.sample())["loss"]
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(loss_of.parameters(), 10.0)
            optimizer.step()
            target.step()

    return _times_of_rounds(task, round_of_updates)


def _times_of_rounds(task: Task, round_of_updates: Callable[[float], None]) -> Times:
    """Return what the updates after the first ones took; they have the last epsilon, as Stable-Baselines3 then has."""
    settings = task["settings"]
    rounds_before, rounds = (-(-task[key] // settings["gradient_steps"]) for key in ("warm_up", "updates"))
    for _ in range(rounds_before):
        round_of_updates(1.0)
    clock = Clock()
    for _ in range(rounds):
        round_of_updates(settings["exploration_final_eps"])
    return {**clock.read(), "updates": rounds * settings["gradient_steps"]}


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


TRAIN: Mapping[str, Callable[[Task], Times]] = {
    "sb3": train_sb3,
    "sbx": partial(train_sb3, package="sbx"),
    "tianshou": train_tianshou,
    "torchrl": train_torchrl,
    "srl": train_srl,
}


def main() -> None:
    # A library that prints something must not get between the lines.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as lines:
        os.dup2(2, 1)
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        import_module("torch").set_num_threads(1)
        print(json.dumps({"event": "trained", **TRAIN[sys.argv[1]](json.loads(sys.argv[2]))}), file=lines, flush=True)


if __name__ == "__main__":
    main()
