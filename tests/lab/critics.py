"""Small agents of DDPG, TD3 and SAC that train in this process, and what their equations say of them, in float64."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
import torch
from gymnasium.spaces import Box, Space
from torch import Tensor
from torch.nn.functional import huber_loss, linear

from rlexp.agents.ddpg.agent import ApexDDPGAgent, CriticAgent, DDPGAgent
from rlexp.agents.ddpg.learner import CriticLearner
from rlexp.agents.ddpg.policy import PolicyNetworkPolicies
from rlexp.agents.sac.agent import SACAgent
from rlexp.cluster.pool.pool import TaskPool
from rlexp.config.keys.ddpg import ApexDDPGConfig, CriticKeys, DDPGConfig, TD3Config
from rlexp.config.keys.sac import SACConfig
from rlexp.runs.checkpoint_contents import Checkpoint
from rlexp.sample_batch import ACTIONS, DISCOUNTS, IMPORTANCE_WEIGHTS, NEW_OBS, OBS, REWARDS, Array, SampleBatch
from tests.lab.agents import PlacementPool, Update, stopped_in_the_end
from tests.lab.envs import CONTINUOUS_ENV, COUNTING_ENV

NUM_ENVS, ROWS = 2, 16
TINY: Mapping[str, Any] = {
    "num_workers": 0,
    "num_envs_per_worker": NUM_ENVS,
    "sample_batch_size": 4,
    "train_batch_size": ROWS,
    "learning_starts": 32,
    "buffer_size": 1000,
    "timesteps_per_iteration": 60,
    "min_iter_time_s": 0,
    "pure_exploration_steps": 0,
    "adam_epsilon": 1e-3,
}
"""Adam's epsilon is so large that the size of a gradient matters."""
OF_DDPG: Mapping[str, Any] = {"actor_hiddens": [8], "critic_hiddens": [8], "lr": 1e-2}
OF_SAC: Mapping[str, Any] = {
    "policy_model_config": {"fcnet_hiddens": [8]},
    "q_model_config": {"fcnet_hiddens": [8]},
    "lr": 1e-2,
}
AGENTS: Mapping[str, tuple[type[CriticAgent[Any]], type[CriticKeys], Mapping[str, Any]]] = {
    "DDPG": (DDPGAgent, DDPGConfig, OF_DDPG),
    "TD3": (DDPGAgent, TD3Config, OF_DDPG),
    "APEX_DDPG": (ApexDDPGAgent, ApexDDPGConfig, OF_DDPG),
    "SAC": (SACAgent, SACConfig, OF_SAC),
}
NumbersT = TypeVar("NumbersT")


def make_agent(
    run: str,
    env: str = CONTINUOUS_ENV,
    seed: int = 0,
    checkpoint: Checkpoint | None = None,
    pool: TaskPool | None = None,
    **changes: Any,
) -> CriticAgent[Any]:
    kind, keys, own = AGENTS[run]
    config = keys.model_validate({**TINY, **own, **changes})
    return stopped_in_the_end(kind(env, config, pool or PlacementPool(), seed, checkpoint))


def make_learner(run: str = "DDPG", env: str = CONTINUOUS_ENV, seed: int = 0, **changes: Any) -> CriticLearner:
    learner = make_agent(run, env, seed, **changes).make_learner()
    assert isinstance(learner, CriticLearner)
    return learner


def policies_of(
    run: str, action_space: Space[Any], observation_shape: tuple[int, ...] = (3,), **changes: Any
) -> PolicyNetworkPolicies[Any]:
    kind, keys, own = AGENTS[run]
    dtype = np.uint8 if len(observation_shape) == 3 else np.float32
    observations = Box(0, 255, observation_shape, dtype)
    policies = kind.POLICIES(keys.model_validate({**TINY, **own, **changes}), observations, action_space)
    assert isinstance(policies, PolicyNetworkPolicies)
    return policies


