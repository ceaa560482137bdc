"""``monitor: true`` leaves a video of an evaluation episode with each checkpoint."""

import subprocess
from pathlib import Path

import imageio_ffmpeg
import numpy as np
import pytest

from rlexp.agents.dqn.agent import DQNAgent
from rlexp.config.keys.dqn import DQNConfig
from rlexp.envs import make_filmed_env
from rlexp.errors import UsageError
from rlexp.runs.videos import write_video
from rlexp.task_pool import InlineTaskPool
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
