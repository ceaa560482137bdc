"""The keys of ``config.evaluation_config``: what is different in evaluation episodes."""

from __future__ import annotations

from pydantic import Field

from rlexp.config.keys.fields import Count, Fraction, FreeForm, KeyGroup


class EvaluationConfig(KeyGroup):
    """What is different in evaluation episodes."""

    explore: bool = False
    """Whether evaluation episodes explore, with epsilon ``exploration_final_eps``. False: greedy actions."""

    exploration_final_eps: Fraction | None = None
    """Epsilon of evaluation episodes that explore. Null: that of the training."""

    env_config: FreeForm = Field(default_factory=dict)
    """Keyword arguments for making the environments of the evaluation. They override those of the training."""

    horizon: Count | None = None
    """Steps after which an evaluation episode is cut. Null: as in the training."""
