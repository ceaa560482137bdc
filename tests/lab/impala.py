"""Small agents of IMPALA and APPO that train in this process, and what their equations say of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear

from rlexp.agents.appo import APPOAgent
from rlexp.agents.impala import IMPALAAgent, VTraceAgent
from rlexp.cluster.pool.pool import TaskPool
from rlexp.config.keys.impala import APPOConfig, IMPALAConfig, VTraceKeys
from rlexp.rollout.folds import ADVANTAGES, DIST_INPUTS, IS_STEP, LOGP, VALUE_TARGETS
from rlexp.runs.checkpoint_contents import Checkpoint
from rlexp.sample_batch import ACTIONS, DISCOUNTS, OBS, REWARDS, Array
from tests.lab.agents import PlacementPool, Update, stopped_in_the_end
from tests.lab.envs import ENDLESS_ENV

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
AGENTS: Mapping[str, type[VTraceAgent[Any]]] = {"IMPALA": IMPALAAgent, "APPO": APPOAgent}
CONFIGS: Mapping[str, type[VTraceKeys]] = {"IMPALA": IMPALAConfig, "APPO": APPOConfig}


def make_agent(
    run: str,
    env: str = ENDLESS_ENV,
    seed: int = 0,
    checkpoint: Checkpoint | None = None,
    pool: TaskPool | None = None,
    **changes: Any,
) -> VTraceAgent[Any]:
    config = CONFIGS[run].model_validate({**TINY, **changes})
    return stopped_in_the_end(AGENTS[run](env, config, pool or PlacementPool(), seed, checkpoint))


def segments_of(is_step: Array) -> list[range]:
    """Return the steps of each segment; the row after its last step has the observation after it."""
    segments, first = [], 0
    for index, each in enumerate(is_step):
        if not each:
            segments.append(range(first, index))
            first = index + 1
    return segments


def slow_vtrace(
    values: Array,
    rewards: Array,
    discounts: Array,
    is_step: Array,
    ratios: Array,
    *,
    rho: float = 1.0,
    pg_rho: float = 1.0,
) -> tuple[Array, Array]:
    """Return targets and advantages, as the sums and products of equation 1 and section 4.2 of Espeholt et al. 2018.

    Discounts are of steps: their product replaces a power of gamma, and is 0 beyond the end of an episode.
    """
    targets = values.astype(np.float64).copy()
    for segment in segments_of(is_step):
        for start in segment:
            for step in range(start, segment.stop):
                before = range(start, step)
                weight = np.prod([discounts[i] * min(1.0, ratios[i]) for i in before])
                delta = min(rho, ratios[step]) * (rewards[step] + discounts[step] * values[step + 1] - values[step])
                targets[start] += weight * delta
    advantages = np.zeros(len(values))
    for segment in segments_of(is_step):
        for step in segment:
            followed = rewards[step] + discounts[step] * targets[step + 1]
            advantages[step] = min(pg_rho, ratios[step]) * (followed - values[step])
    return targets, advantages


def reference(config: VTraceKeys, update: Update, **keys: Any) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Return the weights and the figures that a train batch should come to, in double precision by autograd.

    ``keys`` differ from those of ``config``. For one choice and networks of one hidden layer with shared layers.
    """
    config = type(config).model_validate({**config.model_dump(by_alias=True), **keys})
    online = _doubles(update.before, "network.")
    weights = {name: weight.requires_grad_() for name, weight in online.items()}
    if config.opt_type == "rmsprop":
        rmsprop: dict[str, Any] = {"alpha": config.decay, "momentum": config.momentum, "eps": config.epsilon}
        adam: torch.optim.Optimizer = torch.optim.RMSprop(weights.values(), config.lr, **rmsprop)
    else:
        adam = torch.optim.Adam(weights.values(), config.lr, eps=config.adam_epsilon)
    _continue(adam, weights, update)
    batch = update.batch
    taken = torch.tensor(batch[ACTIONS]).reshape(-1, 1)
    log_probs, values = _outputs(weights, batch[OBS])
    logp = log_probs.gather(1, taken).squeeze(1)
    acted_logp = torch.tensor(batch[LOGP], dtype=torch.float64)
    compared = torch.tensor(batch[DIST_INPUTS], dtype=torch.float64).log_softmax(dim=1)
    corrected = logp.detach()
    if isinstance(config, APPOConfig) and config.vtrace:
        compared, _ = _outputs(_doubles(update.before, "target."), batch[OBS])
        corrected = compared.gather(1, taken).squeeze(1)
    if config.vtrace:
        steps = torch.tensor(batch[IS_STEP])
        found = slow_vtrace(
            values.detach().numpy(),
            batch[REWARDS],
            batch[DISCOUNTS],
            batch[IS_STEP],
            (corrected - acted_logp).exp().numpy(),
            rho=config.vtrace_clip_rho_threshold,
            pg_rho=config.vtrace_clip_pg_rho_threshold,
        )
        targets, advantages = (torch.tensor(each) for each in found)
    else:
        steps = torch.ones(len(batch), dtype=torch.bool)
        targets, advantages = (torch.tensor(batch[name], dtype=torch.float64) for name in (VALUE_TARGETS, ADVANTAGES))
    kl = (compared.exp() * (compared - log_probs)).sum(dim=1)
    policy_loss = -logp * advantages
    if isinstance(config, APPOConfig):
        ratio = (logp - acted_logp).exp() * (acted_logp - corrected).exp().clamp(0, 2)
        if not config.vtrace:
            ratio = (logp - acted_logp).exp()
        clipped = ratio.clamp(1 - config.clip_param, 1 + config.clip_param)
        policy_loss = -torch.min(ratio * advantages, clipped * advantages)
        policy_loss = policy_loss + (config.kl_coeff if config.use_kl_loss else 0.0) * kl
    vf_loss = 0.5 * (values - targets) ** 2
    entropy = -(log_probs.exp() * log_probs).sum(dim=1)
    total: Callable[[Tensor], Tensor] = torch.sum if config.SUMS_LOSSES else torch.mean
    rows = policy_loss + config.vf_loss_coeff * vf_loss - config.entropy_coeff * entropy
    total(rows[steps]).backward()  # type: ignore[no-untyped-call]
    if config.grad_norm_clipping is not None:
        torch.nn.utils.clip_grad_norm_(weights.values(), config.grad_norm_clipping)
    adam.step()
    figures = {name: total(each[steps]) for name, each in (("policy_loss", policy_loss), ("vf_loss", vf_loss))}
    figures |= {"total_loss": total(rows[steps]), "kl": kl[steps].mean(), "entropy": entropy[steps].mean()}
    return weights, {name: each.item() for name, each in figures.items()}


