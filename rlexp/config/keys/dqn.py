"""The keys of DQN and SimpleQ, and their properties for other rooms: conflicts, and keys without effect.

Defaults are RLlib 0.5.3's unless a docstring says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from rlexp.config.keys.common import BOARD_LINE, CommonConfig, FactLine, NetworkNeeds, keys_without_effect
from rlexp.config.keys.experiment import Experiment
from rlexp.config.keys.exploration_keys import EPSILON, ExplorationKeys
from rlexp.config.keys.fields import (
    RLEXP_ONLY,
    Conflict,
    Count,
    CountOrZero,
    LayerSizes,
    Positive,
    PositiveOrZero,
    defaults_of,
)
from rlexp.config.keys.model import weights_between
from rlexp.config.keys.replay_keys import DATA_LINE, ReplayKeys


class DQNConfig(ReplayKeys, ExplorationKeys):
    """What is under ``config:`` for ``run: DQN``."""

    ROLLOUT_KEYS = ReplayKeys.ROLLOUT_KEYS | {"noisy", "soft_q", "parameter_noise", "epsilon_with_noisy"}
    AGENT_COLUMNS = (
        *("info/num_target_updates", "info/num_fragments_lost", "info/mean_importance_weight", "info/adam_step_share"),
        *("info/min_exploration", "info/max_exploration", "info/replay_fill", "info/replay_fill_per_shard"),
        *("info/learner_queue_size", "info/learner_queue_capacity", "info/weight_age", "info/num_stale_priorities"),
        *("info/learner/loss", "info/learner/lr", "info/learner/cur_lr", "info/learner/mean_q"),
        *("info/learner/mean_td_error", "info/learner/grad_norm"),
    )
    DISPLAYED = (
        *CommonConfig.DISPLAYED,
        DATA_LINE,
        FactLine("exploring", ("ε {info/min_exploration..info/max_exploration:short}",)),
        BOARD_LINE,
    )
    KEPT_BY_PBT = (
        *ReplayKeys.KEPT_BY_PBT,
        *("hiddens", "dueling", "noisy", "num_atoms", "distribution", "v_min", "v_max", "discretize_actions"),
    )

    num_workers: CountOrZero = 0
    sample_batch_size: Count = 4
    lr: Positive = 5e-4
    train_batch_size: Count = 32
    grad_norm_clipping: Positive | None = 40.0
    timesteps_per_iteration: CountOrZero | None = 1000
    min_iter_time_s: PositiveOrZero | None = 1.0

    learner_precision: Annotated[Literal["float32", "tf32", "bfloat16"], RLEXP_ONLY] = "float32"
    """Precision of the learner's matrix products and convolutions. Weights, losses, Adam and the workers stay in
    float32. ``tf32``: on a GPU, factors rounded to 10 bits. ``bfloat16``: factors and outputs rounded to 7 bits; on a
    CPU without instructions for it (x86: avx512_bf16 or amx_bf16) slower than ``float32``."""

    double_q: bool = True
    """Double Q-learning: the online network chooses the next action, the target network gives its value (van Hasselt et
    al. 2016)."""

    dueling: bool = True
    """Dueling network: separate heads for the state value and the advantages (Wang et al. 2016)."""

    hiddens: LayerSizes = (256,)
    """Sizes of the layers in each head, after the model. ``[]``: none."""

    noisy: bool = False
    """Explore by noise in the layers of the heads (Fortunato et al. 2018). Every epsilon is then 0, unless
    ``epsilon_with_noisy`` is true."""

    epsilon_with_noisy: Annotated[bool, RLEXP_ONLY] = False
    """Explore by epsilon as well as by ``noisy``, as RLlib does for ``exploration_config`` beside ``noisy``."""

    sigma0: Positive = 0.5
    """Initial standard deviation of the noise of ``noisy`` layers, before division by the root of their width."""

    parameter_noise: bool = False
    """Explore by noise on all weights of the network, in addition to epsilon (Plappert et al. 2018).

    The standard deviation of the noise is adapted until the noise changes about as many actions as epsilon does. New
    noise is drawn at each episode of a worker's first environment, for all of its environments.
    """

    parameter_noise_initial_stddev: Annotated[Positive, RLEXP_ONLY] = 1.0
    """Initial standard deviation of ``parameter_noise``."""

    num_atoms: Count = 1
    """Number of atoms or quantiles of the distribution of returns (Bellemare et al. 2017). 1: learn only its mean."""

    distribution: Annotated[Literal["categorical", "quantiles"], RLEXP_ONLY] = "categorical"
    """What the ``num_atoms`` outputs of an action are. ``categorical``: the probabilities of so many values from
    ``v_min`` to ``v_max`` (C51). ``quantiles``: returns with equal probabilities, wherever they lie (QR-DQN; Dabney et
    al. 2018)."""

    v_min: float = -10.0
    """Lowest atom of the distribution of returns."""

    v_max: float = 10.0
    """Highest atom of the distribution of returns."""

    @property
    def network_needs(self) -> NetworkNeeds:
        """A torso, then heads of ``hiddens``, two with ``dueling``; ``noisy`` doubles their weights."""
        torso, heads = self.model.dense_sizes, (*self.hiddens, self.num_atoms)
        of_heads = weights_between((*torso[-1:], *heads)) * (1 + self.dueling) * (1 + self.noisy)
        pairs = self.num_atoms**2 if self.distribution == "quantiles" else 0  # each quantile has a loss with each
        return NetworkNeeds(
            keys="config.model, config.hiddens, config.num_atoms",
            least_weights=self.model.least_weights + of_heads,
            layer_outputs=self.model.layer_outputs + sum(heads) + pairs,
        )

    @property
    def explores_by_epsilon(self) -> bool:
        """True; with ``noisy`` only if ``epsilon_with_noisy`` is true."""
        return super().explores_by_epsilon and (self.epsilon_with_noisy or not self.noisy)

    def ineffective_keys(self) -> Iterator[tuple[str, str]]:
        yield from super().ineffective_keys()
        is_noise_alone = self.noisy and not self.epsilon_with_noisy
        lacks_tf32 = self.learner_precision == "tf32" and self.num_gpus == 0
        yield from keys_without_effect(
            (is_noise_alone, ("per_worker_exploration", *EPSILON), "noisy layers explore instead"),
            (not self.noisy, ("sigma0", "epsilon_with_noisy"), "noisy is false"),
            (self.is_greedy, ("parameter_noise", "parameter_noise_initial_stddev"), "explore is false"),
            (not self.parameter_noise, ("parameter_noise_initial_stddev",), "parameter_noise is false"),
            (self.num_atoms == 1, ("distribution", "v_min", "v_max"), "num_atoms is 1"),
            (self.distribution == "quantiles", ("v_min", "v_max"), "quantiles have no bounds"),
            (lacks_tf32, ("learner_precision",), "num_gpus is 0, and only GPUs have tf32"),
        )

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        for key in ("noisy", "soft_q"):
            if self.parameter_noise and getattr(self, key):
                message = f"parameter_noise and {key} are both true, but only one of them can explore"
                yield Conflict(("parameter_noise", key), message, f"write parameter_noise: false or {key}: false")
        if self.v_min >= self.v_max:
            message = f"{self.stated('v_min')}, but must be less than v_max, which is {self.v_max}"
            yield Conflict(("v_min", "v_max"), message, "lower v_min or raise v_max")


class SimpleQConfig(DQNConfig):
    """What is under ``config:`` for ``run: SIMPLEQ``: DQN as in Mnih et al. 2015, without its later parts."""

    double_q: bool = False
    dueling: bool = False
    hiddens: LayerSizes = ()
    prioritized_replay: bool = False


class DQNExperiment(Experiment):
    """An experiment with DQN."""

    AGENT = "rlexp.agents.dqn.agent:DQNAgent"
    POLICIES = "rlexp.agents.dqn.players:DQNPolicies"
    run: Literal["DQN"]
    config: DQNConfig = defaults_of(DQNConfig)


class SimpleQExperiment(DQNExperiment):
    """An experiment with SimpleQ, which DQN's agent trains."""

    run: Literal["SIMPLEQ"]  # type: ignore[assignment]  # a name of its own
    config: SimpleQConfig = defaults_of(SimpleQConfig)
