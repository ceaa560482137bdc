"""The keys of gatherers and of published weights; each test fails if its key is ignored."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from rlexp.config.keys.apex import ApexConfig
from rlexp.optimizers.pacing import SENT_BYTES_PER_S, WeightPublisher
from rlexp.policy import Weights
from rlexp.rollout.gatherer import GatheredWorkers
from tests.behaviour.learning_agents import make_apex
from tests.doubles.scripted import ScriptedSource

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
    agent.stop()
    assert added >= row["info"]["num_steps_sampled"] > 0


@pytest.mark.key("optimizer.gatherers")
def test_gatherers_move_replay_out_of_the_drivers_process() -> None:
    for gatherers, own_processes in ((0, False), (1, True)):
        agent = make_apex(num_workers=200, num_envs_per_worker=1, optimizer={"gatherers": gatherers})
        placed = agent.pool.placed["replay-0"]  # type: ignore[attr-defined]
        agent.stop()
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
        agent.stop()
    assert syncs[1] == 1 < syncs[0]
