"""The keys of PPO that say how a train batch is learned; each test fails where its key is accepted and ignored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlexp.agents.ppo.agent import PPOAgent
from rlexp.errors import ResourceError
from rlexp.rollout.folds import ADVANTAGES
from rlexp.runs.checkpoints import read_checkpoint
from rlexp.sample_batch import OBS
from tests.behaviour.learning_agents import Update, updates_of
from tests.behaviour.ppo.ppo_agents import distance, make_ppo, network_of, reference, watched_minibatches

EPOCHS = 8
"""So many that ratios and values have left what the batch was sampled with."""


def first_update(env: str = "CartPole-v1", **changes: Any) -> tuple[PPOAgent, Update]:
    agent = make_ppo(env, **{"num_sgd_iter": EPOCHS, **changes})
    (update,) = updates_of(agent, 1)
    return agent, update


@pytest.mark.key("clip_param", "vf_clip_param", "vf_loss_coeff", "kl_coeff", "entropy_coeff")
@pytest.mark.key("num_sgd_iter", "lr", "adam_epsilon", "grad_norm_clipping")
@pytest.mark.parametrize(
    ("key", "value", "other"),
    [
        ("clip_param", 0.02, 0.3),
        ("vf_clip_param", 0.05, 10.0),
        ("vf_loss_coeff", 0.3, 1.0),
        ("vf_loss_coeff", 0.0, 1.0),
        ("kl_coeff", 4.0, 0.2),
        ("kl_coeff", 0.0, 4.0),
        ("entropy_coeff", 0.4, 0.0),
        ("lr", 1e-3, 1e-2),
        ("adam_epsilon", 0.1, 0.01),
        ("grad_norm_clipping", 0.1, None),
        ("num_sgd_iter", 3, EPOCHS),
    ],
)
def test_a_train_batch_is_learned_by_the_equations(key: str, value: float, other: float | None) -> None:
    # Adam takes no notice of a factor of all gradients of a parameter, unless its epsilon is large.
    changes: dict[str, Any] = {"adam_epsilon": 0.01, key: value}
    agent, update = first_update(**changes)
    expected, ignored = reference(agent, update), reference(agent, update, **{key: other})
    assert distance(agent, update, expected) < 1e-4
    assert distance(agent, update, ignored) > 2e-3
    stats = update.result.stats
    names = ("total_loss", "entropy", "kl") + (("vf_loss",) if agent.config.vf_loss_coeff else ())
    for name in names:
        assert stats[name] == pytest.approx(getattr(expected, name), rel=1e-3, abs=1e-5), name


@pytest.mark.key("lr_schedule", "lr")
def test_lr_follows_its_schedule_over_sampled_steps_instead_of_lr() -> None:
    agent = make_ppo(lr=1.0, lr_schedule=[[40, 1e-2], [80, 1e-3], [81, 1e-12]], num_sgd_iter=1)
    updates = updates_of(agent, 4)
    assert [update.result.stats["lr"] for update in updates] == [1e-2, 1e-3, 1e-12, 1e-12]
    assert updates[0].largest_change() == pytest.approx(1e-2, rel=0.01), "Adam's first step is lr"
    assert updates[2].largest_change() < 1e-10


@pytest.mark.key("entropy_coeff_schedule", "entropy_coeff")
def test_entropy_coeff_follows_its_schedule_over_sampled_steps() -> None:
    agent = make_ppo(entropy_coeff=9.0, entropy_coeff_schedule=[[0, 0.0], [80, 0.8]], num_sgd_iter=EPOCHS)
    updates = updates_of(agent, 3)
    assert [update.result.stats["cur_entropy_coeff"] for update in updates] == pytest.approx([0.4, 0.8, 0.8])
    assert distance(agent, updates[0], reference(agent, updates[0], entropy_coeff=0.4)) < 1e-4
    assert distance(agent, updates[0], reference(agent, updates[0], entropy_coeff=9.0)) > 2e-3


@pytest.mark.key("kl_target", "kl_coeff")
@pytest.mark.parametrize(("target_per_kl", "factor"), [(0.4, 1.5), (0.6, 1.0), (1.9, 1.0), (2.1, 0.5)])
def test_kl_coeff_is_adapted_towards_kl_target(target_per_kl: float, factor: float) -> None:
    _, update = first_update(kl_coeff=0.3)
    kl_target = update.result.stats["kl"] * target_per_kl
    updates = updates_of(make_ppo("CartPole-v1", num_sgd_iter=EPOCHS, kl_coeff=0.3, kl_target=kl_target), 2)
    assert [each.result.stats["cur_kl_coeff"] for each in updates] == pytest.approx([0.3, 0.3 * factor])


@pytest.mark.key("kl_coeff")
def test_adapted_kl_coeff_is_in_checkpoints(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"kl_coeff": 1.0, "kl_target": 1e-9}
    agent = make_ppo(**keys)
    agent.train()
    agent.train()
    path = agent.save(tmp_path / "checkpoint_000002", {})
    agent.stop()
    resumed = make_ppo(checkpoint=read_checkpoint(path), **keys)
    row = resumed.train()
    resumed.stop()
    assert row["info"]["learner"]["cur_kl_coeff"] == pytest.approx(1.5**2)


@pytest.mark.key("sgd_minibatch_size", "num_sgd_iter")
@pytest.mark.parametrize(
    ("minibatch_size", "epochs", "sizes"), [(10, 2, [10] * 4), (16, 3, [20] * 2), (12, 1, [14, 13, 13])]
)
def test_each_epoch_uses_each_row_once_in_minibatches(
    minibatch_size: int, epochs: int, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = watched_minibatches(monkeypatch)
    agent = make_ppo(sgd_minibatch_size=minibatch_size, num_sgd_iter=epochs)
    row = agent.train()
    agent.stop()
    assert [len(part) for part in seen] == sizes * epochs
    assert row["info"]["num_updates"] == len(sizes) * epochs
    assert row["info"]["num_steps_trained"] == 40
    by_epoch = np.concatenate(seen).reshape(epochs, 40)
    assert by_epoch[0].mean() == pytest.approx(0.0, abs=1e-5)
    assert by_epoch[0].std() == pytest.approx(1.0, abs=1e-4), "of the whole train batch"
    for other in by_epoch[1:]:
        assert sorted(other.tolist()) == sorted(by_epoch[0].tolist())
        assert other.tolist() != by_epoch[0].tolist()


@pytest.mark.key("use_critic")
def test_without_a_critic_values_are_not_learned() -> None:
    whole: dict[str, Any] = {"use_gae": False, "batch_mode": "complete_episodes"}
    changed = {}
    for use_critic in (True, False):
        agent, update = first_update(use_critic=use_critic, **whole)
        obs = torch.tensor(update.batch[OBS])
        with torch.no_grad():
            before, after = (network_of(agent, state)(obs)[1] for state in (update.before, update.after))
        changed[use_critic] = float((after - before).abs().max())
        assert np.isfinite(update.batch[ADVANTAGES]).all()
    assert changed[True] > 0.01
    assert changed[False] == 0.0


@pytest.mark.key("num_gpus")
def test_the_learner_learns_on_a_gpu_or_says_that_there_is_none() -> None:
    if not torch.cuda.is_available():
        with pytest.raises(ResourceError, match="this torch sees no GPU"):
            make_ppo(num_gpus=1)
        return
    before = torch.cuda.memory_allocated()
    agent = make_ppo(num_gpus=1)
    assert torch.cuda.memory_allocated() > before
    assert len(updates_of(agent, 2)) == 2


@pytest.mark.key("kl_coeff")
def test_another_kl_coeff_than_that_of_the_checkpoint_is_the_next_one(tmp_path: Path) -> None:
    agent = make_ppo(kl_coeff=1.0, kl_target=1e-9)
    agent.train()
    path = agent.save(tmp_path / "checkpoint_000001", {})
    agent.stop()
    resumed = make_ppo(checkpoint=read_checkpoint(path), kl_coeff=0.4, kl_target=1e-9)
    coeffs = [resumed.train()["info"]["learner"]["cur_kl_coeff"] for _ in range(2)]
    resumed.stop()
    assert coeffs == pytest.approx([0.4, 0.6])
