"""The keys of ``config.model`` that shape the torso; each test fails if its key is ignored.

``model.custom_model``: every agent acts and learns with the torso of the user's own; fails if the key is ignored.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from rlexp.agents.agent import Agent
from rlexp.agents.checkpoint import LoadedCheckpoint
from rlexp.agents.dqn.agent import DQNAgent
from rlexp.agents.dqn.players import DQNPolicies
from rlexp.agents.workers import PlayedTrial
from rlexp.board.messages.basics import Task
from rlexp.board.servers.board import Seat
from rlexp.board.task import SeatSpecs, describe_trial, read_description
from rlexp.cluster.pool.pool import InlineTaskPool
from rlexp.config.keys.apex import ApexConfig
from rlexp.config.keys.dqn import DQNConfig
from rlexp.config.keys.model import ModelConfig
from rlexp.config.keys.user_code import NO_MODULES, UserModules
from rlexp.envs.make import make_vector_env, spaces_of
from rlexp.envs.registry import env_config_of
from rlexp.errors import ResumeError, TrialError, UsageError
from rlexp.models.networks import QNetwork
from rlexp.models.torsos import UserTorso
from rlexp.policy import Learner
from rlexp.rollout.worker import RolloutWorker
from rlexp.runs.checkpoint_contents import read_checkpoint
from rlexp.sample_batch import Array
from rlexp.user_code.trusted_code import TrustedCode
from tests.lab import critics
from tests.lab.agents import make_apex, make_dqn, updates_of
from tests.lab.checkpoints import trained_with
from tests.lab.envs import COUNTING_ENV, IDENTITY_ENV, PIXEL_ENV
from tests.lab.ppo import make_ppo
from tests.lab.pqn import make_pqn
from tests.lab.user_torsos import DENSE, NORMALISED

MAKERS: Mapping[str, Callable[..., Agent[Any]]] = {"DQN": make_dqn, "APEX": make_apex, "PPO": make_ppo, "PQN": make_pqn}
every_agent = pytest.mark.parametrize("run", sorted(MAKERS))
OURS = {"fcnet_hiddens": [16], "fcnet_activation": "swish", "layer_norm": False}
"""Layers that only torch computes here as well: what Dense has."""


def custom(named: Any, **model: Any) -> dict[str, Any]:
    return {"model": {"custom_model": named, **model}}


def learner_of(agent: Agent[Any]) -> Learner:
    with agent.optimizer.paused() as learner:
        return learner


def observations(agent: Agent[Any], count: int) -> Array:
    assert agent.observation_space.shape is not None
    return np.random.default_rng(0).normal(size=(count, *agent.observation_space.shape)).astype(np.float32)


def shifted(state: Mapping[str, Array]) -> dict[str, Array]:
    """Return the state of a learner with Dense, whose layers stand behind a Flatten, as that of one with ours."""
    found = {}
    for name, array in state.items():
        before, layers, after = name.partition("torso.own.layers.")
        if layers:
            index, dot, rest = after.partition(".")
            name = f"{before}torso.{int(index) - 1}{dot}{rest}"
        found[name] = array
    return found


@pytest.mark.key("model.custom_model")
@every_agent
def test_a_torso_like_ours_learns_the_same_bit_by_bit(run: str) -> None:
    ours, own = (updates_of(MAKERS[run](**keys), 1)[0] for keys in ({"model": OURS}, custom(DENSE)))
    learners = [learner_of(MAKERS[run](**keys)) for keys in ({"model": OURS}, custom(DENSE))]
    names = {shifted_name: name for name, shifted_name in zip(own.before, shifted(own.before), strict=True)}
    assert {name for name in ours.before if name.startswith(("network.", "target."))} <= names.keys()
    learners[0].load_state_dict(ours.before)
    learners[1].load_state_dict({names.get(name, name): array for name, array in ours.before.items()})
    for learner in learners:
        learner.learn_on_batch(ours.batch)
    after, own_after = learners[0].state_dict(), shifted(learners[1].state_dict())
    assert set(after) == set(own_after)
    assert not all(np.array_equal(after[name], ours.before[name]) for name in after)
    for name, array in after.items():
        np.testing.assert_array_equal(own_after[name], array, err_msg=name)


@every_agent
def test_its_policy_acts_with_the_weights_of_the_learner(run: str) -> None:
    agent = MAKERS[run](**custom(DENSE))
    (update,) = updates_of(agent, 1)
    weights = {name.removeprefix("network."): a for name, a in update.after.items() if name.startswith("network.")}
    policy = agent.policies.make_policy()
    obs = observations(agent, 64)
    policy.set_weights(weights)
    before = policy.compute_actions(obs)
    assert any("torso.own.layers.1.weight" in name for name in weights)
    policy.set_weights({name: -array for name, array in weights.items()})
    assert policy.compute_actions(obs).tolist() != before.tolist()


@pytest.mark.key("model.custom_model")
@pytest.mark.parametrize("run", ["DQN", "PPO"])
def test_agent_learns_the_identity_env(run: str) -> None:
    keys = {"lr": 5e-3, "learning_starts": 64} if run == "DQN" else {"lr": 2e-2, "train_batch_size": 80}
    agent = MAKERS[run](IDENTITY_ENV, **custom(DENSE), **keys)
    for _ in range(60):
        agent.train()
        if agent.evaluate(50).returns.mean() == 1.0:
            break
    else:
        pytest.fail("not solved")


@every_agent
def test_checkpoint_has_its_weights_and_buffers(run: str, tmp_path: Path) -> None:
    named = "tests.lab.user_torsos:Projected" if run == "PPO" else NORMALISED
    agent = MAKERS[run](**custom(named))
    while learner_of(agent).num_updates < 3:
        agent.train()
    path = agent.save(tmp_path / "checkpoint_000001", {})
    before = learner_of(agent).state_dict()
    other = MAKERS[run](**custom(named), seed=7, checkpoint=read_checkpoint(path))
    after = learner_of(other).state_dict()
    buffers = {name for name in before if "projection" in name or "running_mean" in name}
    assert buffers
    assert before.keys() == after.keys()
    for name in before:
        np.testing.assert_array_equal(after[name], before[name], err_msg=name)
    weights = read_checkpoint(path).arrays["weights"]
    for name in buffers & {f"network.{name}" for name in weights}:
        np.testing.assert_array_equal(weights[name.removeprefix("network.")], before[name])


def test_checkpoint_that_brings_its_own_torso_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = make_dqn(**custom(DENSE))
    config = {"model": {"custom_model": "torso_of_a_stranger:Torso"}}
    experiment = {"name": "a", "run": "DQN", "env": IDENTITY_ENV, "config": config}
    path = agent.save(
        tmp_path / "checkpoint_000001",
        {"experiment": experiment, "module_folders": [str(tmp_path / "checkpoint_000001")]},
    )
    (path / "torso_of_a_stranger.py").write_text("raise SystemError('imported')")
    trained_with(IDENTITY_ENV)
    with pytest.raises(ResumeError, match=r"have not trained with.*torso_of_a_stranger:Torso"):
        LoadedCheckpoint.load(path).policy()
    monkeypatch.chdir(path)
    allowed = TrustedCode.of((), (), ["torso_of_a_stranger:Torso"])
    with pytest.raises(ResumeError, match=r"torso_of_a_stranger, which .* names, is inside it"):
        LoadedCheckpoint.load(path, trusted=allowed).policy()


def test_statistics_of_batches_come_from_the_learner_to_target_and_workers() -> None:
    agent = make_dqn(**custom(NORMALISED), target_network_update_freq=1, sample_batch_size=5)
    first, *_, last = updates_of(agent, 4)
    name, variance = "torso.own.norm.running_mean", "torso.own.norm.running_var"
    assert not np.any(first.before[f"network.{name}"])
    assert np.any(last.after[f"network.{name}"])
    np.testing.assert_array_equal(last.after[f"target.{name}"], last.after[f"network.{name}"])
    weights = learner_of(agent).get_weights()
    np.testing.assert_array_equal(weights[name], last.after[f"network.{name}"])
    obs = observations(agent, 64)
    policy = agent.policies.make_policy()
    chosen = []
    for mean in (-2.0, 2.0):
        moments = {name: np.full_like(weights[name], mean), variance: np.ones_like(weights[name])}
        policy.set_weights({**weights, **moments})
        chosen.append(policy.compute_actions(obs).tolist())
    assert chosen[0] != chosen[1]


def test_nothing_drops_out_where_it_acts() -> None:
    config = {**custom({NORMALISED: {"dropout": 0.9}}), "worker_side_prioritization": True}
    agent = make_dqn(**config)
    worker = RolloutWorker(agent.spec_maker()(0, 0, None))
    policy = worker._policy
    obs = observations(agent, 4)
    policy.set_weights(learner_of(agent).get_weights())
    one, other = (policy.outputs(obs)["q_values"] for _ in range(2))
    np.testing.assert_array_equal(one, other)
    worker.stop()


@pytest.mark.parametrize("run", ["DQN", "PQN", "SAC"])
def test_what_drops_out_in_an_update_depends_on_the_seed_and_its_number_alone(run: str) -> None:
    """So a run can be repeated and resumed, whatever torch has drawn elsewhere, as in an env."""
    make = MAKERS.get(run) or partial(critics.make_agent, run)
    keys = custom({NORMALISED: {"dropout": 0.5}})
    update = updates_of(make(**keys), 2)[-1]
    for seed in (0, 1):
        learner = learner_of(make(seed=seed, **keys))
        learner.load_state_dict(update.before)
        torch.rand(7)
        drawn = torch.get_rng_state()
        learner.learn_on_batch(update.batch)
        assert torch.equal(torch.get_rng_state(), drawn)
        state = learner.state_dict()
        assert all(np.array_equal(array, update.after[name]) for name, array in state.items()) == (seed == 0)


def test_parameter_noise_perturbs_it() -> None:
    agent = make_dqn(**custom(NORMALISED), parameter_noise=True)
    updates = updates_of(agent, 2)
    assert updates[1].largest_change() > 0.0


@pytest.mark.parametrize("shares", [True, False])
def test_ppo_has_one_instance_or_two(shares: bool) -> None:
    agent = make_ppo(**custom(DENSE, vf_share_layers=shares))
    names = learner_of(agent).get_weights().keys()
    assert any(name.startswith("policy_torso.own.") for name in names)
    assert any(name.startswith("value_torso.own.") for name in names) != shares


def test_ppo_leaves_its_first_weights_as_they_are() -> None:
    agent = make_ppo(**custom(DENSE))
    weights = learner_of(agent).get_weights()
    own, head = weights["policy_torso.own.layers.1.weight"], weights["policy_head.weight"]
    bound = 1 / np.sqrt(own.shape[1])
    assert np.abs(own).max() <= bound, "as nn.Linear draws them"
    assert weights["policy_torso.own.layers.1.bias"].any()
    np.testing.assert_allclose(head @ head.T, np.eye(len(head)) * 0.01**2, atol=1e-7)


def test_ppo_refuses_layers_that_differ_while_it_learns() -> None:
    with pytest.raises(UsageError, match="other features in training mode; this agent cannot learn"):
        make_ppo(**custom(NORMALISED))


@every_agent
def test_it_sees_images_as_bytes(run: str) -> None:
    agent = MAKERS[run](PIXEL_ENV, preprocessor_pref=None, **custom({DENSE: {"hiddens": [4]}}))
    (update,) = updates_of(agent, 1)
    weight = next(array for name, array in update.after.items() if name.endswith("own.layers.1.weight"))
    assert weight.shape == (4, 10 * 10 * 3)


@pytest.mark.key("model.custom_model")
def test_joined_actors_play_with_it() -> None:
    config = ApexConfig.model_validate(
        {**custom(NORMALISED), "hiddens": [8], "num_workers": 0, "sample_batch_size": 20}
    )
    env_config = env_config_of(IDENTITY_ENV, config, NO_MODULES)
    trial = PlayedTrial(env_config, 3, *spaces_of(env_config))
    description = read_description(Task("t", "t", 2, describe_trial(config, trial)))
    assert isinstance(description.config, DQNConfig)
    assert [part.name for part in description.config.user_parts()] == [NORMALISED]
    specs = SeatSpecs(description)
    assert specs.weights_shapes["torso.own.norm.running_var"] == trial.observation_space.shape
    worker = RolloutWorker(specs.spec(Seat("t", 0, 1, "a", 15.0)))
    worker.set_weights(0, {name: np.ones(shape, np.float32) for name, shape in specs.weights_shapes.items()})
    rows, _ = worker.sample(0)
    assert len(rows) > 0
    worker.stop()


@pytest.mark.parametrize(
    ("named", "message"),
    [(DENSE, "needs torch, which is not installed here"), ("tests.lab.user_torsos:Dens", "has no Dens")],
    ids=["no-torch", "no-class"],
)
def test_actors_that_cannot_make_it_leave_the_task_out(
    monkeypatch: pytest.MonkeyPatch, named: str, message: str
) -> None:
    config = ApexConfig.model_validate({**custom(named), "num_workers": 0})
    env_config = env_config_of(IDENTITY_ENV, config, NO_MODULES)
    trial = PlayedTrial(env_config, 3, *spaces_of(env_config))
    description = read_description(Task("t", "t", 2, describe_trial(config, trial)))
    if named == DENSE:
        monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(TrialError, match=message):
        SeatSpecs(description)


def test_module_is_made_once_for_each_network() -> None:
    agent = make_dqn(**custom(DENSE))
    torso = learner_of(agent).network.torso  # type: ignore[attr-defined]
    assert isinstance(torso, UserTorso)
    assert torso.training
    assert not learner_of(agent).target.torso.training  # type: ignore[attr-defined]
    assert all(parameter.dtype == torch.float32 for parameter in torso.parameters())


def test_keys_of_our_layers_have_no_effect_beside_it() -> None:
    ineffective = dict(DQNConfig.model_validate(custom(DENSE)).ineffective_keys())
    assert {"model.fcnet_hiddens", "model.conv_filters", "model.post_fcnet_activation"} <= ineffective.keys()
    assert "model.custom_model" not in ineffective


FILTERS = ((4, (4, 4), 2), (5, (5, 5), 1))
"""For the 10 pixels of a PixelEnv."""


def network_for(env: str, preprocessor_pref: Literal["deepmind", "rllib"] | None = None, **model: Any) -> QNetwork:
    """Return the network that an agent's learner and policies have, with weights that depend on their shapes only."""
    config = DQNConfig(preprocessor_pref=preprocessor_pref, hiddens=(8,), model=ModelConfig(**model))
    vector = make_vector_env(env_config_of(env, config, UserModules()), 1)
    torch.manual_seed(0)
    network = QNetwork(DQNPolicies(config, vector.single_observation_space, vector.single_action_space).network)
    vector.close()
    return network.eval()


