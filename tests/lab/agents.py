"""Agents in one thread, on envs whose every step is known: what workers send, and what learners get and do with it.

Several learners in threads of one process, which share each train batch as those in processes do.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from torch import Tensor

from rlexp.agents.agent import Agent
from rlexp.agents.apex.agent import ApexAgent
from rlexp.agents.dqn.agent import DQNAgent
from rlexp.agents.registry import agent_class
from rlexp.agents.torch.learner_process import Shard
from rlexp.cluster.pool.pool import Actor, InlineTaskPool, Lane, Resources, TaskPool
from rlexp.config.keys.apex import ApexConfig
from rlexp.config.keys.dqn import DQNConfig
from rlexp.config.keys.experiment import Experiment
from rlexp.config.keys.model import ModelConfig
from rlexp.models.networks import QNetwork
from rlexp.models.torsos import tensors_of
from rlexp.policy import LearnResult, Weights
from rlexp.rollout.filters import LARGEST_DEVIATION
from rlexp.rollout.fragment import SampleInfo
from rlexp.runs.checkpoint_contents import Checkpoint, read_checkpoint
from rlexp.sample_batch import ACTIONS, DISCOUNTS, NEW_OBS, OBS, REWARDS, Array, SampleBatch, SentRows
from tests.lab.checkpoints import trained
from tests.lab.envs import COUNTING_ENV, ENDLESS_ENV
from tests.lab.rollout import whole

NUM_ENVS = 2
SMALL: Mapping[str, Any] = {
    "model": ModelConfig(fcnet_hiddens=(8,)),
    "hiddens": (8,),
    "num_envs_per_worker": NUM_ENVS,
    "sample_batch_size": 10,
    "buffer_size": 1000,
    "learning_starts": 32,
    "timesteps_per_iteration": 60,
    "min_iter_time_s": 0.0,
}


class PlacementPool(InlineTaskPool):
    """An inline pool that remembers what each actor reserved; None: it was to stay in this process."""

    def __init__(self) -> None:
        self.placed: dict[str, Resources | None] = {}

    def place(
        self, name: str, resources: Resources | None, make: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Actor[Any]:
        assert isinstance(make, type), "Ray places objects of classes only"
        self.placed[name] = resources
        return super().place(name, resources, make, *args, **kwargs)


AgentT = TypeVar("AgentT", bound=Agent[Any])
NetworkT = TypeVar("NetworkT", bound=torch.nn.Module)
MADE: list[Agent[Any]] = []
"""The agents of the test that runs; ``tests/conftest.py`` stops them at its end."""


def stopped_in_the_end(agent: AgentT) -> AgentT:
    """Return an agent that is stopped when the test ends, however it ends."""
    MADE.append(agent)
    return agent


def make_agent(
    env: str = COUNTING_ENV, checkpoint: Checkpoint | None = None, pool: TaskPool | None = None, **changes: Any
) -> DQNAgent[DQNConfig]:
    config = DQNConfig(**{**SMALL, **changes})
    return stopped_in_the_end(DQNAgent(env, config, pool or PlacementPool(), 0, checkpoint))


def agent_for(experiment: Experiment, checkpoint: Checkpoint | None = None) -> Agent[Any]:
    """Return the agent that an experiment names."""
    agent: Agent[Any] = agent_class(experiment)(experiment.env, experiment.config, PlacementPool(), 0, checkpoint)
    return stopped_in_the_end(agent)


def saved(agent: Agent[Any], experiment: Experiment, folder: Path) -> Path:
    """Return a checkpoint of the agent in the folder of a trial, which plays as the experiment says."""
    trained(experiment)
    (folder / "trial").mkdir(parents=True, exist_ok=True)
    data = {"experiment": experiment.model_dump(mode="json", by_alias=True)}
    path = agent.save(folder / "trial" / "checkpoint_000001", data)
    agent.stop()
    return path


def checkpoint_of(agent: Agent[Any], folder: Path) -> Checkpoint:
    """Return a checkpoint of the agent, which is written into ``folder``."""
    return read_checkpoint(agent.save(folder / "checkpoint_000001", {}))


def weights_of(agent: Agent[Any]) -> Weights:
    """Return a copy of the learner's weights."""
    with agent.optimizer.paused() as learner:
        return learner.get_weights()