def make_batch(number: int = 0, is_discrete: bool = False, count: int = ROWS) -> SampleBatch:
    """Return random transitions, a fifth of them terminal."""
    rng = np.random.default_rng(number)
    actions = rng.integers(1000, size=count) if is_discrete else rng.uniform(-1, 1, (count, 2)).astype(np.float32)
    return SampleBatch(
        {
            OBS: rng.normal(size=(count, 3)).astype(np.float32),
            ACTIONS: actions,
            REWARDS: rng.normal(size=count).astype(np.float32),
            DISCOUNTS: np.where(rng.random(count) < 0.2, 0.0, 0.9).astype(np.float32),
            NEW_OBS: rng.normal(size=(count, 3)).astype(np.float32),
            IMPORTANCE_WEIGHTS: rng.uniform(0.1, 1.0, count).astype(np.float32),
        }
    )


class Reference:
    """One update in float64, written from the papers for networks of one hidden layer, with torch's own Adam."""

    def __init__(self, config: CriticKeys, update: Update, noise: Array | None = None) -> None:
        """``noise [2, B, D]`` are the standard normal numbers that were drawn for s and s', in this order."""
        self.config, self.noise = config, None if noise is None else torch.tensor(noise, dtype=torch.float64)
        self.rows = {name: torch.tensor(array).double() for name, array in update.batch.columns.items()}
        self.weights = {
            name: torch.tensor(array, dtype=torch.float64, requires_grad=".network." in name)
            for name, array in update.before.items()
            if name.startswith(("policy.", "critics.")) and ".adam." not in name
        }

    def layers(self, network: str, x: Tensor) -> Tensor:
        """Return the output of a head with one hidden layer."""
        first, last = (
            [self.weights[f"{network}.head.{place}.{name}"] for name in ("weight", "bias")] for place in (0, 2)
        )
        return linear(torch.relu(linear(x, *first)), *last)

    def values(self, kind: str, obs: Tensor, actions: Tensor | None) -> list[Tensor]:
        """Return the values of each critic; ``kind`` is network or target."""
        x = obs if actions is None else torch.cat([obs, actions], dim=1)
        number = sum(name.startswith(f"critics.{kind}.critics.") and name.endswith("0.bias") for name in self.weights)
        found = [self.layers(f"critics.{kind}.critics.{index}", x) for index in range(number)]
        return found if actions is None else [each.squeeze(1) for each in found]

    def step(self, network: str, loss: Tensor, lr: float) -> None:
        named = {name: weight for name, weight in self.weights.items() if name.startswith(f"{network}.network.")}
        decay = getattr(self.config, "l2_reg", 0.0)
        for name, weight in named.items():
            if decay and name.endswith("weight"):
                loss = loss + 0.5 * decay * weight.square().sum()
        adam = torch.optim.Adam(named.values(), lr, eps=self.config.adam_epsilon)
        adam.zero_grad()
        loss.backward(inputs=list(named.values()))  # type: ignore[no-untyped-call]
        if self.config.grad_norm_clipping is not None:
            torch.nn.utils.clip_grad_norm_(named.values(), self.config.grad_norm_clipping)
        adam.step()

    def step_critics(self, values: list[Tensor], targets: Tensor, lr: float) -> None:
        threshold = getattr(self.config, "huber_threshold", None) if getattr(self.config, "use_huber", False) else None
        rows = [
            0.5 * (each - targets) ** 2
            if threshold is None
            else huber_loss(each, targets, reduction="none", delta=threshold)
            for each in values
        ]
        self.step("critics", sum((self.rows[IMPORTANCE_WEIGHTS] * each).mean() for each in rows), lr)  # type: ignore[arg-type]

    def move_targets(self) -> None:
        for name in list(self.weights):
            if ".target." in name:
                online = self.weights[name.replace(".target.", ".network.")].detach()
                self.weights[name] = (1 - self.config.tau) * self.weights[name] + self.config.tau * online


def reference_of_ddpg(config: Any, update: Update, noise: Array | None = None, delayed: bool = False) -> Reference:
    """Return the update of DDPG (Lillicrap 2016, algorithm 1) or TD3 (Fujimoto 2018, algorithm 1)."""
    found = Reference(config, update, noise)
    rows = found.rows
    actions = torch.tanh(found.layers("policy.target", rows[NEW_OBS]))
    if config.smooth_target_policy:
        assert found.noise is not None
        clip = config.target_noise_clip
        actions = (actions + (config.target_noise * found.noise[1]).clamp(-clip, clip)).clamp(-1, 1)
    lowest = torch.stack(found.values("target", rows[NEW_OBS], actions)).amin(dim=0)
    targets = (rows[REWARDS] + rows[DISCOUNTS] * lowest).detach()
    found.step_critics(found.values("network", rows[OBS], rows[ACTIONS]), targets, config.critic_lr or config.lr)
    if not delayed:
        chosen = torch.tanh(found.layers("policy.network", rows[OBS]))
        loss = -found.values("network", rows[OBS], chosen)[0].mean()
        found.step("policy", loss, config.actor_lr or config.lr)
        found.move_targets()
    return found


