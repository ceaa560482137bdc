"""Videos of episodes: whole, in the right order and at the right speed, or none at all."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import imageio_ffmpeg
import numpy as np
import pytest

from rlexp.agents.checkpoint import EvaluationRequest, film_checkpoint, film_checkpoint_to
from rlexp.agents.dqn.agent import DQNAgent
from rlexp.cluster.pool import InlineTaskPool
from rlexp.config.keys.dqn import DQNConfig, DQNExperiment
from rlexp.envs import GAME_OVER, EnvConfig, FrameConfig, make_filmed_env
from rlexp.errors import UsageError
from rlexp.rollout.evaluation import film_episode
from rlexp.runs.trial_files import require_video_extra, write_video
from rlexp.sample_batch import Array
from tests.doubles.policies import ScriptedPolicy
from tests.envs import FILMED_ENV
from tests.ones_own import trained

FRAMES = FrameConfig("deepmind", 84, grayscale=False, framestack=True)


def read_video(path: Path, height: int, width: int) -> Array:
    """Return the pictures of a video ``[T, height, width, 3]``."""
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-i", str(path), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    raw = subprocess.run(command, capture_output=True, check=True, timeout=60).stdout
    return np.frombuffer(raw, np.uint8).reshape(-1, height, width, 3)


def checkpoint(directory: Path) -> Path:
    agent = DQNAgent(FILMED_ENV, DQNConfig(), InlineTaskPool(), seed=0)
    experiment = DQNExperiment(name="film", run="DQN", env=FILMED_ENV)
    (directory / "trial").mkdir()
    trained(experiment)
    path = agent.save(directory / "trial" / "checkpoint_000001", {"experiment": experiment.model_dump(mode="json")})
    agent.stop()
    return path


def test_a_checkpoint_is_filmed_into_a_folder_that_need_not_exist(tmp_path: Path) -> None:
    video = film_checkpoint_to(tmp_path / "some" / "videos", checkpoint(tmp_path), EvaluationRequest())
    assert video == tmp_path / "some" / "videos" / "trial-checkpoint_000001.mp4"
    assert [file.name for file in video.parent.iterdir()] == [video.name]
    num_frames, seconds = imageio_ffmpeg.count_frames_and_secs(video)
    assert (num_frames, seconds) == (11, pytest.approx(1.1))
    brightness = [float(picture.mean()) for picture in read_video(video, 32, 32)]
    assert brightness == sorted(brightness)


@pytest.mark.parametrize("folder", ["/proc/x", "/dev/null", "/dev/null/x", "file"])
def test_video_at_a_place_that_is_no_folder_is_a_usage_error(folder: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"--video \S+ is no folder in which files can be written"):
        film_checkpoint_to(tmp_path / folder, checkpoint(tmp_path), EvaluationRequest())


def test_video_extra_films_cartpole(capfd: pytest.CaptureFixture[str]) -> None:
    vector = make_filmed_env(EnvConfig("CartPole-v1", {}, None))
    (picture,) = vector.render() or ()
    vector.close()
    assert isinstance(picture, np.ndarray)
    assert picture.shape == (400, 600, 3)
    assert capfd.readouterr() == ("", ""), "pygame greets whoever imports it"


def test_package_that_renders_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pygame", None)
    with pytest.raises(UsageError, match="CartPole-v1 cannot be recorded: pygame is not installed") as caught:
        make_filmed_env(EnvConfig("CartPole-v1", {}, None))
    assert caught.value.hint == "pip install 'rlexp[video]'"


def test_pictures_are_taken_while_the_episode_is_played(tmp_path: Path) -> None:
    pictures, fps = film_checkpoint(checkpoint(tmp_path), EvaluationRequest())
    assert fps == 10.0
    assert isinstance(pictures, Iterator)
    assert len(list(pictures)) == 11


def test_sides_that_the_codec_cannot_take_lose_a_pixel(tmp_path: Path) -> None:
    write_video(tmp_path / "odd.mp4", [np.full((33, 35, 3), 200, np.uint8)] * 3, fps=5)
    pictures = read_video(tmp_path / "odd.mp4", 32, 34)
    assert len(pictures) == 3
    assert abs(pictures.astype(int) - 200).max() < 5


def test_an_episode_that_fails_leaves_no_video_and_its_env_is_closed(tmp_path: Path) -> None:
    closed = []

    def failing() -> Iterator[Array]:
        try:
            yield np.zeros((32, 32, 3), np.uint8)
            raise RuntimeError("the env fails")
        finally:
            closed.append(True)

    with pytest.raises(RuntimeError, match="the env fails"):
        write_video(tmp_path / "failed.mp4", failing(), fps=5)
    assert closed
    assert not list(tmp_path.iterdir())


def test_without_the_extra_it_is_said_who_asked_for_a_video(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="--video writes videos") as caught:
        require_video_extra("--video")
    assert caught.value.hint == "pip install 'rlexp[video]'"


@pytest.mark.parametrize(
    ("env", "env_config", "frames", "fps"),
    [
        ("ALE/Pong-v5", {}, FRAMES, 15),
        ("PongNoFrameskip-v4", {}, FRAMES, 15),
        ("ALE/SpaceInvaders-v5", {"frameskip": 3}, FRAMES, 20),
        ("PongNoFrameskip-v4", {}, None, 60),
        ("Pong-v4", {}, FRAMES, 20),
    ],
)
def test_a_game_is_shown_at_its_own_speed(
    env: str, env_config: dict[str, object], frames: FrameConfig | None, fps: float
) -> None:
    vector = make_filmed_env(EnvConfig(env, env_config, None, frames=frames))
    assert vector.metadata["render_fps"] == fps
    vector.close()


def test_the_film_of_a_game_shows_all_its_lives_in_colour() -> None:
    vector = make_filmed_env(EnvConfig("BreakoutNoFrameskip-v4", {}, None, frames=FRAMES))
    pictures = list(film_episode(ScriptedPolicy(), vector, seed=0, max_frames=2000))
    assert len(pictures) < 2000
    vector.reset(seed=0)
    steps = 0
    while True:
        steps += 1
        if vector.step(np.array([0]))[4][GAME_OVER][0]:
            break
    assert len(pictures) == steps + 1
    assert pictures[0].shape == (210, 160, 3)
    assert (pictures[50][..., 0] != pictures[50][..., 2]).any()
    vector.close()
