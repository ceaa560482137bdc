"""The keys that say how many workers there are and what each reserves; each test fails where its key is ignored.

The keys of gatherers and of published weights; each test fails if its key is ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from rlexp.agents.apex.agent import ApexAgent
from rlexp.cluster.pool.pool import InlineTaskPool, Resources
from rlexp.cluster.pool.ray_pool import RayTaskPool
from rlexp.config.keys.apex import ApexConfig, ApexExperiment
from rlexp.config.keys.dqn import DQNConfig, DQNExperiment
from rlexp.config.keys.ppo import PPOConfig
from rlexp.config.keys.trial import bundles_of
from rlexp.errors import TrialError
from rlexp.optimizers.pacing import SENT_BYTES_PER_S, WeightPublisher
from rlexp.policy import Weights
from rlexp.rollout.gatherer import GatheredWorkers
from rlexp.tuning.tune_runner import placement
from tests.lab.agents import SMALL, PlacementPool, make_agent, make_apex, poll
from tests.lab.doubles import ScriptedSource
from tests.lab.envs import COUNTING_ENV
from tests.lab.experiment_files import conflicts

NUM_FLOATS = 1000


@pytest.mark.key("optimizer.gatherers")
@pytest.mark.parametrize(("gatherers", "number"), [("auto", 0), (0, 0), (1, 1), (2, 2), (5, 3)])
def test_so_many_gatherers_have_the_workers(gatherers: int | str, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlexp.agents.apex.gatherers.LONGEST_WAIT_S", 0.05)
    agent = make_apex(num_workers=3, replay_storage="actors", optimizer={"gatherers": gatherers})
    placed = agent.pool.placed  # type: ignore[attr-defined]
    assert sum(name.startswith("gatherer-") for name in placed) == number
    assert isinstance(agent.source, GatheredWorkers) == (number > 0)
    row: dict[str, Any] = {"info": {"num_steps_trained": 0}}
    while not row["info"]["num_steps_trained"]:
        row = agent.train()
    added = sum(state["num_added"] for state in agent.optimizer.replay_states())
    assert added >= row["info"]["num_steps_sampled"] > 0


@pytest.mark.key("optimizer.gatherers")
def test_gatherers_move_replay_out_of_the_drivers_process() -> None:
    for gatherers, own_processes in ((0, False), (1, True)):
        agent = make_apex(num_workers=200, num_envs_per_worker=1, optimizer={"gatherers": gatherers})
        placed = agent.pool.placed["replay-0"]  # type: ignore[attr-defined]
        assert (placed is not None) == own_processes


@pytest.mark.key("optimizer.gatherers")
@pytest.mark.parametrize("keys", [{"replay_storage": "local"}, {"replay_storage": "shared_memory"}, {"num_workers": 0}])
def test_gatherers_without_shards_or_workers_of_their_own_are_refused(keys: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=r"gatherers|do not fit"):
        ApexConfig.model_validate({**keys, "optimizer": {"gatherers": 2}})
    ApexConfig.model_validate({**keys, "optimizer": {"gatherers": 0}})


class Snapshots:
    """A learner's runner with a newer version of the weights at each request."""

    def __init__(self) -> None:
        self.version = 0

    @property
    def num_updates(self) -> int:
        return self.version

    def request_weights(self) -> None:
        self.version += 1

    def latest_weights(self) -> Any:
        return type("Snapshot", (), {"version": self.version, "weights": self.weights()})

    def weights(self) -> Weights:
        return {"updates": np.full(NUM_FLOATS, self.version, np.float32)}


@pytest.mark.key("optimizer.min_weight_publish_s")
@pytest.mark.parametrize(
    ("min_weight_publish_s", "num_gatherers", "interval_s"),
    [(0.0, 4, 0.0), (3.0, 0, 3.0), (3.0, 4, 3.0), (None, 0, 0.0), (None, 4, 4 * 4 * NUM_FLOATS / SENT_BYTES_PER_S)],
)
def test_weights_are_published_no_faster(
    min_weight_publish_s: float | None, num_gatherers: int, interval_s: float
) -> None:
    now_s, source, runner = 0.0, ScriptedSource(), Snapshots()
    source.wants_weights = True
    publisher = WeightPublisher(source, runner, min_weight_publish_s, num_gatherers, lambda: now_s)  # type: ignore[arg-type]
    step_s = max(interval_s, 1.0) / 4
    published_s: list[float] = []
    for _ in range(40):
        before = len(source.published)
        publisher.publish()
        published_s += [now_s] * (len(source.published) - before)
        now_s += step_s
    gaps = np.diff(published_s)
    assert len(gaps) > 3
    np.testing.assert_allclose(gaps, max(step_s, interval_s))


@pytest.mark.key("optimizer.min_weight_publish_s")
def test_an_agent_publishes_at_the_rate_of_its_key() -> None:
    syncs = []
    for seconds in (0.0, 3600.0):
        agent = make_apex(num_workers=1, optimizer={"max_weight_sync_delay": 1, "min_weight_publish_s": seconds})
        for _ in range(5):
            row = agent.train()
        syncs.append(row["info"]["num_weight_syncs"])
    assert syncs[1] == 1 < syncs[0]


