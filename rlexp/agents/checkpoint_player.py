"""Plays a checkpoint: needs neither the run it came from nor Ray."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile

import numpy as np

from rlexp.agents.evaluator import MAX_STEPS, Evaluator
from rlexp.agents.loaded_checkpoint import LoadedCheckpoint
from rlexp.agents.registry import policies_of
from rlexp.errors import TrialError, UsageError
from rlexp.files import refuse_other_than_file
from rlexp.metrics.statistics import bootstrap_interval
from rlexp.rollout.evaluation import EvaluationLimits, PlayedEpisodes, ReportProgress, ignore_progress
from rlexp.runs.videos import require_video_extra, write_video
from rlexp.sample_batch import Array
from rlexp.user_code.import_guard import hides_what_is_beside
from rlexp.user_code.trusted_code import NOTHING_ALLOWED, TrustedCode

DEFAULT_EPISODES = 20
"""Episodes of a checkpoint whose run does not evaluate itself."""


@dataclass(frozen=True)
class EvaluationRequest:
    """The options of ``rlexp evaluate``; None: as the checkpoint's own run evaluates itself."""

    num_episodes: int | None = None
    seed: int | None = None
    explore: bool | None = None
    timeout_s: float | None = None
    """Seconds that it may take; None: no limit."""
    trusted: TrustedCode = NOTHING_ALLOWED
    """The code that the caller allows; never as the checkpoint's own run says."""


@dataclass(frozen=True)
class Evaluation:
    """How a checkpoint did."""

    checkpoint: Path
    run: str
    env: str
    iteration: int
    explores: bool
    """Whether its episodes explore; else they are greedy."""
    exploration: Mapping[str, float]
    """How they do, or would: such as ε, by name."""
    played: PlayedEpisodes
    interval: tuple[float, float]
    """95 % bootstrap interval of the mean return."""


@hides_what_is_beside
def evaluate_checkpoint(
    path: Path,
    request: EvaluationRequest,
    report: ReportProgress = ignore_progress,
) -> Evaluation:
    """Play episodes as the evaluations of the checkpoint's own run do, with the same seed, unless ``request`` differs.

    Raises CheckpointError where ``path`` holds no good checkpoint, TrialError where no episode ends in time.
    """
    loaded = LoadedCheckpoint.load(path, request.explore, request.trusted)
    config = loaded.experiment.config
    num_episodes = request.num_episodes
    if num_episodes is None:
        num_episodes = config.evaluation_num_episodes if config.evaluation_interval else DEFAULT_EPISODES
    limits = EvaluationLimits(MAX_STEPS, request.timeout_s)
    with loaded.errors_of_weights():
        played = _evaluator(loaded).play(num_episodes, loaded.seed("evaluation", request.seed), limits, report)
    if not len(played.returns):
        raise TrialError(str(played), "-o config.evaluation_config.horizon=1000 in the next run ends episodes")
    return Evaluation(
        checkpoint=path,
        run=loaded.experiment.run,
        env=loaded.experiment.env,
        iteration=loaded.checkpoint.sequence,
        explores=config.evaluation_config.explore,
        exploration=policies_of(loaded.experiment).evaluation_exploration(config),
        played=played,
        interval=bootstrap_interval(played.returns, np.random.default_rng(request.seed or 0)),
    )


@hides_what_is_beside
def film_checkpoint(path: Path, request: EvaluationRequest) -> tuple[Iterator[Array], float]:
    """Return the pictures ``[H, W, 3]`` of an evaluation episode, taken while it is played, and how many make a second.

    Raises CheckpointError where ``path`` holds no good checkpoint, UsageError where its env cannot be filmed.
    """
    loaded = LoadedCheckpoint.load(path, request.explore, request.trusted)
    pictures, fps = _evaluator(loaded).film(loaded.seed("film", request.seed))

    def checked() -> Iterator[Array]:
        with loaded.errors_of_weights():
            yield from pictures

    return checked(), fps


def film_checkpoint_to(directory: Path, checkpoint: Path, request: EvaluationRequest) -> Path:
    """Film an evaluation episode of ``checkpoint`` into ``directory``, which is made where missing; return the video.

    Raises UsageError where videos cannot be written or the env cannot be filmed, CheckpointError where
    there is no good checkpoint.
    """
    require_video_extra("--video")
    checkpoint = checkpoint.resolve()
    video = directory / f"{checkpoint.parent.name}-{checkpoint.name}.mp4"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        refuse_other_than_file(video)
        with TemporaryFile(dir=directory):
            pass
    except OSError as error:
        message = f"--video {directory} is no folder in which files can be written: {error.strerror}"
        raise UsageError(message, "name a folder of yours; it is made if there is none") from None
    write_video(video, *film_checkpoint(checkpoint, request))
    return video


def _evaluator(loaded: LoadedCheckpoint) -> Evaluator:
    """Return what plays with the checkpoint's policy as ``evaluation_config`` says."""
    config, restored = loaded.experiment.config, loaded.policy()
    explore = partial(policies_of(loaded.experiment).exploring_player, config, restored.policy, restored.action_space)
    return Evaluator(loaded.env_config, config.evaluation_config, restored.filters, restored.policy, explore)
