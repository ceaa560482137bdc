"""The shapes of a Q-network's parameters, by their names: what weights must have before a network takes them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from itertools import pairwise

from rlexp.models.network_config import QNetworkConfig
from rlexp.models.numpy_q_network import can_be, head_sizes


def parameter_shapes(config: QNetworkConfig) -> dict[str, tuple[int, ...]]:
    """Return the shape of each parameter; only networks that NumPy cannot compute need torch for that."""
    if can_be(config):
        return dict(_linear_shapes(config))
    import torch

    from rlexp.models.q_network import QNetwork
    from rlexp.models.weights import named_weights

    # Without memory for them; but code of the user's own may read numbers.
    with torch.device("meta") if config.torso.custom is None else nullcontext():
        return {name: tuple(weight.shape) for name, weight in named_weights(QNetwork(config)).items()}


def _linear_shapes(config: QNetworkConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the parameters of fully connected layers; between two of them lies one without parameters."""
    torso = (*config.observation_shape, *config.torso.fcnet_hiddens, *config.torso.post_fcnet_hiddens)
    for part, sizes in {"torso": torso, **head_sizes(config)}.items():
        is_noisy = config.head.noisy and part != "torso"
        for index, (fan_in, fan_out) in enumerate(pairwise(sizes)):
            for suffix in ("_mu", "_sigma") if is_noisy else ("",):
                yield f"{part}.{2 * index}.weight{suffix}", (fan_out, fan_in)
                yield f"{part}.{2 * index}.bias{suffix}", (fan_out,)
