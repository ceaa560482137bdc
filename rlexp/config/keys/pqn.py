"""PQN's keys (Gallici et al. 2024), and their properties for other rooms: columns, display, keys that pbt keeps.

RLlib never had PQN: defaults are from the paper's experiments on pixels unless a docstring says otherwise.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rlexp.config.keys.common import CommonConfig, FactLine
from rlexp.config.keys.experiment import Experiment
from rlexp.config.keys.exploration_keys import ExplorationKeys
from rlexp.config.keys.fields import (
    RLEXP_ONLY,
    Count,
    CountOrZero,
    Fraction,
    FragmentLength,
    LayerSizes,
    Positive,
    defaults_of,
)
from rlexp.config.keys.model import Activation, ModelConfig
from rlexp.config.keys.sync_samples_keys import EpochKeys


class PQNModelConfig(ModelConfig):
    """The network of PQN; normalised layers replace a target network."""

    fcnet_activation: Activation = "relu"
    layer_norm: Annotated[bool, RLEXP_ONLY] = True


class PQNKeys(EpochKeys, ExplorationKeys):
    """The keys of PQN."""

    JOINABLE_INSTEAD = "DQN or APEX"
    num_workers: CountOrZero = 0
    num_envs_per_worker: Count = 128
    sample_batch_size: FragmentLength = 32
    train_batch_size: Count = 4096
    sgd_minibatch_size: Count = 128
    num_sgd_iter: Count = 2
    lr: Positive = 5e-4
    grad_norm_clipping: Positive | None = 10.0
    exploration_final_eps: Fraction = 0.05
    model: PQNModelConfig = defaults_of(PQNModelConfig)

    lambda_: Fraction = Field(default=0.65, alias="lambda")
    """Parameter of the returns of Q(lambda), towards which Q-values are trained. Near 0 they rely on the value of the
    next observation, at 1 on the rewards up to the end of the fragment and the value after it."""

    hiddens: LayerSizes = ()
    """Sizes of the layers in each head, after the model; they are not normalised. ``[]``: none."""

    dueling: bool = False
    """Dueling network: separate heads for the state value and the advantages (Wang et al. 2016)."""


class PQNConfig(PQNKeys):
    """What is under ``config:`` for ``run: PQN``."""

    ROLLOUT_KEYS = CommonConfig.ROLLOUT_KEYS | {"lambda_", "soft_q"}
    AGENT_COLUMNS = (
        *("info/weight_age", "info/num_fragments_lost", "info/adam_step_share"),
        *("info/min_exploration", "info/max_exploration"),
        *("info/learner/loss", "info/learner/mean_q", "info/learner/mean_td_error", "info/learner/grad_norm"),
        *("info/learner/lr", "info/learner/cur_lr"),
        *("info/learner_time_share/workers", "info/learner_time_share/learner"),
    )
    DISPLAYED = (
        *EpochKeys.DISPLAYED,
        FactLine("exploring", ("ε {info/min_exploration..info/max_exploration:short}",)),
        FactLine("learning", ("loss {info/learner/loss:short}", "mean Q {info/learner/mean_q:short}")),
    )
    KEPT_BY_PBT = (*CommonConfig.KEPT_BY_PBT, "hiddens", "dueling", "discretize_actions")


class PQNExperiment(Experiment):
    """An experiment with PQN."""

    AGENT = "rlexp.agents.pqn.agent:PQNAgent"
    POLICIES = "rlexp.agents.pqn.players:PQNPolicies"
    run: Literal["PQN"]
    config: PQNConfig = defaults_of(PQNConfig)
