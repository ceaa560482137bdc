"""Trains by PPO, APPO or PQN with another library; benchmarks/ppo.py runs this file with the Python that has it.

Imports nothing of rlexp. TASK is a JSON object. Each line on stdout is an event of kind `row`: `seconds` of training,
without the start and without compiling; `steps` of the env; `reward`, the mean return of the last 100 episodes; and
`cpu_s` if this process does all the work. SBX, Tianshou, TorchRL and RLlib's new API stack get the settings of
Stable-Baselines3 by its names, CleanRL, Sample Factory and the old RLlib by their own. Tianshou and TorchRL have a loop
here, without their loggers and progress bars. RLlib and CleanRL cannot anneal the clip range.

    PYTHON benchmarks/ppo_peers.py {sb3,sbx,tianshou,torchrl,cleanrl,rllib-new,rllib,sample-factory} TASK
"""

from __future__ import annotations

import io
import json
import math
import os
import runpy
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from functools import partial
from importlib import import_module
from tempfile import TemporaryDirectory
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
        self.returns: deque[float] = deque(maxlen=EPISODES)
        """For libraries that keep none."""

    def add(self, steps: int, reward: float | None, **others: float) -> bool:
        """Write a row; return whether it is the last one."""
        seconds = time.perf_counter() - self._start
        row = {"event": "row", "seconds": seconds, "steps": steps, "reward": reward, **others}
        print(json.dumps(row), file=self._rows, flush=True)
        has_goal = reward is not None and reward >= self._goal
        return has_goal or steps >= self._max_steps or seconds >= self._max_s

    def add_of_process(self, steps: int, returns: Sequence[float] | None = None) -> bool:
        """Write a row of a library that works in this process alone."""
        newest = self.returns if returns is None else returns
        reward = float(sum(newest) / EPISODES) if len(newest) == EPISODES else None
        return self.add(steps, reward, cpu_s=time.process_time())


def linear(initial: float) -> Any:
    """Return a schedule of Stable-Baselines3 from ``initial`` to 0, given the share of the steps that are left."""
    return lambda left: initial * left


def train_sb3(task: Task, rows: TextIO, package: str = "stable_baselines3") -> None:
    """Train with Stable-Baselines3, or with another package of the same form, one row for each train batch."""
    library = import_module(package)
    make_vec_env = import_module("stable_baselines3.common.env_util").make_vec_env
    callbacks = import_module("stable_baselines3.common.callbacks")
    settings = dict(task["settings"])
    for key in settings.pop("linear_to_zero", ()):
        settings[key] = linear(settings[key])
    n_envs = settings.pop("n_envs")

    def new_model() -> Any:
        env = make_vec_env(task["env"], n_envs=n_envs, seed=task["seed"])
        return library.PPO("MlpPolicy", env, seed=task["seed"], device="cpu", **settings)

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
            self.has_ended = self.report.add_of_process(self.num_timesteps, returns)

        def _on_step(self) -> bool:
            return not self.has_ended

    if package == "sbx":
        # What this compiles serves the next model too.
        new_model().learn(2 * n_envs * settings["n_steps"])
    new_model().learn(task["max_steps"], callback=Rows())


