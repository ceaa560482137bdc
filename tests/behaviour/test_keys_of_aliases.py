"""SimpleQ and DDPPO: DQN and PPO with other defaults; each test fails if a default or a size is not theirs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rlexp.agents.dqn.agent import DQNAgent
from rlexp.agents.ppo.agent import PPOAgent
from rlexp.cluster.room.fit import fitted
from rlexp.cluster.room.machine import Cluster, Machine
from rlexp.config.keys.dqn import DQNConfig, SimpleQConfig
from rlexp.config.keys.ppo import DDPPOConfig, PPOConfig
from rlexp.config.load import LoadOptions, load_plan
from rlexp.runs.checkpoint_contents import Checkpoint
from tests.lab import ppo
from tests.lab.agents import SMALL, PlacementPool, assert_continues, stopped_in_the_end, updates_of, weights_of
from tests.lab.envs import ENDLESS_ENV
from tests.lab.experiment_files import config_of, messages, planned, problems
from tests.unit.agents.test_agent import assert_same_bits

OF_DQN = {key: value for key, value in SMALL.items() if key != "hiddens"}
SIMPLE: dict[str, Any] = {"double_q": False, "dueling": False, "hiddens": [], "prioritized_replay": False}


def q_learner(kind: type[DQNConfig], checkpoint: Checkpoint | None = None, **keys: Any) -> DQNAgent[DQNConfig]:
    config = kind(**{**OF_DQN, **keys})
    return stopped_in_the_end(DQNAgent("CartPole-v1", config, PlacementPool(), 0, checkpoint))


def ddppo(**keys: Any) -> PPOAgent:
    config = DDPPOConfig.model_validate({**ppo.TINY, **keys})
    return stopped_in_the_end(PPOAgent(ENDLESS_ENV, config, PlacementPool(), 0))


@pytest.mark.key("double_q", "dueling", "hiddens", "prioritized_replay")
def test_simpleq_is_dqn_without_its_later_parts() -> None:
    simple, same, dqn = (
        q_learner(SimpleQConfig),
        q_learner(DQNConfig, **SIMPLE),
        q_learner(DQNConfig, hiddens=[]),
    )
    for agent in (simple, same, dqn):
        agent.train()
    assert_same_bits(weights_of(simple), weights_of(same))
    assert weights_of(simple).keys() != weights_of(dqn).keys()
    layers = {name.partition(".weight")[0] for name in weights_of(simple) if name.endswith(".weight")}
    assert len(layers) == 2  # the hidden layer, and the one that gives the values


@pytest.mark.parametrize("key", SIMPLE)
def test_each_part_of_dqn_can_be_added_to_simpleq(key: str) -> None:
    default = DQNConfig.model_fields[key].default
    changed = SimpleQConfig.model_validate({key: default})
    assert getattr(changed, key) == default != getattr(SimpleQConfig(), key)


def test_a_resumed_trial_of_simpleq_learns_what_one_without_a_stop_learns(tmp_path: Path) -> None:
    assert_continues(partial(q_learner, SimpleQConfig), tmp_path)


@pytest.mark.key("train_batch_size", "sample_batch_size")
@pytest.mark.parametrize(("num_workers", "rows"), [(0, 40), (1, 40), (2, 80), (3, 120)])
@pytest.mark.parametrize("length", [10, "auto"])
def test_each_worker_of_ddppo_samples_a_train_batch(num_workers: int, rows: int, length: int | str) -> None:
    agent = ddppo(num_workers=num_workers, sample_batch_size=length)
    assert [update.batch.count for update in updates_of(agent, 2)] == [rows] * 2


@pytest.mark.key("sgd_minibatch_size")
@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_minibatch_of_ddppo_has_rows_of_each_worker(num_workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = ppo.watched_minibatches(monkeypatch)
    updates_of(ddppo(num_workers=num_workers, sgd_minibatch_size=20, num_sgd_iter=1), 1)
    assert [len(rows) for rows in seen] == [20 * num_workers] * 2


def test_ddppo_learns_what_ppo_learns_with_the_sizes_of_all_workers() -> None:
    keys: dict[str, Any] = {"num_workers": 2, "kl_coeff": 0.0}
    whole = ppo.make_ppo(**keys, train_batch_size=80, sgd_minibatch_size=80)
    each = ddppo(**keys)
    for agent in (whole, each):
        agent.train()
    assert_same_bits(weights_of(whole), weights_of(each))


@pytest.fixture
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def experiment(keys: str, run: str = "DDPPO", env: str = "CartPole-v1") -> str:
    return f"a:\n  run: {run}\n  env: {env}\n  stop: {{training_iteration: 1}}\n  config: {{{keys}}}\n"


@pytest.mark.usefixtures("in_tmp_path")
class TestFiles:
    @pytest.mark.parametrize(
        ("run", "current"), [("SimpleQ", "SIMPLEQ"), ("SimpleQTrainer", "SIMPLEQ"), ("DDPPOTrainer", "DDPPO")]
    )
    def test_names_of_rllib(self, run: str, current: str) -> None:
        (trial,) = planned(experiment("", run=run)).trials
        assert trial.experiment.run == current

    @pytest.mark.parametrize("size", ["train_batch_size: -1, ", ""])
    def test_a_train_batch_of_a_worker_is_one_fragment_of_its_envs(self, size: str) -> None:
        plan = planned(experiment(f"{size}rollout_fragment_length: 20, num_envs_per_worker: 3, sgd_minibatch_size: 9"))
        assert (config_of(plan).train_batch_size, config_of(plan).whole_train_batch) == (60, 120)
        assert "config.train_batch_size is 60 here: one fragment of each env of a worker" in messages(plan)

    def test_a_given_train_batch_is_kept(self) -> None:
        assert config_of(planned(experiment("train_batch_size: 700, num_envs_per_worker: 3"))).train_batch_size == 700
        assert config_of(planned(experiment(""))).train_batch_size == 500

    def test_workers_with_gpus_are_learners(self) -> None:
        Path("f.yaml").write_text(experiment("num_workers: 4, num_gpus_per_worker: 1"))
        machine = Cluster.of(Machine(16, 4, 2**33, 2**33))
        plan = load_plan(["f.yaml"], options=LoadOptions(adjust=partial(fitted, cluster=machine)))
        config = config_of(plan)
        assert (config.num_learners, config.num_gpus, config.num_gpus_per_worker) == (4, 4, 0)
        small = Cluster.of(Machine(2, 0, 2**33, 2**33))
        config = config_of(load_plan(["f.yaml"], options=LoadOptions(adjust=partial(fitted, cluster=small))))
        assert (config.num_learners, config.num_gpus) == (1, 0)

    def test_the_kl_penalty_is_that_of_the_age(self) -> None:
        old = "sample_batch_size: 100, use_pytorch: true"
        assert config_of(planned(experiment(old))).kl_coeff == 0.2
        new = "num_rollout_workers: 2, kl_coeff: 0.5"
        plan = planned(experiment(new))
        assert config_of(plan).kl_coeff == 0
        assert any(message.startswith("config.kl_coeff has no effect here") for message in messages(plan))

    def test_the_plumbing_of_rllib_has_no_effect(self) -> None:
        keys = "keep_local_weights_in_sync: true, torch_distributed_backend: gloo, truncate_episodes: true"
        assert len(messages(planned(experiment(keys)))) == 3

    def test_ppo_has_the_old_meaning_of_its_sizes(self) -> None:
        assert (
            config_of(planned(experiment("num_workers: 3", run="PPO"))).whole_train_batch
            == PPOConfig().train_batch_size
        )
        ((_, message, _),) = problems(planned, experiment("train_batch_size: -1", run="PPO"))
        assert message.startswith("config.train_batch_size must be a whole number >= 1")


@pytest.mark.usefixtures("in_tmp_path")
def test_simpleq_counts_as_dqn_in_tables_of_rllib() -> None:
    plan = planned(
        experiment("num_learners: 1, exploration_config: {type: EpsilonGreedy, final_epsilon: 0.1}", "SimpleQ")
    )
    assert config_of(plan).exploration_final_eps == 0.1