def assert_continues(
    make: Callable[..., AgentT], folder: Path, state_of: Callable[[AgentT], Mapping[str, Any]] = weights_of
) -> None:
    """Assert that an agent that is made again from a checkpoint learns what one without a stop learns, bit by bit."""
    unstopped, first = make(), make()
    for agent in (unstopped, first):
        agent.train()
    resumed = make(checkpoint=checkpoint_of(first, folder))
    for agent in (unstopped, resumed):
        agent.train()
    expected, found = (
        {name: (np.asarray(each).dtype, np.asarray(each).tobytes()) for name, each in state_of(agent).items()}
        for agent in (unstopped, resumed)
    )
    assert found == expected


def poll(agent: Agent[Any], num_steps_sampled: int = 0) -> list[tuple[SampleBatch, SampleInfo]]:
    """Return the next sample of each of the agent's workers, which send whole observations."""
    return [(whole(sent), info) for sent, info in poll_sent(agent, num_steps_sampled)]


def poll_sent(agent: Agent[Any], num_steps_sampled: int = 0) -> list[tuple[SentRows, SampleInfo]]:
    """Return the next sample of each of the agent's workers, in the form in which it was sent."""
    samples = agent.source.poll(num_steps_sampled) or agent.source.poll(num_steps_sampled)
    return [(agent.pool.get(sample.batch, 1.0), sample.info) for sample in samples]


def sample(polls: int, env: str = COUNTING_ENV, **changes: Any) -> list[tuple[SampleBatch, SampleInfo]]:
    """Return what the workers of a new agent deliver."""
    return delivered(make_agent(env, **changes), polls)


def delivered(agent: Agent[Any], polls: int) -> list[tuple[SampleBatch, SampleInfo]]:
    """Return what the workers of an agent deliver, which is stopped then."""
    try:
        return [sample for _ in range(polls) for sample in poll(agent)]
    finally:
        agent.stop()


def rows(samples: list[tuple[SampleBatch, SampleInfo]], column: str = OBS) -> Array:
    return np.concatenate([batch[column] for batch, _ in samples])


def standardised(observations: Array, seen: Array) -> Array:
    """Return observations in deviations from the mean of everything in ``seen [N, D]``."""
    seen = seen.astype(np.float64)
    scale = seen.std(axis=0, ddof=1) + 1e-8
    deviations: Array = (observations - seen.mean(axis=0)) / scale
    return deviations.clip(-LARGEST_DEVIATION, LARGEST_DEVIATION)


def endless_observations(env_ids: Array, last_step: int) -> Array:
    """Return what the envs have shown up to a step, in any order."""
    return np.array([(env_id, 0, step) for env_id in env_ids for step in range(last_step + 1)])


STEPS = 20
"""Env steps of a fragment of the agents here."""
TINY: Mapping[str, Any] = {
    "model": {"fcnet_hiddens": [8]},
    "hiddens": [8],
    "num_workers": 0,
    "num_envs_per_worker": 2,
    "sample_batch_size": STEPS // 2,
    "n_step": 1,
    "lr": 1e-3,
    "buffer_size": 1000,
    "learning_starts": 40,
    "train_batch_size": 16,
    "timesteps_per_iteration": 200,
    "min_iter_time_s": 0.0,
}
ONE_SHARD: Mapping[str, Any] = {"num_replay_buffer_shards": 1, "learner_queue_depth": 2, "sample_queue_depth": 1}

TDErrors = Callable[[SampleBatch], Array]


class CountingPool(PlacementPool):
    """An inline pool that lets the learner's thread run where others wait, and counts the calls of its lanes."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self._never = threading.Event()

    def start(self, lane: Lane, actor: Actor[Any], method: Callable[..., Any], args: tuple[object, ...]) -> None:
        self.calls[method.__name__] += 1
        super().start(lane, actor, method, args)

    def wait(self, timeout: float) -> bool:
        self._never.wait(min(timeout, 0.001))
        return True


def make_dqn(
    env: str = ENDLESS_ENV, seed: int = 0, checkpoint: Checkpoint | None = None, **changes: Any
) -> DQNAgent[DQNConfig]:
    config = DQNConfig.model_validate({**TINY, **changes})
    return stopped_in_the_end(DQNAgent(env, config, PlacementPool(), seed, checkpoint))


def make_apex(env: str = ENDLESS_ENV, seed: int = 0, checkpoint: Checkpoint | None = None, **changes: Any) -> ApexAgent:
    optimizer = {**ONE_SHARD, **changes.pop("optimizer", {})}
    config = ApexConfig.model_validate({**TINY, **changes, "optimizer": optimizer})
    return stopped_in_the_end(ApexAgent(env, config, CountingPool(), seed, checkpoint))


MAKERS: Mapping[str, Callable[..., DQNAgent[Any]]] = {"DQN": make_dqn, "APEX": make_apex}
both_agents = pytest.mark.parametrize("run", sorted(MAKERS))


@dataclass(frozen=True)
class Update:
    """One call of ``learn_on_batch``, with the learner's state on both sides of it."""

    batch: SampleBatch
    result: LearnResult
    before: Mapping[str, Array]
    after: Mapping[str, Array]

    @property
    def num_steps_sampled(self) -> int:
        """What the learner knew of, when it began."""
        return int(self.after["counters"][0])

    @property
    def num_steps_trained(self) -> int:
        """Rows trained before it."""
        return int(self.before["counters"][1])

    def largest_change(self) -> float:
        """Return by how much the update moved the parameter that it moved most."""
        names = [name for name in self.before if name.startswith("network.")]
        return max(float(abs(self.after[name] - self.before[name]).max()) for name in names)


