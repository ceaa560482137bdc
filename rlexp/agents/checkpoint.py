"""A loaded checkpoint that can be evaluated and filmed, without its run or Ray.

``LoadedCheckpoint`` has the experiment, the env and the policy of a checkpoint. The functions after it evaluate and
film it; ``trained_policy`` acts with it in other programs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from rlexp.agents.evaluation import MAX_STEPS, Evaluator
from rlexp.agents.policies import Policies
from rlexp.agents.registry import policies_of
from rlexp.agents.workers import FILTERS, ObservationFilters
from rlexp.config.keys.agents import experiment_class, find_agent
from rlexp.config.keys.experiment import Experiment
from rlexp.config.rllib.names import renamed_keys
from rlexp.envs.make import spaces_of
from rlexp.envs.registry import EnvConfig, env_config_of
from rlexp.errors import CheckpointError, NotFiniteError, TrialError, UsageError
from rlexp.files import refuse_other_than_file
from rlexp.metrics import bootstrap_interval
from rlexp.policy import Policy
from rlexp.rollout.evaluation import EvaluationLimits, PlayedEpisodes, ReportProgress, ignore_progress
from rlexp.runs.checkpoint_contents import MANIFEST, Checkpoint, read_checkpoint
from rlexp.runs.directories import refuse_foreign, run_of
from rlexp.runs.trial_files import require_video_extra, write_video
from rlexp.sample_batch import Array
from rlexp.schedules import derive_seed
from rlexp.user_code.import_guard import hides_what_is_beside
from rlexp.user_code.trusted_code import NOTHING_ALLOWED, Named, TrustedCode

WEIGHTS = "weights"
"""The group of a checkpoint's arrays with which a policy acts."""


@dataclass(frozen=True)
class RestoredPolicy:
    """The policy of a checkpoint, with the spaces and the filter of its training."""

    policies: Policies[Any]
    """The policies, with the spaces of what the policy sees and chooses."""
    policy: Policy
    filters: ObservationFilters
    """The filters that standardise observations before the policy sees them."""


@dataclass(frozen=True)
class LoadedCheckpoint:
    """A checkpoint, and the experiment and env of its training."""

    checkpoint: Checkpoint
    experiment: Experiment
    env_config: EnvConfig

    @staticmethod
    def load(path: Path, explore: bool | None = None, trusted: TrustedCode = NOTHING_ALLOWED) -> LoadedCheckpoint:
        """Read a checkpoint; ``explore`` replaces ``explore`` of its ``evaluation_config``.

        ``trusted`` has the modules and classes that the caller names.

        Raises CheckpointError if ``path`` has no valid checkpoint, ResumeError if it names code that this user has
        neither trained with nor allowed.
        """
        checkpoint = read_checkpoint(path)
        experiment, named = _training_of(checkpoint, path)
        if explore is not None:
            experiment = _with_explore(experiment, explore)
        modules = trusted.decided(named)
        if modules.decided:  # whoever can write the names could choose other code of this user
            for place in (path.resolve(), path / MANIFEST):
                refuse_foreign(place)
        return LoadedCheckpoint(checkpoint, experiment, env_config_of(experiment.env, experiment.config, modules))

    def seed(self, stream: str, given: int | None) -> int:
        """Return the seed of a stream: the run's own, unless another one is given."""
        own = self.experiment.config.seed
        if given is None and own is not None:
            return derive_seed(own, stream, self.checkpoint.sequence)
        return derive_seed(given or 0, stream)

    def policy(self) -> RestoredPolicy:
        """Return its policy; CheckpointError if the weights belong to another network or are not finite."""
        self.checkpoint.check_numbers(WEIGHTS, FILTERS)
        config, env_config = self.experiment.config, self.env_config
        policies = policies_of(self.experiment)(config, *spaces_of(env_config), env_config.modules)
        policy = policies.make_policy()
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                policy.set_weights(self.checkpoint.arrays[WEIGHTS])
        except (KeyError, ValueError, RuntimeError) as error:
            raise CheckpointError(f"{self.checkpoint.path} holds no weights of its own network: {error}") from error
        filters = ObservationFilters(config, policies.observation_space, self.checkpoint.arrays)
        return RestoredPolicy(policies, policy, filters)

    @contextmanager
    def errors_of_weights(self) -> Iterator[None]:
        """Name the largest weight if the policy's outputs in the body are not finite."""
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                yield
        except NotFiniteError as error:
            raise self.divergence(error) from error

    def divergence(self, error: NotFiniteError) -> CheckpointError:
        """Return the error for outputs of the policy that are not finite; it names the largest weight."""
        largest = {name: np.abs(array).max(initial=0) for name, array in self.checkpoint.arrays[WEIGHTS].items()}
        name = max(largest, key=largest.__getitem__)
        return CheckpointError(
            f"checkpoint {self.checkpoint.path}: {error.message}; of its weights, {WEIGHTS}/{name} has the largest,"
            f" {largest[name]:.3g}",
            "the training diverged, or the file was changed; use an earlier checkpoint",
        )


def _with_explore(experiment: Experiment, explore: bool) -> Experiment:
    config = experiment.config
    evaluation = config.evaluation_config.model_copy(update={"explore": explore})
    return experiment.model_copy(update={"config": config.model_copy(update={"evaluation_config": evaluation})})


