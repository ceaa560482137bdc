"""Plays a checkpoint: needs neither the run it came from nor Ray."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from rlexp.agents.evaluator import MAX_STEPS, Evaluator
from rlexp.agents.observation_filters import GROUP as FILTERS
from rlexp.agents.observation_filters import ObservationFilters
from rlexp.agents.registry import agent_class
from rlexp.checkpoint import Checkpoint, read_checkpoint
from rlexp.checkpoint.contents import MANIFEST
from rlexp.config.keys.agents import AGENTS
from rlexp.config.keys.experiment import Experiment
from rlexp.config.keys.user_modules import UserModules, modules_of, with_current_folder
from rlexp.config.rllib_compat.table import renamed_keys
from rlexp.envs import EnvConfig, env_config_of, spaces_of
from rlexp.errors import CheckpointError, NotFiniteError, TrialError
from rlexp.metrics.statistics import bootstrap_interval
from rlexp.rollout.evaluation import EvaluationLimits, PlayedEpisodes, ReportProgress, ignore_progress
from rlexp.runs.trust import refuse_foreign, refuse_modules_within, run_of
from rlexp.runs.videos import require_video_extra, write_video
from rlexp.sample_batch import Array
from rlexp.seeding import derive_seed

WEIGHTS = "weights"
"""The group of a checkpoint's arrays that a policy acts with."""
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


def evaluate_checkpoint(
    path: Path,
    request: EvaluationRequest,
    report: ReportProgress = ignore_progress,
) -> Evaluation:
    """Play episodes as the evaluations of the checkpoint's own run do, with the same seed, unless ``request`` differs.

    Raises CheckpointError where ``path`` holds no good checkpoint, TrialError where no episode ends in time.
    """
    player = _Player.load(path, request.explore)
    config = player.experiment.config
    num_episodes = request.num_episodes
    if num_episodes is None:
        num_episodes = config.evaluation_num_episodes if config.evaluation_interval else DEFAULT_EPISODES
    limits = EvaluationLimits(MAX_STEPS, request.timeout_s)
    with player.errors_of_weights():
        played = player.evaluator().play(num_episodes, player.seed("evaluation", request.seed), limits, report)
    if not len(played.returns):
        raise TrialError(str(played), "-o config.evaluation_config.horizon=1000 in the next run ends episodes")
    return Evaluation(
        checkpoint=path,
        run=player.experiment.run,
        env=player.experiment.env,
        iteration=player.checkpoint.sequence,
        explores=config.evaluation_config.explore,
        exploration=agent_class(player.experiment).evaluation_exploration(config),
        played=played,
        interval=bootstrap_interval(played.returns, np.random.default_rng(request.seed or 0)),
    )


def film_checkpoint(path: Path, request: EvaluationRequest) -> tuple[Iterator[Array], float]:
    """Return the pictures ``[H, W, 3]`` of an evaluation episode, taken while it is played, and how many make a second.

    Raises CheckpointError where ``path`` holds no good checkpoint, UsageError where its env cannot be filmed.
    """
    player = _Player.load(path, request.explore)
    pictures, fps = player.evaluator().film(player.seed("film", request.seed))

    def checked() -> Iterator[Array]:
        with player.errors_of_weights():
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
    write_video(video, *film_checkpoint(checkpoint, request))
    return video


@dataclass(frozen=True)
class _Player:
    """A checkpoint, and what it was trained in."""

    checkpoint: Checkpoint
    experiment: Experiment
    env_config: EnvConfig

    @staticmethod
    def load(path: Path, explore: bool | None) -> _Player:
        checkpoint = read_checkpoint(path)
        experiment, modules = _training_of(checkpoint, path)
        if explore is not None:
            experiment = _with_explore(experiment, explore)
        named = (*modules.imports, *modules_of(experiment.env))
        if named:  # who can write these names could make us import anything
            for place in (path.resolve(), path / MANIFEST):
                refuse_foreign(place)
            refuse_modules_within(run_of(path), UserModules(named, modules.folders))
        return _Player(checkpoint, experiment, env_config_of(experiment.env, experiment.config, modules))

    def seed(self, stream: str, given: int | None) -> int:
        """Return the seed of a stream: as in the run that wrote the checkpoint, unless another one is given."""
        own = self.experiment.config.seed
        if given is None and own is not None:
            return derive_seed(own, stream, self.checkpoint.sequence)
        return derive_seed(given or 0, stream)

    def evaluator(self) -> Evaluator:
        """Return what plays with the checkpoint's policy as ``evaluation_config`` says."""
        agent, config, arrays = agent_class(self.experiment), self.experiment.config, self.checkpoint.arrays
        self.checkpoint.check_numbers(WEIGHTS, FILTERS)
        observation_space, action_space = spaces_of(self.env_config)
        policy = agent.make_policy(config, observation_space, action_space)
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                policy.set_weights(arrays[WEIGHTS])
        except (KeyError, ValueError, RuntimeError) as error:
            raise CheckpointError(f"{self.checkpoint.path} holds no weights of its own network: {error}") from error
        filters = ObservationFilters(config, observation_space, arrays)
        explore = partial(agent.exploring_player, config, policy, action_space)
        return Evaluator(self.env_config, config.evaluation_config, filters, policy, explore)

    @contextmanager
    def errors_of_weights(self) -> Iterator[None]:
        """Name the largest weight where what the policy computes in the body is not finite."""
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                yield
        except NotFiniteError as error:
            largest = {name: np.abs(array).max(initial=0) for name, array in self.checkpoint.arrays[WEIGHTS].items()}
            name = max(largest, key=largest.__getitem__)
            raise CheckpointError(
                f"checkpoint {self.checkpoint.path}: {error.message}; of its weights, {WEIGHTS}/{name} has the largest,"
                f" {largest[name]:.3g}",
                "the training diverged, or the file was changed; use an earlier checkpoint",
            ) from error


def _with_explore(experiment: Experiment, explore: bool) -> Experiment:
    config = experiment.config
    evaluation = config.evaluation_config.model_copy(update={"explore": explore})
    return experiment.model_copy(update={"config": config.model_copy(update={"evaluation_config": evaluation})})


def _training_of(checkpoint: Checkpoint, path: Path) -> tuple[Experiment, UserModules]:
    """Return the experiment that a checkpoint is of, and the user's modules that it may import."""
    strings = TypeAdapter(tuple[str, ...])
    try:
        imports = strings.validate_python(checkpoint.metadata.get("imports", ()))
        folders = strings.validate_python(checkpoint.metadata.get("module_folders", ()))
        modules = UserModules(imports, with_current_folder(folders))
        experiment = _by_current_names(checkpoint.metadata["experiment"])
        return AGENTS[experiment["run"]].model_validate(experiment), modules
    except (KeyError, TypeError, AttributeError, ValidationError) as error:
        raise CheckpointError(f"checkpoint {path} does not say how it was trained: {error}") from error


def _by_current_names(experiment: Mapping[str, Any]) -> dict[str, Any]:
    """Return an experiment with the keys of its config by their current names: an older checkpoint has the old ones."""
    renamed = renamed_keys(experiment["run"])
    config = {renamed.get(("config", name), (name,))[-1]: value for name, value in experiment["config"].items()}
    return {**experiment, "config": config}
