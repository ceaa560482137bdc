"""The ``track`` section: which trackers record the trials of an experiment, and under which names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Final, Literal, get_args

from pydantic import Field

from rlexp.config.keys.fields import Conflict, KeyGroup, defaults_of

TrackerName = Literal["wandb", "mlflow"]
TRACKERS: Final[tuple[TrackerName, ...]] = get_args(TrackerName)
"""The trackers; also the names of the extras that install them."""
DEFAULT_PROJECT: Final = "rlexp"
"""The project of wandb and the experiment of MLflow, if neither a file nor a variable names another one."""

_LONGEST_TAG: Final = 64
_NOT_IN_A_PROJECT: Final = re.compile(r"[/\\#?%:\x00-\x1f\x7f]")
_LONGEST_NAME: Final = 128

Text = Annotated[str, Field(min_length=1)]
Artifacts = Annotated[tuple[Literal["checkpoints", "videos"], ...], Field(strict=False)]


class WandbConfig(KeyGroup):
    """What is under ``track.wandb``."""

    project: Text | None = None
    """The project of the trials. Null: the variable WANDB_PROJECT, else ``rlexp``."""

    entity: Text | None = None
    """The user or team that the project belongs to. Null: WANDB_ENTITY, else the default of the account."""

    group: Text | None = None
    """The group of the trials. Null: WANDB_RUN_GROUP, else the name of the run of rlexp."""

    tags: Annotated[tuple[Text, ...], Field(strict=False)] = ()
    """Tags beside the agent and the env."""

    mode: Literal["online", "offline"] | None = None
    """``offline``: nothing is sent; ``wandb sync`` sends it later. Null: WANDB_MODE, else ``online``."""

    artifacts: Artifacts = ()
    """What is sent beside rows and keys: ``checkpoints``, ``videos``, or both."""

    def conflicts(self) -> Iterator[Conflict]:
        """Yield names that wandb would refuse after the run has begun."""
        yield from super().conflicts()
        if self.project is not None and (len(self.project) > _LONGEST_NAME or _NOT_IN_A_PROJECT.search(self.project)):
            message = f"project must have at most {_LONGEST_NAME} characters, none of them / \\ # ? % :"
            yield Conflict(("project",), message, "an entity has a key of its own: track.wandb.entity")
        for tag in self.tags:
            if len(tag) > _LONGEST_TAG:
                yield Conflict(("tags",), f"tags: {tag[:20]}... has more than {_LONGEST_TAG} characters")


class MlflowConfig(KeyGroup):
    """What is under ``track.mlflow``."""

    experiment: Text | None = None
    """The experiment of the trials in MLflow. Null: the variable MLFLOW_EXPERIMENT_NAME, else ``rlexp``."""

    tags: dict[Text, str] = Field(default_factory=dict)
    """Tags, by name, beside rlexp's own (``rlexp.run``, ``rlexp.trial``, ``rlexp.agent``, ``rlexp.env``)."""

    artifacts: Artifacts = ()
    """What is sent beside rows and keys: ``checkpoints``, ``videos``, or both."""


class TrackConfig(KeyGroup):
    """What is under ``track:``. ``track: wandb`` is short for ``track: {to: [wandb]}``."""

    to: Annotated[tuple[TrackerName, ...], Field(strict=False)] = ()
    """The trackers that record the trials: ``wandb``, ``mlflow``, or both. A file that leaves this key out and has
    ``track.wandb`` or ``track.mlflow`` means these. Nothing is sent to others.

    No key says where the server is. The variables WANDB_BASE_URL and MLFLOW_TRACKING_URI do, so that a file that
    somebody else wrote cannot choose it.
    """

    wandb: WandbConfig = defaults_of(WandbConfig)
    """Options of Weights & Biases."""

    mlflow: MlflowConfig = defaults_of(MlflowConfig)
    """Options of MLflow."""
