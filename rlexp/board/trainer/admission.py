"""Decides which fragments of joined actors are learned from, as an unknown machine may send anything.

Admission compares each fragment with the rules of its trial; ``row_rules`` has those for the rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from rlexp.agents.workers import PlayedTrial
from rlexp.board.task import board_keys_of
from rlexp.board.trainer.row_rules import MOST_STEPS_OF_EPISODES, ROUNDING, ColumnRule, RefusedError, RowForm, row_rules
from rlexp.config.keys.common import CommonConfig
from rlexp.envs.action_masks import standardised_shape
from rlexp.envs.make import rows_per_env
from rlexp.rollout.fragment import SampleInfo
from rlexp.sample_batch import (
    FRAME_IDS_OF,
    OBS,
    FrameRows,
    SampleBatch,
    has_frames,
    num_frames,
)

MOST_STEPS_PER_S: Final = 1_000_000.0
"""Most env steps of one actor per second, on average since it took its seat; no process steps envs so fast."""
ALLOWANCE_S: Final = 60.0
"""Seconds' worth of steps that may come at once: fragments that waited while the network was away."""


@dataclass(frozen=True, eq=False)
class AdmissionRules:
    """The rules for one experiment's fragments."""

    columns: Mapping[str, ColumnRule]
    """The rules of all columns of whole rows, by name; a fragment must have exactly these."""
    max_rows: int
    max_env_steps: int
    num_frames: int = 0
    """Number of frames of an observation; 0: it is sent as a whole."""
    frame_shape: tuple[int, ...] = ()
    moments_shape: tuple[int, ...] | None = None
    """Shape of a filter's observations; None: there is no filter."""
    max_abs_reward: float | None = None
    """Largest absolute reward of one env step, before clipping; None: any."""
    form: RowForm | None = None
    """The further rules for rows that are more than a transition."""
    has_policy_lag: bool = False
    """Whether it counts how old the weights are that acted."""


def admission_rules(config: CommonConfig, trial: PlayedTrial) -> AdmissionRules:
    """Return the rules for a trial's fragments, by its spaces."""
    space, replay = trial.observation_space, config.replay
    num_rows = config.num_envs_per_worker * rows_per_env(trial.env_config)
    assert space.shape is not None
    assert space.dtype is not None
    has_whole_episodes = config.batch_mode == "complete_episodes"
    steps = MOST_STEPS_OF_EPISODES if has_whole_episodes else config.joined_fragment_length * num_rows
    columns, form = row_rules(config, trial)
    # A worker makes frames of observations if the env's space has a frame's dtype.
    framed = has_frames(space.shape, np.dtype(space.dtype))
    frames = num_frames(space.shape) if framed else 0
    return AdmissionRules(
        columns=columns,
        max_rows=2 * steps if replay is None else steps + replay.n_step * num_rows,
        max_env_steps=steps,
        num_frames=frames * (columns[OBS].shape[-1] // space.shape[-1] if framed else 1),
        frame_shape=(*space.shape[:-1], space.shape[-1] // frames) if framed else (),
        moments_shape=standardised_shape(space) if config.observation_filter != "NoFilter" else None,
        max_abs_reward=board_keys_of(config).max_abs_reward,
        form=form,
        has_policy_lag=replay is None,
    )


class Admission:
    """Checks the fragments of one seat and epoch; owned by the inbox."""

    def __init__(self, rules: AdmissionRules, clock: Callable[[], float] = time.monotonic) -> None:
        self._rules = rules
        self._clock = clock
        self._began_s = clock()
        self._num_env_steps = 0
        self._dtypes: dict[str, np.dtype[np.generic]] = {}

    def check(self, rows: SampleBatch | FrameRows, info: SampleInfo) -> None:
        """Raise RefusedError unless a worker could have made the fragment."""
        self._check_counts(rows, info)
        self._check_rows(rows, info)
        self._num_env_steps += info.num_env_steps

    def _check_counts(self, rows: SampleBatch | FrameRows, info: SampleInfo) -> None:
        rules = self._rules
        if rows.count > rules.max_rows:
            raise RefusedError(f"more than {rules.max_rows} rows")
        if info.num_env_steps > rules.max_env_steps:
            raise RefusedError(f"more than {rules.max_env_steps} env steps")
        if len(info.episodes.returns) > max(info.num_env_steps, rows.count):
            raise RefusedError("more episodes than steps")
        limit, episodes = rules.max_abs_reward, info.episodes
        # Returns decide when a run stops and which checkpoint is its best.
        if limit is not None and (np.abs(episodes.returns) > limit * episodes.lengths * (1 + ROUNDING)).any():
            raise RefusedError("an episode has a return that cannot be")
        if (info.observed is None) is not (rules.moments_shape is None):
            raise RefusedError("moments of a filter without a filter, or a filter without moments")
        if info.observed is not None and info.observed.mean.shape != rules.moments_shape:
            raise RefusedError("moments of another shape")
        if info.observed is not None and info.observed.count > rules.max_rows:
            raise RefusedError("moments of more observations than it could make")
        allowed = MOST_STEPS_PER_S * (ALLOWANCE_S + self._clock() - self._began_s)
        if self._num_env_steps + info.num_env_steps > allowed:
            raise RefusedError("more steps than any machine takes in that time")

    def _check_rows(self, rows: SampleBatch | FrameRows, info: SampleInfo) -> None:
        if isinstance(rows, FrameRows) != bool(self._rules.num_frames):
            raise RefusedError("observations are sent in another way")
        columns = dict(self._rules.columns)
        batch = rows.rows if isinstance(rows, FrameRows) else rows
        if isinstance(rows, FrameRows):
            self._check_frames(rows)
            ids = ColumnRule("iu", (self._rules.num_frames,))
            columns = {FRAME_IDS_OF.get(name, name): rule for name, rule in columns.items()}
            columns |= {name: ids for name in FRAME_IDS_OF.values() if name in columns}
        if set(batch) != columns.keys():
            raise RefusedError("not the columns of this experiment")
        for name, rule in columns.items():
            rule.check(name, batch[name])
            # Replay and train batches have one dtype per column, given by the first rows.
            if self._dtypes.setdefault(name, batch[name].dtype) != batch[name].dtype:
                raise RefusedError(f"{name} has another dtype than before")
        if self._rules.form is not None:
            self._rules.form.check(batch, info)

    def _check_frames(self, rows: FrameRows) -> None:
        if rows.frames.shape[1:] != self._rules.frame_shape:
            raise RefusedError("frames of another shape")
        rule = self._rules.columns.get("obs")
        if rule is not None:
            ColumnRule(rule.kinds, self._rules.frame_shape, itemsize=rule.itemsize).check("frames", rows.frames)
        if len(np.unique(rows.numbers)) < len(rows.numbers):
            raise RefusedError("two frames have the same number")
