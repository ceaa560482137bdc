"""Advantages: a fold for agents that learn a policy and a value function from their newest steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlexp.rollout.fragment import Fragment
from rlexp.sample_batch import ACTIONS, OBS, Array, SampleBatch

DIST_INPUTS = "dist_inputs"
"""The policy's output: the inputs ``[B, K]`` of the distribution that an action was drawn from."""
VF_PREDS = "vf_preds"
"""The policy's output: the value ``[B]`` of an observation."""
LOGP = "logp"
"""The logarithm of the probability with which an action was drawn, ``[B]``."""
ADVANTAGES = "advantages"
"""How much better an action was than the policy is on average, ``[B]``; not normalised."""
VALUE_TARGETS = "value_targets"
"""What the value function learns, ``[B]``."""


@dataclass(frozen=True)
class Advantages:
    """A Fold that estimates advantages, with the values that the policy computed when it acted."""

    gamma: float
    lambda_: float
    """GAE's parameter; 1 without GAE."""
    uses_gae: bool
    """Whether the targets of the value function are those of GAE; else they are the returns."""
    uses_critic: bool
    """Whether values are subtracted from returns, and stand for what is not known of them."""

    @property
    def lookahead(self) -> int:
        return 0

    def rows(self, stream: Fragment, num_starts: int) -> SampleBatch:
        """Return one row for each valid step ``t < num_starts``.

        With ``delta = r + gamma V(next) - V``, ADVANTAGES is the sum of ``(gamma lambda)^k delta_{t+k}`` to the end of
        the episode or to step ``num_starts`` (Schulman et al. 2016, equation 16), and VALUE_TARGETS is
        ``ADVANTAGES + V``. V(next) is 0 where the episode terminated, and the value of its true last observation where
        it was truncated. With lambda = 1 that is the discounted return minus V.
        """
        values = stream.outputs[VF_PREDS][: num_starts + 1].astype(np.float32, copy=False)
        if not self.uses_critic:
            values = np.zeros_like(values)
        advantages = self._advantages(stream, values, num_starts)
        valid = stream.valid[:num_starts]
        columns = {
            OBS: stream.obs[:num_starts][valid],
            ACTIONS: stream.actions[:num_starts][valid],
            ADVANTAGES: advantages[valid],
            VALUE_TARGETS: (advantages + values[:-1])[valid],
        }
        outputs = {name: output[:num_starts][valid] for name, output in stream.outputs.items()}
        return SampleBatch({**columns, **outputs})

    def _advantages(self, stream: Fragment, values: Array, num_starts: int) -> Array:
        """Return the sums ``[num_starts, M]``; those of steps that are not valid mean nothing."""
        gamma, decay = np.float32(self.gamma), np.float32(self.gamma * (self.lambda_ if self.uses_gae else 1.0))
        terminated, truncated = stream.terminated[:num_starts], stream.truncated[:num_starts]
        deltas = stream.rewards[:num_starts] + gamma * np.where(terminated, 0, values[1:]) - values[:-1]
        decays = decay * ~(terminated | truncated)
        advantages = np.empty_like(deltas)
        following = np.zeros_like(values[0])
        for step in range(num_starts - 1, -1, -1):
            following = deltas[step] + decays[step] * following
            advantages[step] = following
        return advantages