def shapes(network: QNetwork) -> list[tuple[int, ...]]:
    return [tuple(weight.shape) for name, weight in network.torso.named_parameters() if "weight" in name]


def answers(network: QNetwork, image: Tensor) -> list[float]:
    with torch.no_grad():
        values: list[float] = network.torso(image)[0].tolist()
    return values


def picture() -> Tensor:
    return torch.from_numpy(np.random.default_rng(0).integers(0, 256, (1, 10, 10, 3), dtype=np.uint8))


@pytest.mark.key("model.conv_filters")
def test_conv_filters_are_the_convolutions() -> None:
    assert shapes(network_for(PIXEL_ENV, conv_filters=FILTERS)) == [(4, 3, 4, 4), (5, 4, 5, 5)]
    assert shapes(network_for(PIXEL_ENV)) == [(16, 3, 4, 4), (32, 16, 4, 4), (256, 32, 3, 3)]


@pytest.mark.key("model.conv_filters")
def test_conv_filters_that_do_not_fit_are_refused_when_the_agent_is_made() -> None:
    config = DQNConfig(preprocessor_pref=None, model=ModelConfig(conv_filters=((4, (11, 11), 1),)))
    with pytest.raises(UsageError, match="do not fit images of 10x10"):
        DQNAgent(PIXEL_ENV, config, InlineTaskPool(), seed=0)


