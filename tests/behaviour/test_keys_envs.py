"""The keys that say which env is played and what the agent sees of it; each test fails if its key is ignored.

``monitor: true`` leaves a video of an evaluation episode with each checkpoint.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import imageio_ffmpeg
import numpy as np
import pytest
import torch

from rlexp.agents.checkpoint import EvaluationRequest, evaluate_checkpoint
from rlexp.agents.dqn.agent import DQNAgent
from rlexp.agents.ppo.agent import PPOAgent
from rlexp.cluster.pool.pool import InlineTaskPool
from rlexp.config.keys.dqn import DQNConfig
from rlexp.config.keys.model import ModelConfig
from rlexp.config.keys.ppo import PPOExperiment
from rlexp.config.keys.user_code import UserModules, folders_for
from rlexp.envs.make import make_env, make_filmed_env, make_vector_env
from rlexp.envs.registry import EnvConfig, env_config_of
from rlexp.errors import EnvError, ResumeError, UsageError
from rlexp.models.network_config import QNetworkConfig
from rlexp.models.networks import QNetwork
from rlexp.runs.trial_files import write_video
from rlexp.sample_batch import OBS
from rlexp.terminal.displays import QuietDisplay
from rlexp.tuning.request import TrainingRequest
from rlexp.tuning.resume import resume_run
from tests.lab import ppo
from tests.lab.agents import stopped_in_the_end
from tests.lab.envs import COUNTING_ENV, ENDLESS_ENV, FILMED_ENV, PIXEL_ENV
from tests.lab.masks import MASKED_WORLD
from tests.lab.rollout import whole

REPOSITORY = Path(__file__).parents[2]
TINY: Mapping[str, Any] = {
    "hiddens": (8,),
    "train_batch_size": 8,
    "learning_starts": 8,
    "buffer_size": 200,
    "timesteps_per_iteration": 40,
    "min_iter_time_s": 0.0,
}
SMALL_FILTERS = ((4, (8, 8), 8), (4, (2, 2), 2))
"""Make a small network of any image."""


def make_agent(env: str, model: Mapping[str, Any] | None = None, **keys: Any) -> DQNAgent[DQNConfig]:
    config = DQNConfig(**{**TINY, **keys}, model=ModelConfig(**{"fcnet_hiddens": (8,), **(model or {})}))
    return stopped_in_the_end(DQNAgent(env, config, InlineTaskPool(), seed=0))


def observed(env: str, model: Mapping[str, Any] | None = None, **keys: Any) -> tuple[int, ...]:
    """Return the shape of what the agent sees, which is what its workers' envs show."""
    agent = make_agent(env, {"conv_filters": SMALL_FILTERS, **(model or {})}, **keys)
    vector = make_vector_env(agent.env_config, 1)
    obs, _ = vector.reset(seed=0)
    network: QNetworkConfig = agent.policies.network
    agent.stop()
    vector.close()
    assert obs.shape[1:] == network.observation_shape
    assert obs.dtype == np.uint8
    return network.observation_shape


@pytest.mark.key("preprocessor_pref")
@pytest.mark.parametrize(
    ("preference", "shape"), [("deepmind", (84, 84, 4)), ("rllib", (84, 84, 3)), (None, (210, 160, 3))]
)
def test_the_preprocessor_preference_decides_what_is_seen_of_a_game(
    preference: str | None, shape: tuple[int, ...]
) -> None:
    assert observed("PongNoFrameskip-v4", preprocessor_pref=preference) == shape


@pytest.mark.key("model.dim")
@pytest.mark.parametrize(("dim", "shape"), [(42, (42, 42, 4)), (20, (20, 20, 4))])
def test_dim_is_the_side_of_a_games_frames(dim: int, shape: tuple[int, ...]) -> None:
    assert observed("PongNoFrameskip-v4", {"dim": dim}) == shape