def train_tianshou(task: Task, rows: TextIO) -> None:
    """Train with Tianshou 2, one row for each train batch."""
    gymnasium, torch, data = (import_module(name) for name in ("gymnasium", "torch", "tianshou.data"))
    ppo, optim = import_module("tianshou.algorithm.modelfree.ppo"), import_module("tianshou.algorithm.optim")
    discrete, common = import_module("tianshou.utils.net.discrete"), import_module("tianshou.utils.net.common")
    training = import_module("tianshou.utils.torch_utils").policy_within_training_step
    settings, n_envs = task["settings"], task["settings"]["n_envs"]
    import_module("numpy").random.seed(task["seed"])
    torch.manual_seed(task["seed"])
    envs = import_module("tianshou.env").DummyVectorEnv([partial(gymnasium.make, task["env"])] * n_envs)
    envs.seed(task["seed"])
    shape, actions = envs.observation_space[0].shape, envs.action_space[0]
    of_actor, of_critic = (
        common.Net(state_shape=shape, hidden_sizes=[64, 64], activation=torch.nn.Tanh) for _ in range(2)
    )
    actor = discrete.DiscreteActor(preprocess_net=of_actor, action_shape=actions.n, softmax_output=False)
    critic = discrete.DiscreteCritic(preprocess_net=of_critic)
    _set_orthogonal(actor, 0.01)
    _set_orthogonal(critic, 1.0)
    policy = import_module("tianshou.algorithm.modelfree.reinforce").ProbabilisticActorPolicy(
        actor=actor,
        dist_fn=lambda logits: torch.distributions.Categorical(logits=logits),
        action_space=actions,
        action_scaling=False,
        action_bound_method=None,
    )
    rows_of_batch = n_envs * settings["n_steps"]
    adam = optim.AdamOptimizerFactory(lr=settings["learning_rate"], eps=1e-5)
    annealing = optim.LRSchedulerFactoryLinear(1, task["max_steps"], rows_of_batch)
    algorithm = ppo.PPO(
        policy=policy,
        critic=critic,
        optim=adam.with_lr_scheduler_factory(annealing),
        eps_clip=settings["clip_range"],
        ent_coef=settings["ent_coef"],
        max_grad_norm=0.5,
        gae_lambda=settings["gae_lambda"],
        gamma=settings["gamma"],
    )
    buffer = data.VectorReplayBuffer(rows_of_batch, n_envs)
    collector = data.Collector(algorithm, envs, buffer)
    collector.reset()
    report, steps = Report(task, rows), 0
    while not report.add_of_process(steps):
        algorithm.eps_clip = settings["clip_range"] * (1 - steps / task["max_steps"])
        with training(policy):
            report.returns.extend(collector.collect(n_step=rows_of_batch).returns)
            algorithm.update(buffer=buffer, batch_size=settings["batch_size"], repeat=settings["n_epochs"])
        collector.reset_buffer(keep_statistics=True)
        steps += rows_of_batch


def train_torchrl(task: Task, rows: TextIO) -> None:
    """Train with TorchRL, without torch.compile, one row for each train batch."""
    torch, envs, modules = (import_module(name) for name in ("torch", "torchrl.envs", "torchrl.modules"))
    data, objectives = import_module("torchrl.data"), import_module("torchrl.objectives")
    settings, n_envs = task["settings"], task["settings"]["n_envs"]
    torch.manual_seed(task["seed"])

    def new_env() -> Any:
        return envs.GymEnv(task["env"], categorical_action_encoding=True)

    env = envs.TransformedEnv(envs.SerialEnv(n_envs, new_env), envs.RewardSum())
    env.set_seed(task["seed"])
    sizes = {"in_features": env.observation_spec["observation"].shape[-1], "num_cells": [64, 64]}
    mlp = partial(modules.MLP, activation_class=torch.nn.Tanh, **sizes)
    logits, values = mlp(out_features=env.full_action_spec_unbatched["action"].n), mlp(out_features=1)
    _set_orthogonal(logits, 0.01)
    _set_orthogonal(values, 1.0)
    actor = modules.ProbabilisticActor(
        import_module("tensordict.nn").TensorDictModule(logits, in_keys=["observation"], out_keys=["logits"]),
        in_keys=["logits"],
        spec=env.full_action_spec_unbatched,
        distribution_class=torch.distributions.Categorical,
        return_log_prob=True,
    )
    critic = modules.ValueOperator(values, in_keys=["observation"])
    rows_of_batch = n_envs * settings["n_steps"]
    collector = import_module("torchrl.collectors").Collector(
        env, actor, frames_per_batch=rows_of_batch, total_frames=task["max_steps"]
    )
    gae = objectives.value.GAE(gamma=settings["gamma"], lmbda=settings["gae_lambda"], value_network=critic)
    loss_of = objectives.ClipPPOLoss(
        actor,
        critic,
        clip_epsilon=settings["clip_range"],
        entropy_bonus=False,
        critic_coeff=0.5,
        loss_critic_type="l2",
        normalize_advantage=True,
    )
    optimizer = torch.optim.Adam(loss_of.parameters(), lr=settings["learning_rate"], eps=1e-5)
    storage = data.LazyTensorStorage(rows_of_batch)
    sampler = data.replay_buffers.SamplerWithoutReplacement()
    buffer = data.TensorDictReplayBuffer(storage=storage, sampler=sampler, batch_size=settings["batch_size"])
    report, steps = Report(task, rows), 0
    report.add_of_process(steps)
    for batch in collector:
        left = 1 - steps / task["max_steps"]
        optimizer.param_groups[0]["lr"] = settings["learning_rate"] * left
        loss_of.clip_epsilon.fill_(settings["clip_range"] * left)
        with torch.no_grad():
            batch = gae(batch)
        for _ in range(settings["n_epochs"]):
            buffer.extend(batch.reshape(-1))
            for minibatch in buffer:
                losses = loss_of(minibatch)
                optimizer.zero_grad()
                (losses["loss_objective"] + losses["loss_critic"]).backward()
                torch.nn.utils.clip_grad_norm_(loss_of.parameters(), 0.5)
                optimizer.step()
        collector.update_policy_weights_()
        steps += rows_of_batch
        ended = batch["next"]
        report.returns.extend(ended["episode_reward"][ended["done"]].tolist())
        if report.add_of_process(steps):
            break


