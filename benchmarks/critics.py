"""DDPG, TD3 and SAC beside Stable-Baselines3's: the same weights after the same batches, and the CPU time of an update.

The first part gives both learners the same first weights, batches and noise, and prints how far their weights are apart
after 200 updates. It computes in float64. In float32, two computations that differ by a rounding drift apart as soon as
it turns a unit on or off, since Adam takes full steps along tiny gradients. ``--float32`` prints by how much,
and by how much the peer differs from itself after the same updates if its first weights are changed by a millionth.

The second part prints the CPU milliseconds of an update, and of an env step with its update. Both programs are timed in
turns, one thread each; the least time is least disturbed by other programs. Needs `pip install stable-baselines3`.

    python -m benchmarks.critics [--slices 30] [--float32]
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
SLICE: Final = 50
"""Updates, or env steps, that are timed at once."""
Parts = tuple[Any, CriticLearner, Any]
"""An agent of ours, its learner, and the peer."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slices", type=int, default=30)
    parser.add_argument("--float32", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(conditions())
    for run in ("DDPG", "TD3", "SAC"):
        with in_float64():
            print(f"{run}: weights differ by at most {largest_difference(run):.1e} after {UPDATES} updates")
        if options.float32:
            own = largest_difference(run, peer_alone=True)
            print(f"{run}: {largest_difference(run):.1e} in float32, the peer from itself {own:.1e}")
    print(f"\nbatch {ROWS}, layers {LAYERS}, {ENV}: CPU ms, {options.slices} slices of {SLICE} in turns")
    for run in ("DDPG", "TD3", "SAC"):
        for what, (mine, theirs) in costs(run, options.slices).items():
            for kind, choose in (("least", min), ("median", statistics.median)):
                own, peer = choose(mine), choose(theirs)
                print(f"{run}: {what}, {kind}: rlexp {own:.2f}, Stable-Baselines3 {peer:.2f}, ratio {peer / own:.2f}")


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


def largest_difference(run: str, peer_alone: bool = False) -> float:
    """Return by how much any weight of both differs at most after the same updates.

    ``peer_alone`` compares the peer with another one, whose first weights are changed by a millionth.
    """
    ours, learner, peer = made(run)
    other: Any = _peer(run) if peer_alone else learner
    for mine, theirs in _pairs(learner, peer):
        theirs.data.copy_(mine)
    if peer_alone:
        for mine, theirs in zip(peer.policy.parameters(), other.policy.parameters(), strict=True):
            theirs.data.copy_(mine * (1 + 1e-6 * torch.randn_like(mine)))
    rng = np.random.default_rng(0)
    with _same_noise(learner):
        for _ in range(UPDATES):
            batch = _batch(rng)
            state = learner.generator.get_state()
            for program in (peer, other):
                learner.generator.set_state(state)
                if program is learner:
                    learner.learn_on_batch(batch)
                else:
                    _train(program, batch)
    ours.stop()
    both = (
        zip(peer.policy.parameters(), other.policy.parameters(), strict=True) if peer_alone else _pairs(learner, peer)
    )
    return max(float((mine - theirs).detach().abs().max()) for mine, theirs in both)


def _train(peer: Any, batch: SampleBatch) -> None:
    """Let the peer do an update on ``batch``."""
    peer._setup_learn(1)
    peer.replay_buffer.sample = lambda *_, **__: _their_rows(batch)
    peer.train(gradient_steps=1, batch_size=ROWS)


@contextmanager
def in_float64() -> Iterator[None]:
    """Let both programs make and compute float64, also if their code says float32."""
    types: Any = torch
    single, as_single = types.float32, types.Tensor.float
    torch.set_default_dtype(torch.float64)
    types.float32, types.Tensor.float = torch.float64, torch.Tensor.double
    try:
        yield
    finally:
        types.float32, types.Tensor.float = single, as_single
        torch.set_default_dtype(single)


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
    """Return random rows in the type that torch makes by default."""
    dtype = torch.empty(0).numpy().dtype
    return SampleBatch(
        {
            OBS: rng.normal(size=(ROWS, 3)).astype(dtype),
            ACTIONS: rng.uniform(-1, 1, (ROWS, 1)).astype(dtype),
            REWARDS: rng.normal(size=ROWS).astype(dtype),
            DISCOUNTS: np.where(rng.random(ROWS) < 0.1, 0.0, 0.99).astype(dtype),
            NEW_OBS: rng.normal(size=(ROWS, 3)).astype(dtype),
            IMPORTANCE_WEIGHTS: np.ones(ROWS, dtype),
        }
    )


def _their_rows(batch: SampleBatch) -> Any:
    samples = import_module("stable_baselines3.common.type_aliases").ReplayBufferSamples
    obs, actions, rewards, discounts, new_obs = (
        torch.from_numpy(batch[name]) for name in (OBS, ACTIONS, REWARDS, DISCOUNTS, NEW_OBS)
    )
    return samples(obs, actions, new_obs, (discounts == 0).float().unsqueeze(1), rewards.unsqueeze(1), None)


Times = tuple[list[float], list[float]]
"""CPU milliseconds in each slice, of ours and of the peer."""


def costs(run: str, slices: int) -> dict[str, Times]:
    """Return the times of an update, and of an env step with its update."""
    ours, learner, peer = made(run)
    batch = _batch(np.random.default_rng(0))
    counters = ours.optimizer.counters
    peer.learn(WARM_UP + SLICE)
    _until(ours, WARM_UP + SLICE)

    def step_ours() -> None:
        _until(ours, counters.num_steps_sampled + SLICE)

    def update_ours() -> None:
        for _ in range(SLICE):
            learner.learn_on_batch(batch)

    taken: dict[str, tuple[Callable[[], Any], ...]] = {
        "an env step and an update": (step_ours, lambda: peer.learn(SLICE, reset_num_timesteps=False)),
        "an update": (update_ours, lambda: peer.train(gradient_steps=SLICE, batch_size=ROWS)),
    }
    found: dict[str, Times] = {what: ([], []) for what in taken}
    for _ in range(slices):
        for what, programs in taken.items():
            for times, program in zip(found[what], programs, strict=True):
                started = time.process_time()
                program()
                times.append((time.process_time() - started) / SLICE * 1e3)
    ours.stop()
    return found


def _until(agent: Any, steps: int) -> None:
    while agent.optimizer.counters.num_steps_sampled < steps:
        agent.optimizer.step()


if __name__ == "__main__":
    main()