@pytest.mark.key("model.dim")
@pytest.mark.parametrize(("preference", "side"), [("deepmind", 24), ("rllib", 24), (None, 10)])
def test_dim_is_the_side_of_any_image_unless_it_is_to_stay_as_it_is(preference: str | None, side: int) -> None:
    assert observed(PIXEL_ENV, {"dim": 24}, preprocessor_pref=preference) == (side, side, 3)
    assert observed(PIXEL_ENV, preprocessor_pref=preference) == (10, 10, 3), "without dim nothing is scaled"


@pytest.mark.key("observation_filter")
@pytest.mark.parametrize(("observation_filter", "centered"), [("NoFilter", True), ("MeanStdFilter", False)])
def test_memory_of_a_game_reaches_the_network_around_zero(observation_filter: str, centered: bool) -> None:
    agent = make_agent(
        "Pong-v4", env_config={"obs_type": "ram"}, observation_filter=observation_filter, sample_batch_size=50
    )
    network = QNetwork(agent.policies.network)
    saturated: list[float] = []
    first = next(layer for layer in network.torso.modules() if isinstance(layer, torch.nn.Tanh))
    first.register_forward_hook(
        lambda layer, given, gives: saturated.append((gives.abs() > 0.99).float().mean().item())
    )
    (sample,) = agent.source.poll(0)
    obs = torch.from_numpy(whole(agent.pool.get(sample.batch, 1.0))[OBS])
    network(obs)
    assert agent.policies.network.sees_byte_vectors is centered
    assert obs.dtype == (torch.uint8 if centered else torch.float32)
    assert saturated[0] < 0.1, "97 % of the units would be saturated by bytes as they are"


@pytest.mark.key("model.grayscale")
@pytest.mark.parametrize(
    ("preference", "grayscale", "channels"), [("rllib", True, 1), ("rllib", False, 3), ("deepmind", False, 4)]
)
def test_grayscale_makes_frames_grey(preference: str, grayscale: bool, channels: int) -> None:
    seen = observed("PongNoFrameskip-v4", {"grayscale": grayscale}, preprocessor_pref=preference)
    assert seen == (84, 84, channels)


@pytest.mark.key("model.framestack")
@pytest.mark.parametrize(("preference", "channels"), [("deepmind", 1), ("rllib", 3)])
def test_without_framestack_one_frame_is_seen(preference: str, channels: int) -> None:
    seen = observed("PongNoFrameskip-v4", {"framestack": False}, preprocessor_pref=preference)
    assert seen == (84, 84, channels)


@pytest.mark.key("discretize_actions")
@pytest.mark.parametrize("bins", [3, 5])
def test_pendulum_trains_with_its_torques_divided(bins: int) -> None:
    agent = make_agent("Pendulum-v1", discretize_actions=bins)
    row = agent.train()
    assert agent.policies.network.num_actions == bins
    assert row["info"]["num_steps_trained"] > 0


@pytest.mark.key("discretize_actions")
def test_without_it_continuous_actions_are_refused() -> None:
    with pytest.raises(UsageError, match="DQN, APEX and PQN need a Discrete one"):
        make_agent("Pendulum-v1")


@pytest.mark.key("horizon")
def test_the_horizon_cuts_episodes() -> None:
    agent = make_agent(ENDLESS_ENV, horizon=7)
    row = agent.train()
    assert row["episode_len_mean"] == row["episode_reward_max"] == 7.0


@pytest.mark.key("env_config")
def test_the_env_config_reaches_the_env() -> None:
    assert observed(PIXEL_ENV, env_config={"size": 16}, preprocessor_pref=None) == (16, 16, 3)


@pytest.mark.key("env_wrappers")
def test_wrappers_change_what_is_trained_and_evaluated() -> None:
    wrappers = ["tests.lab.wrappers:InTwoParts", {"tests.lab.wrappers:Paid": {"reward": 3.0}}]
    config = {"env_wrappers": wrappers, "evaluation_interval": 1, "evaluation_num_episodes": 1, "horizon": 5}
    agent = make_agent(
        COUNTING_ENV, **DQNConfig.model_validate(config).model_dump(exclude={"model"}, exclude_unset=True)
    )
    row = agent.train()
    assert agent.policies.network.observation_shape == (2,)
    assert row["episode_reward_mean"] == pytest.approx(3.0 * row["episode_len_mean"])
    assert row["evaluation"]["episode_reward_mean"] == pytest.approx(3.0 * row["evaluation"]["episode_len_mean"])


