"""The row of results of one iteration, and its ``info``: how the data path did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlexp.agents.progress import Progress
from rlexp.optimizers.policy_optimizer import Counters, OptimizerStats
from rlexp.policy import Learner
from rlexp.rollout.sample_time import SampleTime
from rlexp.rollout.worker import FragmentInfo
from rlexp.sample_batch import Array


@dataclass(frozen=True)
class IterationReport:
    """Everything that one iteration's ``info`` is computed from."""

    elapsed_s: float
    sampled: int
    trained: int
    counters: Counters
    stats: OptimizerStats
    learner: Learner
    infos: Sequence[FragmentInfo]
    epsilons: Sequence[Array]
    """ε of each worker's envs, ``[M]`` each."""

    def row(self, progress: Progress, with_timing: bool) -> dict[str, Any]:
        """Return the row of results of the iteration; ``progress`` counts it already."""
        reported, everybody = progress.summaries()
        return {
            "training_iteration": progress.iteration,
            "timesteps_total": self.counters.num_steps_sampled,
            "timesteps_this_iter": self.sampled,
            "time_total_s": progress.time_total_s,
            "time_this_iter_s": self.elapsed_s,
            "episodes_total": progress.episodes_total,
            "episodes_this_iter": sum(len(info.episodes.returns) for info in self.infos),
            "episode_reward_mean": reported.reward_mean,
            "episode_reward_min": reported.reward_min,
            "episode_reward_max": reported.reward_max,
            "episode_reward_mean_all": everybody.reward_mean,
            "episode_len_mean": reported.len_mean,
            "info": self.info(with_timing),
        }

    def info(self, timing: bool) -> dict[str, Any]:
        """Return the figures under RLlib's names, and those it never told; ``timing_s`` only where it is wanted."""
        stats, seconds = self.stats, max(self.elapsed_s, 1e-9)
        fills = [shard.size / shard.capacity for shard in stats.shards]
        worker_time_share = self._worker_time_share(seconds * len(self.epsilons))
        info = {
            "num_steps_sampled": self.counters.num_steps_sampled,
            "num_steps_trained": self.counters.num_steps_trained,
            "num_updates": self.learner.num_updates,
            "num_target_updates": self.learner.num_target_updates,
            "num_weight_syncs": stats.num_weight_syncs,
            "num_worker_restarts": stats.num_worker_restarts,
            "sample_throughput": self.sampled / seconds,
            "train_throughput": self.trained / seconds,
            "trained_per_sampled": self.trained / self.sampled if self.sampled else 0.0,
            "replay_fill": sum(fills) / len(fills),
            "replay_fill_per_shard": fills,
            "num_stale_priorities": sum(shard.num_stale_priorities for shard in stats.shards),
            "learner_queue_size": stats.learner_queue_size,
            "learner_queue_capacity": stats.learner_queue_capacity,
            "learner_wait_share": stats.learner_wait_share,
            "learner_time_share": dict(stats.learner_time_share),
            "worker_wait_share": worker_time_share["wait"],
            "worker_time_share": worker_time_share,
            "weight_age": stats.weight_age,
            "bottleneck": stats.bottleneck,
            "learner": dict(stats.learner),
        }
        return info | self._epsilons() | ({"timing_s": dict(stats.timing_s)} if timing else {})

    def _worker_time_share(self, seconds: float) -> dict[str, float]:
        """Return what part of ``seconds``, those of all workers together, went into what."""
        spent = SampleTime.sum(info.time for info in self.infos)
        return {
            "acting": spent.acting_s / seconds,
            "stepping": spent.stepping_s / seconds,
            "folding": spent.folding_s / seconds,
            "wait": max(1.0 - spent.total_s / seconds, 0.0),
        }

    def _epsilons(self) -> dict[str, Any]:
        return {
            "min_exploration": float(min(epsilons.min() for epsilons in self.epsilons)),
            "max_exploration": float(max(epsilons.max() for epsilons in self.epsilons)),
            "exploration_per_worker": {str(index): float(each.mean()) for index, each in enumerate(self.epsilons)},
        }