def placed(**changes: Any) -> dict[str, Resources | None]:
    agent = make_agent(**changes)
    assert isinstance(agent.pool, PlacementPool)
    agent.stop()
    return agent.pool.placed


def bundles(**changes: Any) -> list[dict[str, float]]:
    experiment = DQNExperiment.model_validate(
        {"name": "e", "run": "DQN", "env": COUNTING_ENV, "config": {**SMALL, **changes}}
    )
    return list(placement(experiment).bundles)


@pytest.mark.key("num_workers")
@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_so_many_workers_play(num_workers: int) -> None:
    agent = make_agent(num_workers=num_workers)
    assert sorted(info.worker_index for _, info in poll(agent)) == list(range(max(num_workers, 1)))
    assert len(placed(num_workers=num_workers)) == num_workers
    assert len(bundles(num_workers=num_workers)) == 1 + num_workers


@pytest.mark.key("num_cpus_per_worker", "num_gpus_per_worker", "custom_resources_per_worker")
def test_each_worker_reserves_what_it_is_given() -> None:
    given = {
        "num_workers": 2,
        "num_cpus_per_worker": 0.5,
        "num_gpus_per_worker": 0.25,
        "custom_resources_per_worker": {"licence": 2.0},
    }
    licence = {"licence": 2.0}
    assert placed(**given) == {f"worker-{index}": Resources(0.5, 0.25, licence, bundle=1 + index) for index in (0, 1)}
    assert bundles(**given)[1:] == [{"CPU": 0.5, "GPU": 0.25, "licence": 2.0}] * 2


@pytest.mark.key("custom_resources_per_worker")
def test_a_worker_may_reserve_nothing_but_a_resource_of_its_own() -> None:
    given = {"num_workers": 1, "num_cpus_per_worker": 0.0, "custom_resources_per_worker": {"licence": 1.0}}
    assert bundles(**given)[1:] == [{"licence": 1.0}]
    assert bundles(num_workers=1, num_cpus_per_worker=0.0) == bundles(num_workers=0)


