"""Networks: torsos and the heads that agents put on them, in torch.nn, and in NumPy for acting.

Only shapes are imported here: who needs a network imports its module, and torch with it where it is made of torch.
"""

from rlexp.models.network_config import (
    ActorCriticConfig,
    CustomTorso,
    HeadConfig,
    QNetworkConfig,
    TorsoConfig,
    torso_config_of,
)

__all__ = ["ActorCriticConfig", "CustomTorso", "HeadConfig", "QNetworkConfig", "TorsoConfig", "torso_config_of"]
