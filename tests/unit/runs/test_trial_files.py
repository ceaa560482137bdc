"""Files of a trial, shared or sent to a Keeper, are equal at the driver; videos are whole and in order, or none."""

from __future__ import annotations

import os
import pickle
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import imageio_ffmpeg
import numpy as np
import pytest

from rlexp.agents.checkpoint import EvaluationRequest, film_checkpoint, film_checkpoint_to
from rlexp.agents.dqn.agent import DQNAgent
from rlexp.cluster.pool.pool import InlineTaskPool
from rlexp.config.keys.dqn import DQNConfig, DQNExperiment
from rlexp.envs.atari import GAME_OVER
from rlexp.envs.make import make_filmed_env
from rlexp.envs.registry import EnvConfig, FrameConfig
from rlexp.errors import CheckpointError, DamagedCheckpointError, RlexpError, TrialError, UsageError
from rlexp.processes.family import find_leftovers
from rlexp.rollout.evaluation import film_episode
from rlexp.runs import keeper as keeper_module
from rlexp.runs.checkpoint_contents import read_checkpoint, verify_checkpoint
from rlexp.runs.checkpoints import checkpoint_directory, list_checkpoints, newest_checkpoint, write_checkpoint
from rlexp.runs.keeper import Keeper, KeeperLostError, SentFiles
from rlexp.runs.trial_files import (
    ERROR_FILE,
    MOVE_FILE,
    STOP_FILE,
    SharedFiles,
    TrialFiles,
    read_phase,
    require_video_extra,
    write_video,
)
from rlexp.sample_batch import Array
from tests.lab.checkpoints import trained
from tests.lab.doubles import ScriptedPolicy
from tests.lab.envs import FILMED_ENV
from tests.lab.trials import InlineLink