def reference_of_sac(config: Any, update: Update, noise: Array | None = None) -> tuple[Reference, float]:
    """Return the update of SAC (Haarnoja 2018; Christodoulou 2019), and the logarithm of alpha after it."""
    found = Reference(config, update, noise)
    rows, rates = found.rows, config.optimization
    log_alpha = torch.tensor(update.before["temperature.network.log_alpha"], dtype=torch.float64, requires_grad=True)
    alpha = log_alpha.detach().exp()

    def drawn(obs: Tensor, number: int) -> tuple[Tensor | None, Tensor, Tensor | None]:
        inputs = found.layers("policy.network", obs)
        if found.noise is None:
            return None, inputs.log_softmax(dim=1), inputs.softmax(dim=1)
        mean, log_std = inputs.chunk(2, dim=1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-20, 2).exp())
        before = mean + normal.scale * found.noise[number]
        actions = torch.tanh(before)
        log_prob: Tensor = normal.log_prob(before)  # type: ignore[no-untyped-call]
        log_prob = log_prob - torch.log(1 - actions**2 + 1e-6)
        return actions, log_prob.sum(dim=1), None

    def mean_of(numbers: Tensor, chances: Tensor | None) -> Tensor:
        return numbers if chances is None else (chances * numbers).sum(dim=1)

    actions, logp, chances = drawn(rows[OBS], 0)
    number = len(update.before["policy.network.head.2.bias"])
    wanted = 0.98 * math.log(number) if found.noise is None else -number / 2
    given = config.target_entropy
    wanted = wanted if given in ("auto", None) else given
    lr = rates.entropy_learning_rate or config.lr
    adam = torch.optim.Adam([log_alpha], lr, eps=config.adam_epsilon)
    (-log_alpha * mean_of(logp + wanted, chances).mean().detach()).backward()  # type: ignore[no-untyped-call]
    adam.step()
    new_actions, new_logp, new_chances = drawn(rows[NEW_OBS], 1)
    lowest = torch.stack(found.values("target", rows[NEW_OBS], new_actions)).amin(dim=0)
    targets = (rows[REWARDS] + rows[DISCOUNTS] * mean_of(lowest - alpha * new_logp, new_chances)).detach()
    taken = rows[ACTIONS] if found.noise is not None else None
    values = found.values("network", rows[OBS], taken)
    if taken is None:
        values = [each.gather(1, rows[ACTIONS].long().unsqueeze(1)).squeeze(1) for each in values]
    found.step_critics(values, targets, rates.critic_learning_rate or config.lr)
    lowest = torch.stack(found.values("network", rows[OBS], actions)).amin(dim=0)
    loss = mean_of(alpha * logp - lowest, chances).mean()
    found.step("policy", loss, rates.actor_learning_rate or config.lr)
    found.move_targets()
    return found, float(log_alpha.detach())


def distance(update: Update, expected: Reference) -> float:
    """Return by how much the parameters after an update differ from those expected, at most."""
    return max(
        float(abs(update.after[name] - weight.detach().numpy()).max()) for name, weight in expected.weights.items()
    )


def drawn_noise(learner: CriticLearner, shape: tuple[int, ...], number: int) -> Array:
    """Return the standard normal numbers ``[number, *shape]`` that the learner will draw next."""
    generator = torch.Generator().set_state(learner.generator.get_state())
    return np.stack([torch.randn(shape, generator=generator).numpy() for _ in range(number)])


def learned(learner: CriticLearner, batch: SampleBatch) -> Update:
    """Return an update of ``learner``."""
    before = {name: array.copy() for name, array in learner.state_dict().items()}
    result = learner.learn_on_batch(batch)
    return Update(batch, result, before, learner.state_dict())


DISCRETE_ENV = COUNTING_ENV
