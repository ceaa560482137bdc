"""A WorkerSpec on its way to another process."""

from __future__ import annotations

import pickle
import subprocess
import sys
from functools import partial
from pathlib import Path

from rlexp.agents.dqn.exploration import ConstantEpsilon, PolicyExploration
from rlexp.agents.dqn.policy import DQNPolicy
from rlexp.config.keys.dqn import DQNConfig
from rlexp.models import QNetworkConfig, torso_config_of
from rlexp.models.q_network import QNetwork
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
assert "td_errors" in rows
heavy = {"torch", "ray"} & set(sys.modules)
sys.exit(f"imported: {heavy}" if heavy else 0)
"""


def test_worker_of_a_small_network_needs_neither_torch_nor_ray() -> None:
    network = QNetworkConfig((4,), 2, torso_config_of(DQNConfig()), PLAIN_HEAD)
    exploration = PolicyExploration(ConstantEpsilon((0.1, 0.1)), seed=0, worker_index=0)
    spec = spec_of("CartPole-v1", partial(DQNPolicy, network, exploration, True, 1), num_envs=2, fragment_length=10)
    weights = {name: tensor.numpy() for name, tensor in QNetwork(network).state_dict().items()}
    done = subprocess.run(
        [sys.executable, "-c", SAMPLES_ONCE],
        input=pickle.dumps((spec, weights)),
        capture_output=True,
        timeout=60,
        cwd=Path(__file__).parents[3],
    )
    assert done.returncode == 0, done.stderr.decode()
