"""Networks (torch.nn only): torsos and the heads that agents put on them."""

from rlexp.models.q_network import HeadConfig, QNetwork, QNetworkConfig
from rlexp.models.torso_config import TorsoConfig, torso_config_of

__all__ = ["HeadConfig", "QNetwork", "QNetworkConfig", "TorsoConfig", "torso_config_of"]