TRIAL = "00000-DQN"
PIECE_BYTES = 1000
Make = Callable[[], TrialFiles]


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a trial; checkpoints have several pieces, and each look for a stop is due."""
    monkeypatch.setattr(keeper_module, "PIECE_BYTES", PIECE_BYTES)
    monkeypatch.setattr(keeper_module, "STOP_POLL_S", 0.0)
    monkeypatch.setattr("rlexp.runs.trial_files.STOP_POLL_S", 0.0)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "node"))
    (tmp_path / "node").mkdir()
    path = tmp_path / "driver" / "run" / TRIAL
    path.mkdir(parents=True)
    return path


@pytest.fixture
def link(directory: Path) -> Iterator[InlineLink]:
    keeper = Keeper(directory.parent)
    yield InlineLink(keeper)
    keeper.close()


@pytest.fixture(params=["shared", "sent"])
def files(request: pytest.FixtureRequest, directory: Path, link: InlineLink) -> Iterator[TrialFiles]:
    made: TrialFiles = SharedFiles(directory) if request.param == "shared" else SentFiles(link, directory)
    yield made
    made.close()


def written(folder: Path, iteration: int = 1) -> Path:
    arrays = {"weights": {"w": np.arange(500.0) + iteration}, "empty": {"e": np.zeros(0)}}
    return write_checkpoint(checkpoint_directory(folder, iteration), arrays, {"steps": iteration}, {"metrics": {}})


def write_false_video(path: Path) -> None:
    path.write_bytes(b"x" * 2500)


def contents(checkpoint: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in checkpoint.iterdir()}


def test_checkpoint_is_at_the_driver_with_equal_bytes(files: TrialFiles, directory: Path) -> None:
    path = written(files.folder)
    before = contents(path)
    assert files.put_checkpoint(path) == str(directory / path.name)
    assert contents(directory / path.name) == before
    assert [each.name for each in directory.iterdir()] == [path.name]


def test_newest_checkpoint_is_on_this_machine_and_damaged_ones_are_set_aside(
    files: TrialFiles, directory: Path
) -> None:
    assert files.newest() == (None, [])
    written(directory, 1)
    (written(directory, 2) / "state.json").write_text("{}")
    path, said = files.newest()
    assert path is not None
    assert path.is_relative_to(files.folder)
    assert np.array_equal(read_checkpoint(path).arrays["weights"]["w"], np.arange(500.0) + 1)
    assert len(said) == 1
    assert "checkpoint_000002 is damaged" in said[0]
    assert sorted(each.name for each in directory.iterdir()) == ["checkpoint_000001", "checkpoint_000002.damaged"]


def test_checkpoint_of_another_run_is_fetched(files: TrialFiles, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    donor = written(tmp_path / "other", 7)
    assert contents(files.fetch(donor)) == contents(donor)


def test_arrays_of_a_fetched_checkpoint_stay_readable_after_the_next_one_was_sent(
    files: TrialFiles, directory: Path
) -> None:
    written(directory, 1)
    path, _ = files.newest()
    assert path is not None
    arrays = read_checkpoint(path).arrays["weights"]
    files.put_checkpoint(written(files.folder, 2))
    assert arrays["w"][499] == 500


def test_best_checkpoints_are_kept(files: TrialFiles, directory: Path) -> None:
    for iteration in (1, 2, 3):
        files.put_checkpoint(written(files.folder, iteration))
    files.keep_best(1, "training_iteration")
    assert [path.name for path in list_checkpoints(directory)] == ["checkpoint_000003"]


def test_phases_errors_stops_and_videos_arrive(files: TrialFiles, directory: Path) -> None:
    files.write_phase("loading")
    assert read_phase(directory) == "loading"
    files.end_phases()
    assert read_phase(directory) is None
    files.write_error("boom\n\ntrace")
    assert (directory / ERROR_FILE).read_text() == "boom\n\ntrace"
    files.put_video("iteration_000001.mp4", write_false_video)
    assert (directory / "videos" / "iteration_000001.mp4").read_bytes() == b"x" * 2500
    assert not files.requests().stop
    (directory.parent / STOP_FILE).touch()
    files.requests()  # the first look may only ask
    assert files.requests().stop


def test_deleted_directory_is_an_error_and_stays_deleted(files: TrialFiles, directory: Path) -> None:
    shutil.rmtree(directory)
    with pytest.raises(TrialError, match="was deleted or moved while the trial ran"):
        files.check()
    files.write_error("boom")
    files.write_phase("loading")
    assert not directory.exists()


def test_trial_is_asked_to_leave_its_node(files: TrialFiles, directory: Path) -> None:
    (directory / MOVE_FILE).touch()
    files.requests()  # the first look may only ask
    assert files.requests().move
    assert not files.requests().stop


def test_look_for_a_stop_never_waits(link: InlineLink, directory: Path) -> None:
    files = SentFiles(link, directory)
    (directory.parent / STOP_FILE).touch()
    link.is_held = True
    looks = [files.requests().stop for _ in range(5)]
    assert looks == [False] * 5
    assert link.calls.count("requests") == 1
    link.is_held = False
    assert files.requests().stop
    files.close()


def test_phases_wait_for_the_one_before_and_the_newest_is_shown(link: InlineLink, directory: Path) -> None:
    files = SentFiles(link, directory)
    files.write_phase("first")
    link.is_held = True
    files.write_phase("second")
    files.write_phase("third")
    assert read_phase(directory) == "first"
    link.is_held = False
    files.requests()
    assert read_phase(directory) == "third"
    assert link.calls.count("show_phase") == 2
    files.close()


@pytest.mark.parametrize("change", [lambda piece: piece[:-1] + b"?", lambda piece: piece[:-1]])
def test_damaged_piece_is_refused_and_nothing_is_left(
    change: Callable[[bytes], bytes], link: InlineLink, directory: Path
) -> None:
    files = SentFiles(link, directory)
    files.put_checkpoint(written(files.folder, 1))
    link.change = change
    with pytest.raises(RlexpError):
        files.put_checkpoint(written(files.folder, 2))
    assert [path.name for path in directory.iterdir()] == ["checkpoint_000001"]
    link.change = bytes
    files.put_checkpoint(written(files.folder, 2))
    assert verify_checkpoint(directory / "checkpoint_000002").sequence == 2
    files.close()
    assert not list((directory.parents[2] / "node").iterdir())


@pytest.mark.parametrize("calls", range(1, 10))
def test_lost_keeper_or_killed_sender_leaves_the_checkpoint_before(calls: int, directory: Path) -> None:
    keeper = Keeper(directory.parent)
    first = SentFiles(InlineLink(keeper), directory)
    first.put_checkpoint(written(first.folder, 1))
    link = InlineLink(keeper, calls_until_lost=calls)
    files = SentFiles(link, directory)
    with pytest.raises(KeeperLostError, match="the Keeper is lost"):
        files.put_checkpoint(written(files.folder, 2))
    again = SentFiles(InlineLink(Keeper(directory.parent)), directory)  # the trial is restarted
    newest, said = again.newest()
    assert newest is not None
    assert (newest.name, said) == ("checkpoint_000001", [])
    assert [path.name for path in directory.iterdir()] == ["checkpoint_000001"]
    for each in (first, files, again):
        each.close()
    keeper.close()


def test_process_before_can_write_no_more(link: InlineLink, directory: Path) -> None:
    before, now = SentFiles(link, directory), SentFiles(link, directory)
    with pytest.raises(TrialError, match="another process has begun the trial"):
        before.put_checkpoint(written(before.folder))
    before.write_phase("late")
    assert read_phase(directory) is None
    now.put_checkpoint(written(now.folder))
    assert newest_checkpoint(directory) is not None
    before.close()
    now.close()


def test_process_that_waited_while_another_began_can_write_no_more(
    link: InlineLink, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = SentFiles(link, directory)
    path = written(before.folder)
    compared = secrets.compare_digest

    def begun_meanwhile(own: str, token: str) -> bool:
        monkeypatch.setattr(secrets, "compare_digest", compared)
        SentFiles(link, directory).close()
        return bool(compared(own, token))

    monkeypatch.setattr(secrets, "compare_digest", begun_meanwhile)
    with pytest.raises(TrialError, match="another process has begun the trial"):
        before.put_checkpoint(path)
    before.close()
    assert not list_checkpoints(directory)


def test_keeper_has_descriptors_of_trials_that_run_only(link: InlineLink, directory: Path) -> None:
    def num_open() -> int:
        return sum(os.path.realpath(path) == str(directory) for path in Path("/proc/self/fd").iterdir())

    for _ in range(3):
        files = SentFiles(link, directory)
        files.close()
        files.close()
    assert num_open() == 0
    killed, now = SentFiles(link, directory), SentFiles(link, directory)
    killed.close()
    now.put_checkpoint(written(now.folder))
    assert num_open() == 1
    now.close()
    assert num_open() == 0


def test_folder_of_a_killed_process_is_found(link: InlineLink, directory: Path) -> None:
    files = SentFiles(link, directory)
    assert not find_leftovers()
    files._temporary.release()
    assert [each.folder for each in find_leftovers()] == [files.folder]
    files.close()
    assert not find_leftovers()


@pytest.mark.parametrize("trial", ["..", "", "../other", "/etc", "a/b"])
def test_only_directories_of_trials_are_taken(trial: str, link: InlineLink) -> None:
    with pytest.raises(TrialError, match="not the directory of a trial"):
        link.keeper.begin(trial)


@pytest.mark.parametrize(
    ("checkpoint", "file"),
    [
        ("checkpoint_000001", "../x"),
        ("checkpoint_000001", "x.pkl"),
        ("checkpoint_000001", "/tmp/x.safetensors"),
        ("../checkpoint_000001", "state.json"),
        ("x/../checkpoint_000001", "state.json"),
        ("checkpoint_000001.replaced", "state.json"),
        ("videos", "state.json"),
    ],
)
def test_names_that_no_checkpoint_has_are_refused(
    checkpoint: str, file: str, link: InlineLink, directory: Path
) -> None:
    token = link.keeper.begin(TRIAL)
    before = sorted(directory.parents[1].rglob("*"))
    with pytest.raises(TrialError, match="is not"):
        link.keeper.put_piece(TRIAL, token, checkpoint, file, 0, b"")
    with pytest.raises(TrialError, match="is not the name of a video"):
        link.keeper.put_piece(TRIAL, token, "videos", f"../{file}", 0, b"")
    assert sorted(directory.parents[1].rglob("*")) == before


def test_pieces_have_a_bound_and_an_order(link: InlineLink, directory: Path) -> None:
    token = link.keeper.begin(TRIAL)
    put = link.keeper.put_piece
    with pytest.raises(TrialError, match="more than"):
        put(TRIAL, token, "checkpoint_000001", "state.json", 0, bytes(PIECE_BYTES + 1))
    put(TRIAL, token, "checkpoint_000001", "state.json", 0, b"12")
    with pytest.raises(TrialError, match="missing before 7"):
        put(TRIAL, token, "checkpoint_000001", "state.json", 7, b"34")
    with pytest.raises(DamagedCheckpointError):
        link.keeper.commit_checkpoint(TRIAL, token, "checkpoint_000001")
    assert not list(directory.iterdir())


def test_only_files_of_checkpoints_are_read(link: InlineLink, directory: Path, tmp_path: Path) -> None:
    checkpoint = written(directory)
    (checkpoint / "secret.txt").write_text("secret")
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "state.json").write_text("{}")
    for path, name in ((checkpoint, "secret.txt"), (checkpoint, "../x"), (tmp_path / "plain", "state.json")):
        with pytest.raises(CheckpointError, match="is not a file of a checkpoint"):
            link.keeper.read_piece(path, name, 0)


def test_errors_come_from_another_process_as_they_are() -> None:
    damaged = DamagedCheckpointError("somewhere", "state.json is missing")
    for error in (damaged, KeeperLostError("lost", "a hint")):
        copy = pickle.loads(pickle.dumps(error))  # noqa: S301
        assert type(copy) is type(error)
        assert (copy.message, copy.hint) == (error.message, error.hint)


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
    with pytest.raises(UsageError, match=r"--video \S+ is not a writable folder"):
        film_checkpoint_to(tmp_path / folder, checkpoint(tmp_path), EvaluationRequest())


def test_video_extra_films_cartpole(capfd: pytest.CaptureFixture[str]) -> None:
    vector = make_filmed_env(EnvConfig("CartPole-v1"))
    (picture,) = vector.render() or ()
    vector.close()
    assert isinstance(picture, np.ndarray)
    assert picture.shape == (400, 600, 3)
    assert capfd.readouterr() == ("", ""), "pygame greets whoever imports it"


def test_package_that_renders_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pygame", None)
    with pytest.raises(UsageError, match="CartPole-v1 cannot be recorded: pygame is not installed") as caught:
        make_filmed_env(EnvConfig("CartPole-v1"))
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
    vector = make_filmed_env(EnvConfig("BreakoutNoFrameskip-v4", frames=FRAMES))
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
