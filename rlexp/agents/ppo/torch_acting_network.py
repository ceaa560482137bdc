"""The network of PPO that acts in torch: on images, or with several threads."""

from __future__ import annotations

import torch

from rlexp.agents.torch.staging import as_tensor
from rlexp.models import ActorCriticConfig
from rlexp.models.actor_critic import ActorCritic
from rlexp.models.weights import load_arrays
from rlexp.policy import Weights
from rlexp.sample_batch import Array


class TorchActingActorCritic:
    """An ActingActorCritic that can be any network."""

    def __init__(self, config: ActorCriticConfig, num_threads: int | None) -> None:
        """``num_threads`` is for this whole process; None leaves it as it is."""
        if num_threads is not None:  # with torch's own choice, the workers of a machine fight for its cores
            torch.set_num_threads(num_threads)
        self._network = ActorCritic(config).eval()

    def load(self, weights: Weights) -> None:
        load_arrays(self._network, weights)

    @torch.inference_mode()
    def outputs(self, obs: Array) -> tuple[Array, Array]:
        inputs, values = self._network(as_tensor(obs))
        return inputs.numpy(), values.numpy()
