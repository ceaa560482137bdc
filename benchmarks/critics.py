"""DDPG, TD3 and SAC beside Stable-Baselines3's: the same weights after the same batches, and the CPU time of an update.

The first part gives both learners the same first weights, batches and noise, and prints how far their weights are apart
after 200 updates. The second part prints the CPU milliseconds of an update, and of an env step with its update, of both
in turns; one thread each. Needs `pip install stable-baselines3`.

    python -m benchmarks.critics [--rounds 5]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Final

import gymnasium as gym
import numpy as np
import torch

from benchmarks.comparison import conditions
from rlexp.agents.ddpg.agent import DDPGAgent
from rlexp.agents.ddpg.learner import CriticLearner
from rlexp.agents.sac.agent import SACAgent
from rlexp.cluster.pool.pool import InlineTaskPool
from rlexp.config.keys.ddpg import DDPGConfig, TD3Config
from rlexp.config.keys.sac import SACConfig
from rlexp.sample_batch import ACTIONS, DISCOUNTS, IMPORTANCE_WEIGHTS, NEW_OBS, OBS, REWARDS, SampleBatch

UPDATES: Final = 200
ROWS: Final = 256
LAYERS: Final = [256, 256]
ENV: Final = "Pendulum-v1"
LR: Final = 3e-4
WARM_UP: Final = 300
"""Env steps before updates begin, in the second part."""
TIMED: Final = 1000
"""Env steps that are timed."""
Parts = tuple[Any, CriticLearner, Any]
"""An agent of ours, its learner, and the peer."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    print(conditions())
    for run in ("DDPG", "TD3", "SAC"):
        print(f"{run}: weights differ by at most {largest_difference(run):.1e} after {UPDATES} updates")
    print(f"\nbatch {ROWS}, layers {LAYERS}, {ENV}: CPU ms, medians of {rounds} rounds in turns")
    for run in ("DDPG", "TD3", "SAC"):
        ours, theirs = zip(*[(cost(run, ours_of), cost(run, peer_of)) for _ in range(rounds)], strict=True)
        for index, what in enumerate(("an update", "an env step and an update")):
            mine, peer = (statistics.median(each[index] for each in times) for times in (ours, theirs))
            print(f"{run}: {what}: rlexp {mine:.2f}, Stable-Baselines3 {peer:.2f}, ratio {peer / mine:.2f}")


def made(run: str) -> Parts:
    """Return both programs with the same settings."""
    common: dict[str, Any] = {
        "lr": LR,
        "train_batch_size": ROWS,
        "learning_starts": WARM_UP,
        "pure_exploration_steps": WARM_UP,
        "prioritized_replay": False,
        "tau": 0.005,
        "buffer_size": 100_000,
        "min_iter_time_s": 0,
    }
    if run == "SAC":
        layers = {"fcnet_hiddens": LAYERS}
        agent: Any = SACAgent
        config: Any = SACConfig.model_validate({**common, "policy_model_config": layers, "q_model_config": layers})
    else:
        kind, agent = (TD3Config if run == "TD3" else DDPGConfig), DDPGAgent
        config = kind.model_validate({**common, "actor_hiddens": LAYERS, "critic_hiddens": LAYERS, "l2_reg": 0.0})
        if run == "DDPG":
            config = config.model_copy(update={"exploration_noise_type": "gaussian"})
    ours = agent(ENV, config, InlineTaskPool(), 0)
    with ours.optimizer.paused() as learner:
        return ours, learner, _peer(run)


def _peer(run: str) -> Any:
    noise = import_module("stable_baselines3.common.noise").NormalActionNoise(np.zeros(1), np.full(1, 0.1))
    own: dict[str, Any] = {} if run == "SAC" else {"action_noise": noise}
    peer = getattr(import_module("stable_baselines3"), run)(
        "MlpPolicy",
        gym.make(ENV),
        learning_rate=LR,
        batch_size=ROWS,
        buffer_size=100_000,
        learning_starts=WARM_UP,
        train_freq=1,
        gradient_steps=1,
        tau=0.005,
        policy_kwargs={"net_arch": LAYERS},
        device="cpu",
        seed=0,
        **own,
    )
    if run != "SAC":  # its loss of the critics is twice ours, which is the same to Adam with twice the epsilon
        peer.critic.optimizer.param_groups[0]["eps"] *= 2
    return peer


def largest_difference(run: str) -> float:
    """Return by how much any weight of both differs at most after the same updates."""
    ours, learner, peer = made(run)
    pairs = list(_pairs(learner, peer))
    for mine, theirs in pairs:
        theirs.data.copy_(mine)
    rng = np.random.default_rng(0)
    peer._setup_learn(1)
    with _same_noise(learner):
        for _ in range(UPDATES):
            batch = _batch(rng)
            peer.replay_buffer.sample = lambda *_, batch=batch, **__: _their_rows(batch)
            state = learner.generator.get_state()
            peer.train(gradient_steps=1, batch_size=ROWS)
            learner.generator.set_state(state)
            learner.learn_on_batch(batch)
    ours.stop()
    return max(float((mine - theirs).detach().abs().max()) for mine, theirs in pairs)