def _training_of(checkpoint: Checkpoint, path: Path) -> tuple[Experiment, Named]:
    """Return the experiment of a checkpoint, and the code that it names."""
    strings = TypeAdapter(tuple[str, ...])
    try:
        imports = strings.validate_python(checkpoint.metadata.get("imports", ()))
        folders = strings.validate_python(checkpoint.metadata.get("module_folders", ()))
        experiment = checkpoint.metadata["experiment"]
        if find_agent(experiment["run"]) is None:
            raise _of_unknown_agent(path, experiment["run"])
        current = _by_current_names(experiment)
        trained = experiment_class(experiment["run"]).model_validate(current)
        return trained, Named(run_of(path), imports, folders, [trained])
    except (KeyError, TypeError, AttributeError, ValidationError) as error:
        raise CheckpointError(f"checkpoint {path} does not say how it was trained: {error}") from error


def _of_unknown_agent(path: Path, run: str) -> CheckpointError:
    return CheckpointError(
        f"checkpoint {path} is of the agent {run}, which is not installed here",
        "install the package that brings it, in the version that trained it",
    )


def _by_current_names(experiment: Mapping[str, Any]) -> dict[str, Any]:
    """Return an experiment with current names of its config keys; an older checkpoint has old names."""
    renamed = renamed_keys(experiment["run"])
    config = {renamed.get(("config", name), (name,))[-1]: value for name, value in experiment["config"].items()}
    return {**experiment, "config": {"action_mask": None} | config}  # older ones were trained without masks


DEFAULT_EPISODES = 20
"""Number of episodes for a checkpoint whose run does not evaluate itself."""


@dataclass(frozen=True)
class EvaluationRequest:
    """The options of ``rlexp evaluate``; None: the same as in the checkpoint's own run."""

    num_episodes: int | None = None
    seed: int | None = None
    explore: bool | None = None
    timeout_s: float | None = None
    """Most seconds; None: no limit."""
    trusted: TrustedCode = NOTHING_ALLOWED
    """The code that the caller allows; it never comes from the checkpoint's run."""


@dataclass(frozen=True)
class Evaluation:
    """The result of evaluating a checkpoint."""

    checkpoint: Path
    run: str
    env: str
    iteration: int
    explores: bool
    """Whether its episodes explore; otherwise they are greedy."""
    exploration: Mapping[str, float]
    """The figures of its exploration, such as ε, by name; also given if it does not explore."""
    played: PlayedEpisodes
    interval: tuple[float, float] | None
    """95 % bootstrap interval of the mean return; None for a single episode."""


@hides_what_is_beside
def evaluate_checkpoint(
    path: Path,
    request: EvaluationRequest,
    report: ReportProgress = ignore_progress,
) -> Evaluation:
    """Play episodes as the evaluations of the checkpoint's own run do, with the same seed, unless ``request`` differs.

    Raises CheckpointError if ``path`` has no valid checkpoint, TrialError if no episode ends in time.
    """
    loaded = LoadedCheckpoint.load(path, request.explore, request.trusted)
    config = loaded.experiment.config
    num_episodes = request.num_episodes
    if num_episodes is None:
        num_episodes = config.evaluation_num_episodes if config.evaluation_interval else DEFAULT_EPISODES
    limits = EvaluationLimits(MAX_STEPS, request.timeout_s)
    with loaded.errors_of_weights():
        evaluator = _evaluator(loaded)
        played = evaluator.play(num_episodes, loaded.seed("evaluation", request.seed), limits, report)
    if not len(played.returns):
        raise TrialError(str(played), "-o config.evaluation_config.horizon=1000 in the next run ends episodes")
    rng, is_single = np.random.default_rng(request.seed or 0), len(played.returns) == 1
    return Evaluation(
        checkpoint=path,
        run=loaded.experiment.run,
        env=loaded.experiment.env,
        iteration=loaded.checkpoint.sequence,
        explores=config.evaluation_config.explore,
        exploration=evaluator.policies.evaluation_exploration(),
        played=played,
        interval=None if is_single else bootstrap_interval(played.returns, rng),
    )


@hides_what_is_beside
def film_checkpoint(path: Path, request: EvaluationRequest) -> tuple[Iterator[Array], float]:
    """Return a generator of the pictures ``[H, W, 3]`` of an evaluation episode, and their number per second.

    Raises CheckpointError if ``path`` has no valid checkpoint, UsageError if its env cannot be filmed.
    """
    loaded = LoadedCheckpoint.load(path, request.explore, request.trusted)
    pictures, fps = _evaluator(loaded).film(loaded.seed("film", request.seed))

    def checked() -> Iterator[Array]:
        with loaded.errors_of_weights():
            yield from pictures

    return checked(), fps


def film_checkpoint_to(directory: Path, checkpoint: Path, request: EvaluationRequest) -> Path:
    """Film an evaluation episode of ``checkpoint`` into ``directory``, which is created if missing; return the video.

    Raises UsageError if videos cannot be written or the env cannot be filmed, CheckpointError if there is no valid
    checkpoint.
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
        message = f"--video {directory} is not a writable folder: {error.strerror}"
        raise UsageError(message, "name a folder of yours; it is made if there is none") from None
    write_video(video, *film_checkpoint(checkpoint, request))
    return video


def _evaluator(loaded: LoadedCheckpoint) -> Evaluator:
    """Return the evaluator of the checkpoint's policy, as ``evaluation_config`` says."""
    restored = loaded.policy()
    return Evaluator(loaded.env_config, restored.policies, restored.policy, restored.filters)
