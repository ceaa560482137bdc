"""An update whose operations a GPU repeats as a CUDA graph computes what the single operations do.

Without a GPU, a trace stands for the graph: it too has Python's numbers of its capture as constants.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from rlexp.agents.ppo.agent import PPOLearner
from rlexp.agents.torch import device as device_module
from rlexp.agents.torch import flat_adam
from rlexp.agents.torch.device import NUM_UNCAPTURED, CapturedWork, DeviceNumbers, Work
from rlexp.models.action_distributions import actions_of
from rlexp.policy import Learner
from rlexp.sample_batch import SampleBatch
from rlexp.schedules import PiecewiseSchedule
from tests.lab import critics, ppo, pqn

NUM_BATCHES = 10 * NUM_UNCAPTURED
STEPS_PER_BATCH = 100
FALLING = PiecewiseSchedule(((0, 1e-2), (NUM_BATCHES * STEPS_PER_BATCH, 1e-3)))

Make = Callable[[str], tuple[Learner, Callable[[int], SampleBatch]]]


class Trace:
    """Stands for a ``_Graph`` of a learner on a CPU."""

    learner: Learner

    def __init__(self, work: Work, tensors: Mapping[str, Tensor], settings: tuple[Hashable, ...]) -> None:
        self._names = list(tensors)
        before = self.learner.state_dict()

        def traced(*values: Tensor) -> list[Tensor]:
            return list(work(dict(zip(self._names, values, strict=True)), *settings))

        self._operations = make_fx(traced)(*(tensor.clone() for tensor in tensors.values()))
        self.learner.load_state_dict(before)  # tracing computes, capturing does not

    @torch.no_grad()
    def replay(self, tensors: Mapping[str, Tensor]) -> Sequence[Tensor]:
        found: list[Tensor] = self._operations(*(tensors[name] for name in self._names))
        return found


def ppo_learner(device: str) -> tuple[Learner, Callable[[int], SampleBatch]]:
    keys: Mapping[str, Any] = {"lr": FALLING, "entropy_coeff": FALLING, "num_sgd_iter": 2, "sgd_minibatch_size": 16}
    config, actions = replace(ppo.LEARNER, **keys), actions_of(ppo.CHOICES)
    learner = PPOLearner(ppo.network_config(ppo.CHOICES), actions, config, 0, device, note=pytest.fail)
    return learner, lambda number: ppo.make_batch(number, count=33 if number % 2 else 32)


def pqn_learner(device: str) -> tuple[Learner, Callable[[int], SampleBatch]]:
    return pqn.make_learner(lr=FALLING, device=device), pqn.make_batch


def critic_learner(run: str, device: str, **keys: Any) -> tuple[Learner, Callable[[int], SampleBatch]]:
    schedule = [list(point) for point in FALLING.points]
    learner = critics.make_learner(run, lr_schedule=schedule, num_gpus=int(device == "cuda"), **keys)
    return learner, lambda number: critics.make_batch(number, count=24 if number % 5 == 0 else critics.ROWS)


MAKE: Mapping[str, Make] = {
    "PPO": ppo_learner,
    "PQN": pqn_learner,
    "SAC": partial(critic_learner, "SAC"),
    "TD3": partial(critic_learner, "TD3"),
    "DDPG": partial(critic_learner, "DDPG", l2_reg=1e-3, grad_norm_clipping=1.0),
}


def learned(learner: Learner, make_batch: Callable[[int], SampleBatch]) -> list[Mapping[str, float]]:
    """Return the stats of each batch."""
    stats = []
    for number in range(NUM_BATCHES):
        learner.observe_progress(number * STEPS_PER_BATCH)
        stats.append(learner.learn_on_batch(make_batch(number)).stats)
    return stats


@pytest.mark.parametrize(
    "device",
    ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))],
)
@pytest.mark.parametrize("agent", MAKE)
def test_repeated_updates_equal_single_operations_though_rates_shapes_and_terms_change(
    agent: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = MAKE[agent]
    with monkeypatch.context() as patch:
        patch.setattr(CapturedWork, "_graph_for", lambda *args: None)
        plain, make_batch = make(device)
        expected = learned(plain, make_batch)
    graphs: list[Any] = []
    own_replay = device_module._Graph.replay if device == "cuda" else Trace.replay

    def replay(graph: Any, tensors: Mapping[str, Tensor]) -> Sequence[Tensor]:
        graphs.append(graph)
        return own_replay(graph, tensors)

    if device == "cpu":
        monkeypatch.setattr(
            CapturedWork, "can_capture", property(lambda self: True, lambda self, value: None), raising=False
        )
        monkeypatch.setattr(DeviceNumbers, "of", lambda self, *numbers: torch.tensor(numbers))
        monkeypatch.setattr(device_module, "_Graph", Trace)
        monkeypatch.setattr(flat_adam, "SubnormalsAsZero", lambda: None)  # a GPU's step does not read its norm
    monkeypatch.setattr(device_module._Graph, "replay", replay)
    captured, _ = make(device)
    monkeypatch.setattr(Trace, "learner", captured, raising=False)
    found = learned(captured, make_batch)
    assert len(graphs) >= NUM_BATCHES // 2
    for name in expected[0]:
        np.testing.assert_allclose([each[name] for each in found], [each[name] for each in expected], 1e-3, 1e-5)
    weights = captured.get_weights()
    for name, array in plain.get_weights().items():
        np.testing.assert_allclose(weights[name], array, 1e-3, 2e-5)