def _continue(optimizer: torch.optim.Optimizer, weights: Mapping[str, Tensor], update: Update) -> None:
    """Give Adam or RMSProp the means from before the update, which may be a later one."""
    flat = {
        name: torch.tensor(update.before[f"adam.{name}"])
        for name in ("square_avg", "momentum_buffer")
        if f"adam.{name}" in update.before
    }
    start = 0
    for index, weight in enumerate(weights.values()):
        state = {name: update.before[f"adam.{index}.{name}"] for name in ("step", "exp_avg", "exp_avg_sq") if not flat}
        own = {name: each[start : start + weight.numel()].reshape(weight.shape) for name, each in flat.items()}
        start += weight.numel()
        optimizer.state[weight] = {
            "step": torch.zeros(()),
            **{name: torch.as_tensor(each, dtype=torch.float64) for name, each in {**state, **own}.items()},
        }


def _doubles(state: Mapping[str, Array], prefix: str) -> dict[str, Tensor]:
    named = {name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)}
    return {f"network.{name}": torch.tensor(array, dtype=torch.float64) for name, array in named.items()}


def _outputs(weights: Mapping[str, Tensor], obs: Array) -> tuple[Tensor, Tensor]:
    """Return the logarithms of the probabilities ``[B, K]`` and the values ``[B]``."""

    def layer(name: str) -> tuple[Tensor, Tensor]:
        return weights[f"network.{name}.weight"], weights[f"network.{name}.bias"]

    seen = torch.tanh(linear(torch.tensor(obs, dtype=torch.float64), *layer("policy_torso.0")))
    return linear(seen, *layer("policy_head")).log_softmax(dim=1), linear(seen, *layer("value_head")).squeeze(1)
