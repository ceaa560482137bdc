"""Small agents of A2C, A3C and PG that train in this process, and what their equations say of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from rlexp.agents.a2c import (
    A2CAgent,
    A3CAgent,
    PGAgent,
    PolicyGradientAgent,
    PolicyGradientConfig,
    PolicyGradientLearner,
)
from rlexp.cluster.pool.pool import TaskPool
from rlexp.config.keys.a2c import A2CConfig, A3CConfig, PGConfig, PolicyGradientKeys
from rlexp.models.action_distributions import actions_of
from rlexp.rollout.folds import ADVANTAGES, VALUE_TARGETS
from rlexp.runs.checkpoint_contents import Checkpoint
from rlexp.sample_batch import ACTIONS, OBS, Array
from rlexp.schedules import PiecewiseSchedule
from tests.lab.agents import PlacementPool, Update, stopped_in_the_end
from tests.lab.envs import ENDLESS_ENV
from tests.lab.ppo import CHOICES, network_config

NUM_ENVS, LENGTH = 2, 10
TINY: Mapping[str, Any] = {
    "model": {"fcnet_hiddens": [8]},
    "num_workers": 0,
    "num_envs_per_worker": NUM_ENVS,
    "sample_batch_size": LENGTH,
    "train_batch_size": 40,
    "lr": 1e-2,
    "min_iter_time_s": 0,
}
"""A train batch is two fragments."""
AGENTS: Mapping[str, type[PolicyGradientAgent[Any]]] = {"A2C": A2CAgent, "A3C": A3CAgent, "PG": PGAgent}
CONFIGS: Mapping[str, type[PolicyGradientKeys]] = {"A2C": A2CConfig, "A3C": A3CConfig, "PG": PGConfig}


def make_agent(
    run: str,
    env: str = ENDLESS_ENV,
    seed: int = 0,
    checkpoint: Checkpoint | None = None,
    pool: TaskPool | None = None,
    **changes: Any,
) -> PolicyGradientAgent[Any]:
    kind = AGENTS[run]
    config = CONFIGS[run].model_validate({**TINY, **changes})
    return stopped_in_the_end(kind(env, config, pool or PlacementPool(), seed, checkpoint))


def make_learner(seed: int = 0, **changes: Any) -> PolicyGradientLearner:
    """Return a learner of choices, in which ``changes`` differ from A2C's defaults."""
    settings: dict[str, Any] = {
        "lr": PiecewiseSchedule(((0, 1e-3),)),
        "entropy_coeff": PiecewiseSchedule(((0, 0.01),)),
        "adam_epsilon": 1e-8,
        "grad_norm_clipping": 40.0,
        "vf_loss_coeff": 0.5,
        "sums_losses": True,
    }
    config = PolicyGradientConfig(**{**settings, **changes})
    return PolicyGradientLearner(network_config(CHOICES), actions_of(CHOICES), config, seed)


def reference(config: PolicyGradientKeys, update: Update, **keys: Any) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Return the weights and the figures that a train batch should come to.

    ``keys`` differ from those of ``config``. Written from algorithm S3 of Mnih et al. 2016 in float64, with torch's own
    Adam and clipping of gradients, for one choice and networks of one hidden layer.
    """
    config = type(config).model_validate({**config.model_dump(by_alias=True), **keys})
    named = {name: array for name, array in update.before.items() if name.startswith("network.")}
    weights = {name: torch.tensor(array, dtype=torch.float64, requires_grad=True) for name, array in named.items()}
    adam = torch.optim.Adam(weights.values(), config.lr, eps=config.adam_epsilon)
    obs = torch.tensor(update.batch[OBS], dtype=torch.float64)
    taken = torch.tensor(update.batch[ACTIONS]).reshape(-1, 1)
    advantages, targets = (
        torch.tensor(update.batch[name], dtype=torch.float64) for name in (ADVANTAGES, VALUE_TARGETS)
    )

    def outputs(torso: str, head: str) -> Tensor:
        first, last = ([weights[f"network.{part}.{name}"] for name in ("weight", "bias")] for part in (torso, head))
        return linear(torch.tanh(linear(obs, *first)), *last)

    logp = outputs("policy_torso.0", "policy_head").log_softmax(dim=1)
    shares = "network.value_torso.0.weight" not in weights
    values = outputs("policy_torso.0" if shares else "value_torso.0", "value_head").squeeze(1)
    entropy = -(logp.exp() * logp).sum(dim=1)
    policy_loss = -logp.gather(1, taken).squeeze(1) * advantages
    vf_loss = 0.5 * (values - targets) ** 2
    coeff = config.vf_loss_coeff if config.use_critic else 0.0
    rows = policy_loss + coeff * vf_loss - config.entropy_coeff * entropy
    total = torch.sum if config.SUMS_LOSSES else torch.mean
    total(rows).backward()  # type: ignore[no-untyped-call]
    if config.grad_norm_clipping is not None:
        present = [weight for weight in weights.values() if weight.grad is not None]
        torch.nn.utils.clip_grad_norm_(present, config.grad_norm_clipping)
    adam.step()
    figures = {"total_loss": total(rows), "policy_loss": total(policy_loss), "vf_loss": total(vf_loss)}
    return weights, {name: each.item() for name, each in (figures | {"entropy": entropy.mean()}).items()}


def distance(update: Update, expected: Mapping[str, Tensor]) -> float:
    """Return by how much the parameters after an update differ from those expected, at most."""
    return max(float(abs(update.after[name] - array(expected[name])).max()) for name in expected)


def array(tensor: Tensor) -> Array:
    found: Array = tensor.detach().numpy()
    return found