@pytest.mark.key("model.custom_preprocessor")
def test_custom_preprocessor_decides_what_the_network_sees() -> None:
    model = ModelConfig.model_validate({"custom_preprocessor": {"tests.lab.wrappers:Only": {"factor": 0.5}}})
    agent = make_agent(COUNTING_ENV, {"custom_preprocessor": model.custom_preprocessor})
    assert agent.policies.network.observation_shape == (1,)
    (sample,) = agent.source.poll(0)
    seen = whole(agent.pool.get(sample.batch, 1.0))[OBS]
    assert set(seen[:, 0] * 2) <= {float(step) for step in range(13)}
    assert (seen % 1 == 0.5).any(), "half of an odd step's number"


REGISTERS = """
import gymnasium
gymnasium.register("Registered-v0", "tests.lab.envs:CountingEnv")
"""


@pytest.fixture
def registering_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "registers_an_env.py").write_text(REGISTERS, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "registers_an_env", raising=False)
    monkeypatch.setattr("gymnasium.envs.registration.registry", {})
    return "registers_an_env"


def test_modules_are_imported_before_an_env_is_made(registering_module: str) -> None:
    config = DQNConfig()
    with pytest.raises(UsageError, match="Registered-v0 is not a Gymnasium environment"):
        make_env(env_config_of("Registered-v0", config, UserModules()))
    make_vector_env(env_config_of("Registered-v0", config, UserModules((registering_module,))), 1).close()


def test_a_module_that_cannot_be_imported_is_named() -> None:
    with pytest.raises(UsageError, match="--import no_such_module") as caught:
        make_env(EnvConfig("CartPole-v1", modules=UserModules(("no_such_module",))))
    assert caught.value.exit_code == 2