def watched(agent: Agent[Any], td_errors: TDErrors | None = None) -> list[Update]:
    """Return a list that fills with the agent's updates; the learner reports ``td_errors`` instead of its own."""
    updates: list[Update] = []
    with agent.optimizer.paused() as learner:
        learn_on_batch = learner.learn_on_batch

        def learn(batch: SampleBatch, *others: Any) -> LearnResult:
            before = learner.state_dict()
            result = learn_on_batch(batch, *others)
            if td_errors is not None:
                result = LearnResult(result.stats, td_errors(batch))
            updates.append(Update(batch, result, before, learner.state_dict()))
            return result

        learner.learn_on_batch = learn  # type: ignore[method-assign]
    return updates


def train_until(agent: Agent[Any], updates: list[Update], count: int) -> None:
    """Train until ``count`` updates were watched, then stop the agent."""
    while len(updates) < count:
        agent.train(lambda: len(updates) >= count)
    agent.stop()


def updates_of(agent: Agent[Any], count: int, td_errors: TDErrors | None = None) -> list[Update]:
    """Return the first ``count`` updates of a new agent, which is stopped then."""
    updates = watched(agent, td_errors)
    train_until(agent, updates, count)
    return updates[:count]


def network_of(agent: DQNAgent[Any], state: Mapping[str, Array], prefix: str) -> QNetwork:
    """Return the network whose weights stand under ``prefix`` in a learner's state, without noise."""
    return with_weights(QNetwork(agent.policies.network).eval(), state, prefix)


def with_weights(network: NetworkT, state: Mapping[str, Array], prefix: str = "network.") -> NetworkT:
    """Return ``network`` with the weights that stand under ``prefix`` in a learner's state."""
    network.load_state_dict(tensors_of(state, prefix))
    return network


def absolute_td_errors(batch: SampleBatch, online: QNetwork, target: QNetwork, selector: QNetwork) -> Array:
    """Return ``|r + discount * q_target[argmax q_selector] - q_online[a]|`` of the rows of ``batch [B]``."""
    rows = np.arange(len(batch))
    with torch.no_grad():
        q_tm1 = online(torch.tensor(batch[OBS])).numpy()
        q_t, q_t_selector = (network(torch.tensor(batch[NEW_OBS])).numpy() for network in (target, selector))
    target_tm1 = batch[REWARDS] + batch[DISCOUNTS] * q_t[rows, q_t_selector.argmax(axis=1)]
    return np.asarray(abs(target_tm1 - q_tm1[rows, batch[ACTIONS]]))


LATEST_S = 60.0
"""The longest wait of a learner for the others."""


class LearnersInThreads:
    """Learners that add up gradients in the order of their ranks."""

    def __init__(self, make: Callable[[str, Shard], Any], number: int = 2) -> None:
        self._addends: list[Tensor] = [Tensor()] * number
        self._barrier = threading.Barrier(number, timeout=LATEST_S)
        self.learners = [make("cpu", Shard(rank, number, self._add_up_of(rank))) for rank in range(number)]

    def learn_on_batch(self, batch: SampleBatch) -> LearnResult:
        """Let all learn on a train batch; return the first one's result."""
        with ThreadPoolExecutor(len(self.learners)) as threads:
            results = [threads.submit(learner.learn_on_batch, batch) for learner in self.learners]
        first: LearnResult
        first, *_ = [result.result() for result in results]
        return first

    def _add_up_of(self, rank: int) -> Callable[[Tensor], None]:
        def add_up(tensor: Tensor) -> None:
            self._addends[rank] = tensor.clone()
            self._barrier.wait()
            first, *others = self._addends
            tensor.copy_(sum(others, start=first))
            self._barrier.wait()

        return add_up