@pytest.mark.key("model.conv_activation")
def test_the_conv_activation_acts_on_the_last_layer() -> None:
    lowest = {
        activation: min(answers(network_for(PIXEL_ENV, conv_filters=FILTERS, conv_activation=activation), picture()))
        for activation in ("relu", "linear", "elu")
    }
    assert lowest["relu"] >= 0.0
    assert lowest["linear"] < lowest["elu"] < 0.0


@pytest.mark.key("model.post_fcnet_hiddens")
@pytest.mark.parametrize(
    ("env", "model"), [(PIXEL_ENV, {"conv_filters": FILTERS}), (COUNTING_ENV, {"fcnet_hiddens": (5,)})]
)
def test_post_fcnet_hiddens_are_layers_behind_the_torso(env: str, model: Mapping[str, Any]) -> None:
    without, with_two = network_for(env, **model), network_for(env, post_fcnet_hiddens=(7, 6), **model)
    assert [shape[0] for shape in shapes(with_two)] == [*(shape[0] for shape in shapes(without)), 7, 6]


@pytest.mark.key("model.post_fcnet_activation")
def test_the_post_fcnet_activation_acts_on_the_last_layer() -> None:
    lowest = {
        activation: min(
            answers(
                network_for(
                    PIXEL_ENV, conv_filters=FILTERS, post_fcnet_hiddens=(16,), post_fcnet_activation=activation
                ),
                picture(),
            )
        )
        for activation in ("relu", "linear")
    }
    assert lowest["relu"] == 0.0
    assert lowest["linear"] < 0.0