def _pairs(learner: CriticLearner, peer: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each parameter of ours with the peer's; targets too."""
    policy = peer.policy
    layers = [[*learner.policy.module.parameters()]]
    if hasattr(policy.actor, "mu") and hasattr(policy.actor, "latent_pi"):  # of SAC: two heads of one layer
        own, theirs = layers[0], [*policy.actor.latent_pi.parameters()]
        yield from zip(own[:-2], theirs, strict=True)
        size = policy.actor.mu.out_features
        for index, name in enumerate(("weight", "bias")):
            yield own[-2 + index][:size], getattr(policy.actor.mu, name)
            yield own[-2 + index][size:], getattr(policy.actor.log_std, name)
    else:
        yield from zip(layers[0], policy.actor.parameters(), strict=True)
        yield from zip(learner.policy.target.parameters(), policy.actor_target.parameters(), strict=True)  # type: ignore[attr-defined]
    yield from zip(learner.critics.module.parameters(), policy.critic.parameters(), strict=True)
    yield from zip(learner.critics.target.parameters(), policy.critic_target.parameters(), strict=True)


@contextmanager
def _same_noise(learner: CriticLearner) -> Iterator[None]:
    """Let the peer draw from the learner's generator, in the order in which the learner does."""
    normal, in_place = torch.distributions.utils._standard_normal, torch.Tensor.normal_

    def drawn(shape: Any, dtype: Any, device: Any) -> Any:
        return torch.randn(shape, generator=learner.generator)

    def drawn_in_place(self: Any, mean: float = 0.0, std: float = 1.0, **_: Any) -> Any:
        return self.copy_(mean + std * torch.randn(self.shape, generator=learner.generator))

    module = import_module("torch.distributions.normal")
    module._standard_normal, torch.Tensor.normal_ = drawn, drawn_in_place  # type: ignore[attr-defined,method-assign]
    try:
        yield
    finally:
        module._standard_normal, torch.Tensor.normal_ = normal, in_place  # type: ignore[attr-defined,method-assign]


def _batch(rng: np.random.Generator) -> SampleBatch:
    return SampleBatch(
        {
            OBS: rng.normal(size=(ROWS, 3)).astype(np.float32),
            ACTIONS: rng.uniform(-1, 1, (ROWS, 1)).astype(np.float32),
            REWARDS: rng.normal(size=ROWS).astype(np.float32),
            DISCOUNTS: np.where(rng.random(ROWS) < 0.1, 0.0, 0.99).astype(np.float32),
            NEW_OBS: rng.normal(size=(ROWS, 3)).astype(np.float32),
            IMPORTANCE_WEIGHTS: np.ones(ROWS, np.float32),
        }
    )


def _their_rows(batch: SampleBatch) -> Any:
    samples = import_module("stable_baselines3.common.type_aliases").ReplayBufferSamples
    obs, actions, rewards, discounts, new_obs = (
        torch.from_numpy(batch[name]) for name in (OBS, ACTIONS, REWARDS, DISCOUNTS, NEW_OBS)
    )
    return samples(obs, actions, new_obs, (discounts == 0).float().unsqueeze(1), rewards.unsqueeze(1), None)


Cost = tuple[float, float]
"""CPU milliseconds of an update, and of an env step with its update."""


def ours_of(run: str) -> Cost:
    agent, learner, _ = made(run)
    batch = _batch(np.random.default_rng(0))
    for _ in range(20):
        learner.learn_on_batch(batch)
    update = _milliseconds(lambda: learner.learn_on_batch(batch), UPDATES)
    agent.stop()
    agent, _, _ = made(run)
    _until(agent, WARM_UP + 50)
    started, first = time.process_time(), agent.optimizer.counters.num_steps_sampled
    _until(agent, first + TIMED)
    steps = agent.optimizer.counters.num_steps_sampled - first
    taken = (time.process_time() - started) / steps * 1e3
    agent.stop()
    return update, taken


def _until(agent: Any, steps: int) -> None:
    while agent.optimizer.counters.num_steps_sampled < steps:
        agent.optimizer.step()


def peer_of(run: str) -> Cost:
    peer = _peer(run)
    peer.learn(WARM_UP + 50)
    update = _milliseconds(lambda: peer.train(gradient_steps=1, batch_size=ROWS), UPDATES)
    started = time.process_time()
    peer.learn(TIMED, reset_num_timesteps=False)
    return update, (time.process_time() - started) / TIMED * 1e3


def cost(run: str, program: Callable[[str], Cost]) -> Cost:
    return program(run)


def _milliseconds(call: Callable[[], object], times: int) -> float:
    started = time.process_time()
    for _ in range(times):
        call()
    return (time.process_time() - started) / times * 1e3


if __name__ == "__main__":
    main()