@pytest.fixture
def downloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with an env's module, and one that has the name of a module that is not loaded yet."""
    (tmp_path / "downloaded_env.py").write_text("from tests.lab.envs import CountingEnv as Env\n", encoding="utf-8")
    (tmp_path / "colorsys.py").write_text("is_poisoned = True\n", encoding="utf-8")
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("downloaded_env", "colorsys"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def test_env_module_is_found_beside_the_experiment_file(downloads: Path) -> None:
    config = DQNConfig()
    with pytest.raises(UsageError, match="downloaded_env cannot be imported"):
        make_env(env_config_of("downloaded_env:Env", config, UserModules()))
    modules = UserModules(folders=folders_for([downloads / "experiment.yaml"]))
    make_env(env_config_of("downloaded_env:Env", config, modules)).close()
    assert not hasattr(importlib.import_module("colorsys"), "is_poisoned"), "installed modules come first"


def test_module_folders_are_not_searched_where_no_module_is_named(downloads: Path) -> None:
    make_env(env_config_of("CartPole-v1", DQNConfig(), UserModules(folders=(str(downloads),)))).close()
    assert str(downloads) not in sys.path


IMPORTING = """
registered:
  run: DQN
  env: Registered-v0
  stop: {training_iteration: 1}
  checkpoint_at_end: true
  config:
    num_workers: 1
    num_cpus_per_worker: 0.5
    num_cpus_for_driver: 0.5
    timesteps_per_iteration: 40
    min_iter_time_s: 0
    learning_starts: 8
    buffer_size: 200
    train_batch_size: 8
    seed: 3
    model: {fcnet_hiddens: [8]}
    hiddens: [8]
"""


@pytest.mark.ray
def test_what_a_module_registers_trains_in_other_processes_resumes_and_is_evaluated(
    tmp_path: Path, registering_module: str
) -> None:
    file = tmp_path / "experiment.yaml"
    file.write_text(IMPORTING, encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    run = tmp_path / "out" / "run"
    command = [sys.executable, "-m", "rlexp", "run", file, "--import", registering_module]
    command += ["--out", run.parent, "--name", run.name]
    done = subprocess.run(
        [*map(str, command)], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    with pytest.raises(ResumeError, match="reached its stop"):  # so the resolved file, with its env, was understood
        resume_run(TrainingRequest("resume", path=run), QuietDisplay(sys.stdout))
    checkpoint = next(run.glob("*/checkpoint_*"))
    assert len(evaluate_checkpoint(checkpoint, EvaluationRequest(2)).played.returns) == 2


SIDE = 32
"""FilmedEnv's pictures are squares of this size."""


def read_video(path: Path) -> np.ndarray:
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-i", str(path), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    raw = subprocess.run(command, capture_output=True, check=True, timeout=60).stdout
    return np.frombuffer(raw, np.uint8).reshape(-1, SIDE, SIDE, 3)


@pytest.mark.key("monitor")
def test_a_video_shows_every_step_of_an_episode(tmp_path: Path) -> None:
    agent = DQNAgent(FILMED_ENV, DQNConfig(), InlineTaskPool(), 0)
    pictures, fps = agent.film()
    agent.stop()
    write_video(tmp_path / "videos" / "film.mp4", pictures, fps)
    frames = read_video(tmp_path / "videos" / "film.mp4")
    # FilmedEnv lasts ten steps and grows brighter with each.
    assert len(frames) == 11
    brightness = [float(frame.mean()) for frame in frames]
    assert brightness == sorted(brightness)
    assert brightness[-1] - brightness[0] > 100


@pytest.mark.key("monitor")
def test_an_env_that_cannot_render_is_refused() -> None:
    agent = DQNAgent(COUNTING_ENV, DQNConfig(), InlineTaskPool(), 0)
    with pytest.raises(UsageError, match="cannot be recorded"):
        make_filmed_env(agent.env_config)
    agent.stop()


class UnrenderedEnv(gym.Env[Any, Any]):
    """An env as beginners write it: nothing in it renders."""

    observation_space = gym.spaces.Box(0.0, 1.0, (1,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros(1, np.float32), {}


class UnwillingEnv(UnrenderedEnv):
    """Takes no render mode."""

    def __init__(self) -> None:
        super().__init__()


class BrokenScreenEnv(UnrenderedEnv):
    """Raises while it renders."""

    def render(self) -> Any:
        raise RuntimeError("no screen")


@pytest.mark.parametrize(
    ("env", "message", "hint"),
    [
        ("UnrenderedEnv", "cannot be recorded: its class has no render method", "a render method"),
        ("UnwillingEnv", "got an unexpected keyword argument 'render_mode'", "needs the argument render_mode"),
        ("BrokenScreenEnv", r"test_keys_envs.py:\d+ in render: RuntimeError: no screen", "correct the env"),
    ],
)
def test_env_without_pictures_is_refused_with_what_its_class_needs(env: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        make_filmed_env(EnvConfig(f"tests.behaviour.test_keys_envs:{env}"))
    assert hint in (caught.value.hint or "")
    assert str(caught.value).count("tests.behaviour") == 1


@pytest.mark.key("action_mask")
def test_masks_are_obeyed_unless_action_mask_is_null() -> None:
    for mask in ("auto", None):
        config = {**ppo.TINY, "min_iter_time_s": 0.0, "action_mask": mask}
        experiment = PPOExperiment.model_validate({"name": "m", "run": "PPO", "env": MASKED_WORLD, "config": config})
        agent = stopped_in_the_end(PPOAgent(MASKED_WORLD, experiment.config, InlineTaskPool(), 0))
        if mask is None:
            with pytest.raises(EnvError, match="WorldEndedError"):
                agent.train()
        else:
            assert agent.train()["timesteps_total"] > 0
