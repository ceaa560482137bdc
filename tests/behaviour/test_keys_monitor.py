"""``monitor: true`` leaves a video of an evaluation episode with each checkpoint."""

import subprocess
from pathlib import Path
from typing import Any

import gymnasium as gym
import imageio_ffmpeg
import numpy as np
import pytest

from rlexp.agents.dqn.agent import DQNAgent
from rlexp.cluster.pool import InlineTaskPool
from rlexp.config.keys.dqn import DQNConfig
from rlexp.envs import EnvConfig, make_filmed_env
from rlexp.errors import UsageError
from rlexp.runs.trial_files import write_video
from tests.envs import COUNTING_ENV, FILMED_ENV

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
        ("BrokenScreenEnv", r"test_keys_monitor.py:\d+ in render: RuntimeError: no screen", "correct the env"),
    ],
)
def test_env_without_pictures_is_refused_with_what_its_class_needs(env: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        make_filmed_env(EnvConfig(f"tests.behaviour.test_keys_monitor:{env}", {}, None))
    assert hint in (caught.value.hint or "")
    assert str(caught.value).count("tests.behaviour") == 1