def train_cleanrl(task: Task, rows: TextIO) -> None:
    """Run a file of CleanRL as it is, one row for each train batch, until it has printed that it reached the goal."""
    for name in ("gymnasium", "torch.utils.tensorboard", "tyro"):
        import_module(name)
    settings = dict(task["settings"])
    file = os.path.abspath(os.path.join(task["cleanrl"], settings.pop("file")))
    arguments = {"env-id": task["env"], "seed": task["seed"], "total-timesteps": task["max_steps"], **settings}
    words = [str(word) for key, value in arguments.items() for word in (f"--{key}", value) if word is not None]
    sys.argv = [file, "--no-cuda", *words]
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder, suppress(GoalReachedError):
        os.chdir(folder)
        with redirect_stdout(CleanRLOutput(task, rows)):
            runpy.run_path(file, run_name="__main__")


class GoalReachedError(Exception):
    """Ends a program that has no end for a goal."""


class CleanRLOutput(io.TextIOBase):
    """Reads what a file of CleanRL prints: an episode's return, and its speed at the end of each train batch."""

    def __init__(self, task: Task, rows: TextIO) -> None:
        arguments = task["settings"]
        self._rows_of_batch = arguments["num-envs"] * arguments["num-steps"]
        self._report, self._steps, self._line = Report(task, rows), 0, ""
        self._report.add_of_process(0)

    def write(self, text: str) -> int:
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            if line.startswith("SPS:"):
                self._steps += self._rows_of_batch
                if self._report.add_of_process(self._steps):
                    raise GoalReachedError
            elif "episodic_return=" in line:
                self._report.returns.append(float(line.partition("episodic_return=")[2].strip("[]")))
        return len(text)


def train_rllib_new(task: Task, rows: TextIO) -> None:
    """Train with RLlib's new API stack, all in its process beside Ray's own, one row for each train batch."""
    ray = import_module("ray")
    rl_module = import_module("ray.rllib.core.rl_module.default_model_config")
    settings = task["settings"]
    ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR", num_cpus=2)
    config = import_module("ray.rllib.algorithms.ppo").PPOConfig().environment(task["env"])
    config.env_runners(num_env_runners=0, num_envs_per_env_runner=settings["n_envs"])
    config.env_runners(rollout_fragment_length=settings["n_steps"])
    config.learners(num_learners=0).debugging(seed=task["seed"], log_level="ERROR")
    config.training(
        train_batch_size_per_learner=settings["n_envs"] * settings["n_steps"],
        minibatch_size=settings["batch_size"],
        num_epochs=settings["n_epochs"],
        gamma=settings["gamma"],
        lambda_=settings["gae_lambda"],
        lr=[[0, settings["learning_rate"]], [task["max_steps"], 0.0]],
        clip_param=settings["clip_range"],
        entropy_coeff=settings["ent_coef"],
        vf_loss_coeff=0.5,
        vf_clip_param=1e9,
        use_kl_loss=False,
        grad_clip=0.5,
        grad_clip_by="global_norm",
    )
    network = rl_module.DefaultModelConfig(
        fcnet_hiddens=[64, 64], fcnet_activation="tanh", head_fcnet_hiddens=[], vf_share_layers=False
    )
    returns: deque[float] = deque(maxlen=EPISODES)

    def keep_return(*, episode: Any, prev_episode_chunks: Sequence[Any] | None = None, **_: Any) -> None:
        returns.append(sum(part.get_return() for part in (*(prev_episode_chunks or ()), episode)))

    # Its own mean is of fewer episodes.
    config.callbacks(on_episode_end=keep_return)
    algorithm = config.rl_module(model_config=network).build_algo()
    report = Report(task, rows)
    has_ended = report.add(0, None)
    while not has_ended:
        sampled = algorithm.train()["env_runners"]
        reward = sum(returns) / EPISODES if len(returns) == EPISODES else None
        has_ended = report.add(int(sampled["num_env_steps_sampled_lifetime"]), reward)
    algorithm.stop()
    ray.shutdown()


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


