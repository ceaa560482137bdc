"""The keys of agents with a policy network and critics that learn from replay: DDPG, TD3 and SAC.

Defaults are RLlib's unless a docstring says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rlexp.config.keys.common import (
    BOARD_LINE,
    ActionScaling,
    CommonConfig,
    FactLine,
    NetworkNeeds,
    ReplayNeeds,
)
from rlexp.config.keys.fields import (
    Count,
    CountOrZero,
    LayerSizes,
    Positive,
    PositiveOrZero,
    defaults_of,
)
from rlexp.config.keys.model import ModelConfig, weights_between
from rlexp.config.keys.replay_keys import DATA_LINE, ReplayKeys


def displayed(*facts: str) -> tuple[FactLine, ...]:
    """Return the lines of a running trial, with ``facts`` about the agent's learning beside Q and its error."""
    learning = ("Q {info/learner/mean_q:short}", "TD error {info/learner/mean_td_error:short}", *facts)
    return *CommonConfig.DISPLAYED, DATA_LINE, FactLine("learning", learning), BOARD_LINE


class CriticModelConfig(ModelConfig):
    """The network between the observation and the layers of policy and critics; each has its own."""

    fcnet_hiddens: LayerSizes = ()


class CriticKeys(ReplayKeys):
    """The keys of replay, of continuous actions and of the learner."""

    ROLLOUT_KEYS = ReplayKeys.ROLLOUT_KEYS | {"pure_exploration_steps"}
    AGENT_COLUMNS = (
        *ReplayKeys.AGENT_COLUMNS,
        *("info/learner/critic_loss", "info/learner/actor_loss", "info/learner/critic_grad_norm"),
        "info/learner/actor_grad_norm",
    )
    num_workers: CountOrZero = 0
    sample_batch_size: Count = 1
    train_batch_size: Count = 256
    grad_norm_clipping: Positive | None = None
    timesteps_per_iteration: CountOrZero | None = 1000
    min_iter_time_s: PositiveOrZero | None = 1.0
    learning_starts: CountOrZero = 1500
    target_network_update_freq: CountOrZero = 0
    model: CriticModelConfig = defaults_of(CriticModelConfig)

    twin_q: bool = False
    """Learn two critics; targets, and SAC's policy, have the lower value of both (Fujimoto et al. 2018, section 4.2).
    """

    pure_exploration_steps: CountOrZero = 0
    """Sampled steps at the start in which actions are uniformly random."""

    @property
    def continuous_actions(self) -> ActionScaling | None:
        """The policy's actions are between -1 and 1."""
        return "normalized"

    @property
    def replay(self) -> ReplayNeeds:
        """The parent's, without first priorities of workers, which have no critics."""
        return replace(super().replay, workers_send_td_errors=False)

    @property
    def sizes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Sizes of the layers of the policy and of a critic, after the model."""
        raise NotImplementedError

    @property
    def network_needs(self) -> NetworkNeeds:
        """A torso and layers for the policy, and as much for each of up to two critics."""
        policy, critic = ((*self.model.dense_sizes, *sizes) for sizes in self.sizes)
        return NetworkNeeds(
            keys="config.model and the layers of policy and critics",
            least_weights=weights_between(policy) + weights_between(critic),
            layer_outputs=sum((*policy, *critic)),
        )

    def ineffective_keys(self) -> Iterator[tuple[str, str]]:
        yield from super().ineffective_keys()
        yield "evaluation_config.exploration_final_eps", "evaluations explore as workers do late in training"
        yield "worker_side_prioritization", "workers have no critics: new rows get the highest priority so far"
