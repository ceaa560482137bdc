"""The keys of ``config.evaluation_config``: in what evaluation episodes differ from training ones."""

from __future__ import annotations

from pydantic import Field

from rlexp.config.fields import Count, Fraction, FreeForm, KeyGroup


class EvaluationConfig(KeyGroup):
    """In what evaluation episodes differ from training ones."""

    explore: bool = False
    """Explore in evaluation episodes as well, with epsilon ``exploration_final_eps``."""

    exploration_final_eps: Fraction | None = None
    """Epsilon of evaluation episodes that explore. Null: the one of training."""

    env_config: FreeForm = Field(default_factory=dict)
    """Keyword arguments for making the evaluation's environments, laid over those of training."""

    horizon: Count | None = None
    """Steps after which an evaluation episode is cut. Null: as in training."""