def train_sample_factory(task: Task, rows: TextIO) -> None:
    """Train with Sample Factory's APPO, one row for each train batch; seconds count from the end of the first."""
    arguments, runners = import_module("sample_factory.cfg.arguments"), import_module("sample_factory.train")
    observers = import_module("sample_factory.algo.runners.runner")
    import_module("sample_factory.envs.env_utils").register_env(task["env"], _make_env)
    with TemporaryDirectory() as folder:
        words = [f"--env={task['env']}", f"--seed={task['seed']}", "--device=cpu", f"--train_dir={folder}"]
        parser, _ = arguments.parse_sf_args(words)
        frames = task["max_steps"] * task["settings"].get("env_frameskip", 1)
        parser.set_defaults(stats_avg=EPISODES, train_for_env_steps=frames, **task["settings"])
        config = arguments.parse_full_cfg(parser, words)

        class Rows(observers.AlgoObserver):  # type: ignore[misc, name-defined]
            """Ends the run by its own bound of seconds."""

            def on_training_step(self, runner: Any, training_iteration_since_resume: int) -> None:
                if training_iteration_since_resume == 1:
                    self.report = Report(task, rows)
                episodes = runner.policy_avg_stats.get("reward", [()])[0]
                reward = float(sum(episodes) / EPISODES) if len(episodes) == EPISODES else None
                if self.report.add(training_iteration_since_resume * config.batch_size, reward):
                    runner.cfg.train_for_seconds = -1

        config, runner = runners.make_runner(config)
        runner.register_observer(Rows())
        runner.init()
        runner.run()


def _make_env(name: str, config: Any, env_config: Any = None, render_mode: str | None = None) -> Any:
    """Return an env of Sample Factory, in any of its processes."""
    if "NoFrameskip" in name:
        import_module("ale_py.registration").register_v0_v4_envs()
        atari = import_module("sf_examples.atari.atari_utils")
        names = {spec.env_id: spec.name for spec in atari.ATARI_ENVS}
        return atari.make_atari_env(names[name], config, env_config, render_mode)
    return import_module("gymnasium").make(name, render_mode=render_mode)


def _set_orthogonal(network: Any, gain_of_last: float) -> None:
    """Set the first weights of a network as Stable-Baselines3 does."""
    init = import_module("torch").nn.init
    layers = [layer for layer in network.modules() if hasattr(layer, "in_features") and hasattr(layer, "bias")]
    for layer in layers:
        init.orthogonal_(layer.weight, gain_of_last if layer is layers[-1] else math.sqrt(2))
        init.zeros_(layer.bias)


TRAIN: Mapping[str, Callable[[Task, TextIO], None]] = {
    "sb3": train_sb3,
    "sbx": partial(train_sb3, package="sbx"),
    "tianshou": train_tianshou,
    "torchrl": train_torchrl,
    "cleanrl": train_cleanrl,
    "rllib-new": train_rllib_new,
    "rllib": train_rllib,
    "sample-factory": train_sample_factory,
}


def main() -> None:
    # A library that prints something must not get between the rows.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as rows:
        os.dup2(2, 1)
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        import_module("torch").set_num_threads(1)
        TRAIN[sys.argv[1]](json.loads(sys.argv[2]), rows)


if __name__ == "__main__":
    main()