@pytest.mark.key("model.layer_norm")
@pytest.mark.parametrize("env", [COUNTING_ENV, PIXEL_ENV], ids=["vector", "image"])
def test_layer_norm_normalises_what_a_layer_gives_before_its_activation(env: str) -> None:
    filters = FILTERS if env == PIXEL_ENV else None
    model: Mapping[str, Any] = {"fcnet_activation": "linear", "conv_filters": filters, "conv_activation": "linear"}
    image = picture() if env == PIXEL_ENV else torch.tensor([[3.0, 1.0, 2.0]])
    for layer_norm in (True, False):
        features = torch.tensor(answers(network_for(env, layer_norm=layer_norm, **model), image))
        is_normalised = abs(features.mean()) < 1e-4 and abs(features.var(correction=0) - 1) < 1e-2
        assert is_normalised == layer_norm
    positive = {**model, "fcnet_activation": "relu", "conv_activation": "relu"}
    assert min(answers(network_for(env, layer_norm=True, **positive), image)) == 0.0


@pytest.mark.key("model.layer_norm")
def test_layer_norm_takes_all_channels_and_pixels_of_each_image() -> None:
    network = network_for(PIXEL_ENV, conv_filters=FILTERS[:1], conv_activation="linear", layer_norm=True)
    both = torch.cat([picture(), picture().flip(1)])
    with torch.no_grad():
        features = network.torso(both).reshape(2, 4, -1)
    np.testing.assert_allclose(features.mean(dim=(1, 2)), 0.0, atol=1e-5)
    assert abs(features.mean(dim=2)).max() > 1e-2, "the channels are not normalised one by one"
    assert torch.allclose(features[0], network.torso(picture()).detach().reshape(4, -1), atol=1e-5)


