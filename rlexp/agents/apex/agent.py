"""Ape-X: DQN's policy and learner, with many workers, sharded replay and a learner that run side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rlexp.agents.apex.data_path import ApexDataPath
from rlexp.agents.dqn.agent import DQNAgent
from rlexp.agents.dqn.learner import DQNLearner
from rlexp.agents.workers import WorkerParts
from rlexp.config.keys.apex import ApexConfig
from rlexp.optimizers.policy_optimizer import Figures, ReplayOptimizer
from rlexp.policy import Learner
from rlexp.rollout.fragment import SampleInfo
from rlexp.rollout.source import SampleSource


class ApexAgent(DQNAgent[ApexConfig]):
    """Distributed prioritized experience replay (Horgan et al. 2018)."""

    target_counts_trained = True

    def make_learner(self) -> DQNLearner:
        learner = super().make_learner()
        self._data_path = ApexDataPath(self, self.config, learner)
        return learner

    def make_source(self) -> SampleSource:
        return self._data_path.make_source()

    def worker_parts(self, worker_index: int, seed: int, num_threads: int | None) -> WorkerParts:
        parts = super().worker_parts(worker_index, seed, num_threads)
        return replace(parts, row_writer=self._data_path.row_writer(worker_index))

    def make_optimizer(self, learner: Learner, source: SampleSource) -> ReplayOptimizer:
        return self._data_path.make_optimizer(source)

    def observe(self, row: Mapping[str, Any], infos: Sequence[SampleInfo]) -> None:
        self._data_path.observe(row, infos)

    def stats(self) -> Figures:
        return {**super().stats(), **self._data_path.stats()}