@pytest.mark.key("custom_resources_per_worker")
def test_ray_is_asked_for_all_that_an_actor_reserves(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    asked: list[dict[str, Any]] = []

    class Remote:
        """Stands for an actor class that Ray was given."""

        def remote(self, *args: Any) -> Remote:
            return self

        def __getattr__(self, name: str) -> Remote:
            return self

    def remote(**options: Any) -> Callable[[Any], Remote]:
        asked.append(options)
        return lambda make: Remote()

    monkeypatch.setattr(ray, "remote", remote)
    pool = RayTaskPool()
    pool.place("worker-0", Resources(0.5, 0.25, {"licence": 2.0}), InlineTaskPool)
    pool.place("worker-1", Resources(0.5, 0.25, {"licence": 2.0}, outside_group=True), InlineTaskPool)
    usual = {"num_cpus": 0.5, "num_gpus": 0.25, "resources": {"licence": 2.0}, "max_restarts": 0}
    assert asked == [usual, {**usual, "scheduling_strategy": "DEFAULT"}]


@pytest.mark.key("min_num_workers")
def test_workers_beyond_those_waited_for_are_outside_of_the_trials_group() -> None:
    assert bundles(num_workers=3, min_num_workers=1) == bundles(num_workers=1)
    inside, *elastic = placed(num_workers=3, min_num_workers=1).values()
    assert inside == Resources(1.0, 0.0, bundle=1)
    assert elastic == [Resources(1.0, 0.0, outside_group=True)] * 2
    agent = make_agent(num_workers=3, min_num_workers=0)
    assert sorted(info.worker_index for _, info in poll(agent)) == [0, 1, 2]


@pytest.mark.key("min_num_workers")
@pytest.mark.parametrize(
    ("num_workers", "message"),
    [(0, "num_workers is 0, so there are no workers to wait for"), (2, "more than num_workers, which is 2")],
)
def test_no_workers_are_waited_for_that_no_trial_has(num_workers: int, message: str) -> None:
    (conflict,) = conflicts(DQNConfig, num_workers=num_workers, min_num_workers=3)
    assert conflict.keys == ("min_num_workers", "num_workers")
    assert message in conflict.message


@pytest.mark.key("min_num_workers", "replay_storage")
def test_shared_memory_has_no_workers_outside_of_the_group() -> None:
    (conflict,) = conflicts(ApexConfig, num_workers=3, min_num_workers=1, replay_storage="shared_memory")
    assert "which needs all workers on the learner's machine" in conflict.message
    assert ApexConfig(num_workers=3, min_num_workers=3, replay_storage="shared_memory").num_reserved_workers == 3


@pytest.mark.key("placement", "replay_storage")
@pytest.mark.parametrize(
    ("changes", "strategy"),
    [
        ({}, "PACK"),
        ({"placement": "SPREAD"}, "SPREAD"),
        ({"replay_storage": "shared_memory"}, "STRICT_PACK"),
        ({"replay_storage": "shared_memory", "num_workers": 0}, "PACK"),
    ],
)
def test_bundles_are_packed_spread_or_on_one_node(changes: dict[str, Any], strategy: str) -> None:
    entry = {"name": "e", "run": "APEX", "env": COUNTING_ENV, "config": changes}
    assert placement(ApexExperiment.model_validate(entry)).strategy == strategy


@pytest.mark.key("optimizer.num_cpus_per_shard")
@pytest.mark.parametrize(("storage", "cpus"), [("auto", 3.0), ("actors", 3.0), ("local", 1.0), ("shared_memory", 1.0)])
def test_shards_reserve_cpus_in_the_bundle_of_the_driver(
    storage: str, cpus: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlexp.agents.apex.data_path.available_cpus", lambda: 1)
    shards = {"num_replay_buffer_shards": 4, "num_cpus_per_shard": 0.5}
    keys = {**SMALL, "num_workers": 1, "train_batch_size": 32, "replay_storage": storage, "optimizer": shards}
    entry = {"name": "e", "run": "APEX", "env": COUNTING_ENV, "config": keys}
    assert placement(ApexExperiment.model_validate(entry)).bundles == [{"CPU": cpus}, {"CPU": 1.0}]
    config, pool = ApexConfig(**keys), PlacementPool()
    ApexAgent(COUNTING_ENV, config, pool, seed=0).stop()
    assert pool.placed["replay-3"] == (Resources(0, 0, bundle=0) if cpus > 1 else None)
    has_no_effect = "optimizer.num_cpus_per_shard" in dict(config.ineffective_keys())
    assert has_no_effect == (cpus == 1.0)


def test_a_driver_that_reserves_nothing_has_no_bundle() -> None:
    config = ApexConfig(num_cpus_for_driver=0.0, num_workers=2)
    bundles = bundles_of(config)
    assert bundles.of_driver is None
    assert [bundles.of_worker(index) for index in range(3)] == [0, 1, None]
    learners = bundles_of(PPOConfig(num_workers=2, num_learners=2))
    assert (learners.of_driver, learners.of_first_learner, learners.of_worker(0)) == (0, 1, 3)


@pytest.mark.key("num_cpus_for_driver")
@pytest.mark.usefixtures("threads")
def test_the_driver_reserves_cpus_and_learns_with_as_many_threads() -> None:
    assert bundles(num_cpus_for_driver=3)[0] == {"CPU": 3}
    make_agent(num_cpus_for_driver=3).stop()
    assert torch.get_num_threads() == 3


@pytest.mark.key("num_threads_per_worker")
@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(("given", "threads_used"), [(None, 1), (1, 1), (2, 2)])
def test_a_worker_acts_with_so_many_threads(given: int | None, threads_used: int) -> None:
    # Workers are placed in this process, after the driver set its own threads; a perturbed network acts with torch.
    make_agent(num_workers=1, num_threads_per_worker=given, num_cpus_for_driver=4, parameter_noise=True).stop()
    assert torch.get_num_threads() == threads_used


def fails(tmp_path: Path, **how: Any) -> dict[str, Any]:
    """What makes an agent with one worker, whose env fails at its hundredth step."""
    return {
        "env": "tests.lab.failing_env:FailsOnceEnv",
        "num_workers": 1,
        "num_cpus_per_worker": 0,
        "num_envs_per_worker": 1,
        "timesteps_per_iteration": 300,
        "env_config": {"failed": str(tmp_path / "failed"), **how},
    }


@pytest.mark.ray
@pytest.mark.key("sample_timeout_s")
@pytest.mark.parametrize("how", ["raise", "hang", "die"])
def test_a_worker_that_fails_hangs_or_dies_is_replaced(how: str, tmp_path: Path, ray_session: None) -> None:
    agent = make_agent(pool=RayTaskPool(), sample_timeout_s=5.0, **fails(tmp_path, how=how))
    row = agent.train()
    (event,) = agent.drain_events()
    said = {
        "raise": "worker 0 failed: env tests.lab.failing_env:FailsOnceEnv: tests/lab/failing_env.py:",
        "hang": "worker 0 delivered nothing for 5 s (sample_timeout_s);",
        "die": "worker 0 failed: its process died;",
    }
    assert event.startswith(said[how])
    assert row["info"]["num_worker_restarts"] == 1


def test_a_reward_that_is_no_number_ends_a_trial_without_workers(tmp_path: Path) -> None:
    agent = make_agent(**{**fails(tmp_path, how="nan", always=True), "num_workers": 0})
    with pytest.raises(TrialError, match="the env returned a reward of nan"):
        agent.train()


@pytest.mark.ray
@pytest.mark.key("max_num_worker_restarts")
def test_workers_are_replaced_so_often_and_no_more(tmp_path: Path, ray_session: None) -> None:
    dies = fails(tmp_path, how="die", always=True)
    agent = make_agent(pool=RayTaskPool(), max_num_worker_restarts=1, **dies)
    with pytest.raises(TrialError, match="every rollout worker was removed"):
        agent.train()
    assert agent.source.num_worker_restarts == 1
