"""The players of PQN: its policy, its exploring workers, and the policies for checkpoints.

A policy acts as DQN's does. It also outputs the value of the best action, for the returns of Q(lambda). No torch is
imported here, unless a network needs it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from rlexp.agents.dqn.exploration import PolicyExploration
from rlexp.agents.dqn.players import ExploringPlayers, QNetworkPolicies
from rlexp.agents.dqn.policy import DQNPolicy
from rlexp.agents.workers import WorkerParts
from rlexp.config.keys.pqn import PQNConfig
from rlexp.models.network_config import HeadConfig, QNetworkConfig
from rlexp.policy import Outputs
from rlexp.rollout.folds import ADVANTAGES, VF_PREDS, Advantages
from rlexp.sample_batch import Array, SampleBatch


class PQNPolicy(DQNPolicy):
    """Owns a copy of the Q-network, and the random streams of its exploration.

    Its output VF_PREDS is ``max_a Q(s, a)`` ``[B]``. With it the fold ``Advantages`` makes VALUE_TARGETS the returns
    ``R_t = r_t + gamma (lambda R_{t+1} + (1 - lambda) max_a Q(s_{t+1}, a))`` (Gallici et al. 2024, section 4), which
    are Peng's: rewards after an exploring action count too.
    """

    def __init__(
        self, network: QNetworkConfig, exploration: PolicyExploration | None = None, num_threads: int | None = None
    ) -> None:
        """Act greedily if there is no ``exploration``; ``num_threads`` as for a DQNPolicy."""
        super().__init__(network, exploration, num_threads=num_threads)

    def outputs(self, obs: Array) -> Outputs:
        return self.returned(self._network.outputs(obs), obs)

    def returned(self, outputs: Array, obs: Array) -> Outputs:
        return {VF_PREDS: self._values(outputs, obs).max(axis=1)}

    def postprocess(self, batch: SampleBatch) -> SampleBatch:
        """Remove the columns that the learner does not need."""
        return SampleBatch({name: each for name, each in batch.columns.items() if name not in {ADVANTAGES, VF_PREDS}})


@dataclass(frozen=True)
class PQNWorkerParts(ExploringPlayers):
    """The workers of PQN."""

    config: PQNConfig

    def parts(self, index: int, seed: int, num_threads: int | None) -> WorkerParts:
        """Return the parts of worker ``index`` beside the env; ``num_threads`` are for its forward passes."""
        config = self.config
        return WorkerParts(
            make_policy=partial(PQNPolicy, self.network, self.exploration(index, seed), num_threads),
            fold=Advantages(config.gamma, config.lambda_, uses_gae=True, uses_critic=True),
            reported_envs=self.reported_envs(index),
        )


class PQNPolicies(QNetworkPolicies[PQNConfig]):
    """The policies of PQN."""

    @property
    def head(self) -> HeadConfig:
        return HeadConfig(self.config.hiddens, self.config.dueling)

    def make_policy(self) -> PQNPolicy:
        return PQNPolicy(self.network)
