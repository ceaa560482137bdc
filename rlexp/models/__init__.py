"""Networks (torch.nn only): torsos and the heads that agents put on them."""

from rlexp.models.q_network import QNetwork, QNetworkConfig

__all__ = ["QNetwork", "QNetworkConfig"]