@pytest.mark.key("model.layer_norm")
@every_agent
def test_every_agent_learns_with_layer_norm(run: str) -> None:
    (update,) = updates_of(MAKERS[run](model={"fcnet_hiddens": [8], "layer_norm": True}), 1)
    gains = [name for name in update.before if name.startswith("network.") and name.endswith("torso.1.weight")]
    assert gains
    assert all((update.before[name] == 1).all() and (update.after[name] != 1).any() for name in gains)


@pytest.mark.key("model.zero_mean")
def test_zero_mean_puts_grey_at_zero_under_rllib() -> None:
    """Bytes of 128 are to a network with ``zero_mean`` what bytes of 0 are to one without."""
    model: Mapping[str, Any] = {"dim": 10, "conv_filters": FILTERS, "conv_activation": "tanh"}
    grey, black = torch.full((1, 10, 10, 3), 128, dtype=torch.uint8), torch.zeros((1, 10, 10, 3), dtype=torch.uint8)
    centred = network_for(PIXEL_ENV, "rllib", zero_mean=True, **model)
    positive = network_for(PIXEL_ENV, "rllib", zero_mean=False, **model)
    assert answers(centred, grey) == answers(positive, black)
    assert answers(centred, black) != answers(positive, black)
    deepmind = network_for(PIXEL_ENV, "deepmind", zero_mean=True, **model)
    assert answers(deepmind, black) == answers(positive, black)


def test_an_agent_learns_from_pixels() -> None:
    config = DQNConfig(
        preprocessor_pref=None,
        model=ModelConfig(conv_filters=((8, (4, 4), 2), (16, (5, 5), 1))),
        hiddens=(16,),
        lr=3e-3,
        train_batch_size=32,
        learning_starts=64,
        buffer_size=1000,
        schedule_max_timesteps=1000,
        exploration_fraction=0.5,
        timesteps_per_iteration=200,
        min_iter_time_s=0.0,
    )
    agent = DQNAgent(PIXEL_ENV, config, InlineTaskPool(), seed=0)
    for _ in range(8):
        agent.train()
    assert agent.evaluate(40).returns.mean() == 1.0
    agent.stop()


@pytest.mark.key("model.fcnet_hiddens")
def test_fcnet_hiddens_are_the_sizes_of_the_torsos_layers() -> None:
    assert shapes(network_for(COUNTING_ENV, fcnet_hiddens=(7, 5))) == [(7, 3), (5, 7)]
    assert shapes(network_for(COUNTING_ENV, fcnet_hiddens=())) == []


@pytest.mark.key("model.fcnet_activation")
def test_fcnet_activation_is_what_follows_each_of_them() -> None:
    obs = torch.randn((64, 3), generator=torch.Generator().manual_seed(0)) * 10
    features = {
        name: network_for(COUNTING_ENV, fcnet_hiddens=(6,), fcnet_activation=name).torso(obs)
        for name in ("tanh", "relu", "linear")
    }
    assert features["tanh"].abs().max() <= 1.0
    assert features["relu"].min() == 0.0
    assert torch.allclose(features["linear"].clamp(min=0), features["relu"])
    assert torch.allclose(features["linear"].tanh(), features["tanh"])
