"""A WorkerSpec on its way to another process."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from gymnasium.spaces import Discrete

from rlexp.agents.dqn.exploration import ConstantEpsilon, PolicyExploration
from rlexp.agents.dqn.policy import DQNPolicy
from rlexp.agents.ppo.policy import PPOPolicy
from rlexp.config.keys.dqn import DQNConfig
from rlexp.models import ActorCriticConfig, QNetworkConfig, torso_config_of
from rlexp.models.action_distributions import actions_of
from rlexp.models.networks import ActorCritic, QNetwork
from rlexp.policy import Weights
from rlexp.rollout.folds import Advantages
from rlexp.rollout.worker_spec import WorkerSpec
from tests.networks import PLAIN_HEAD
from tests.rollout_settings import spec_of

SAMPLES_ONCE = """
import pickle, sys
from rlexp.rollout.worker import RolloutWorker
spec, weights = pickle.load(sys.stdin.buffer)
worker = RolloutWorker(spec)
worker.set_weights(1, weights)
rows, info = worker.sample(0)
worker.stop()
assert info.num_rows == len(rows) > 0, info
assert sys.argv[1] in rows
heavy = {"torch", "ray"} & set(sys.modules)
sys.exit(f"imported: {heavy}" if heavy else 0)
"""


def dqn_worker() -> tuple[WorkerSpec, Weights]:
    network = QNetworkConfig((4,), 2, torso_config_of(DQNConfig()), PLAIN_HEAD)
    exploration = PolicyExploration(ConstantEpsilon((0.1, 0.1)), seed=0, worker_index=0)
    make_policy = partial(DQNPolicy, network, exploration, True, 1)
    weights = {name: tensor.numpy() for name, tensor in QNetwork(network).state_dict().items()}
    return spec_of("CartPole-v1", make_policy, num_envs=2, fragment_length=10), weights


def ppo_worker() -> tuple[WorkerSpec, Weights]:
    actions = actions_of(Discrete(2))
    network = ActorCriticConfig((4,), actions.num_inputs, 0, torso_config_of(DQNConfig()), shares_torso=False)
    make_policy = partial(PPOPolicy, network, actions, 0, 1)
    weights = {name: tensor.numpy() for name, tensor in ActorCritic(network).state_dict().items()}
    fold = Advantages(0.99, 0.95, uses_gae=True, uses_critic=True)
    return spec_of("CartPole-v1", make_policy, num_envs=2, fold=fold, fragment_length=10), weights


@pytest.mark.parametrize(("make", "column"), [(dqn_worker, "td_errors"), (ppo_worker, "logp")])
def test_worker_of_a_small_network_needs_neither_torch_nor_ray(
    make: Callable[[], tuple[WorkerSpec, Weights]], column: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SAMPLES_ONCE, column],
        input=pickle.dumps(make()),
        capture_output=True,
        timeout=60,
        cwd=Path(__file__).parents[3],
    )
    assert done.returncode == 0, done.stderr.decode()
