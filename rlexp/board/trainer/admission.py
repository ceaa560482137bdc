"""Decides which fragments of joined actors are learned from, as an unknown machine may send anything.

Admission compares each fragment with the rules of its trial: of transitions for replay, or of segments for V-trace.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import gymnasium as gym
import numpy as np

from rlexp.agents.workers import PlayedTrial, reward_limits
from rlexp.board.task import board_keys_of
from rlexp.config.keys.common import CommonConfig, ReplayNeeds
from rlexp.envs.action_masks import standardised_shape
from rlexp.envs.make import rows_per_env
from rlexp.models.action_distributions import Actions, actions_of
from rlexp.rollout.folds import DIST_INPUTS, IS_STEP, LOGP
from rlexp.rollout.fragment import SampleInfo
from rlexp.sample_batch import (
    ACTIONS,
    DISCOUNTS,
    FRAME_IDS_OF,
    NEW_OBS,
    OBS,
    REWARDS,
    TD_ERRORS,
    Array,
    FrameRows,
    SampleBatch,
    has_frames,
    num_frames,
)

MOST_STEPS_PER_S: Final = 1_000_000.0
"""Most env steps of one actor per second, on average since it took its seat; no process steps envs so fast."""
ALLOWANCE_S: Final = 60.0
"""Seconds' worth of steps that may come at once: fragments that waited while the network was away."""
ROUNDING: Final = 1e-4
"""Relative tolerance by which a sum of limited rewards may exceed its bound."""
PROBABILITY_ROUNDING: Final = 1e-3
"""Absolute and relative tolerance of a probability's logarithm, as processors round in other ways."""
MOST_STEPS_OF_EPISODES: Final = 1_000_000
"""Most env steps of a fragment with whole episodes."""


class RefusedError(Exception):
    """Raised for a refused fragment; the text says why in a few words, without any content of it."""


@dataclass(frozen=True, eq=False)
class ColumnRule:
    """The rules for the values of a column; all of them must be finite."""

    kinds: str
    """NumPy's letters for the kinds of dtypes: ``f``, ``i``, ``u``, ``b``."""
    shape: tuple[int, ...]
    """Shape of one row."""
    low: Array | float | None = None
    """The lowest value, for each element or for all; None: any."""
    high: Array | float | None = None
    one_of: Array | None = None
    """The only values, in ascending order; None: any."""
    itemsize: int | None = None
    """Bytes of one element; None: any."""

    def check(self, name: str, column: Array) -> None:
        """Raise RefusedError if ``column [B, ...]`` breaks the rule."""
        if column.dtype.kind not in self.kinds or self.itemsize not in (None, column.dtype.itemsize):
            raise RefusedError(f"{name} has another dtype")
        if column.shape[1:] != self.shape:
            raise RefusedError(f"{name} has another shape")
        if column.dtype.kind == "f" and not np.isfinite(column).all():
            raise RefusedError(f"{name} is not finite")
        if self.low is not None and (column < self.low).any():
            raise RefusedError(f"{name} is below its lowest value")
        if self.high is not None and (column > self.high).any():
            raise RefusedError(f"{name} is above its highest value")
        if self.one_of is not None and not _all_among(column, self.one_of):
            raise RefusedError(f"{name} has a value that cannot be")


@dataclass(frozen=True, eq=False)
class SegmentRules:
    """The rules for steps in order, as :class:`~rlexp.rollout.folds.Segments` lays them out."""

    actions: Actions
    """The distribution from which a policy draws."""
    num_rows: int
    """Envs of a worker; of several agents, their number."""
    discounts_ends_only: bool
    """Whether a discount of 0 means the end of an episode: unless all are 0."""
    has_all_steps: bool
    """Whether a fragment has the steps that it reports. Whole episodes have steps of earlier fragments, and a step of
    several agents is reported once."""
    num_agents: int = 1
    """Agents of an env, each with a segment of an episode."""

    def check(self, rows: SampleBatch, info: SampleInfo) -> None:
        """Raise RefusedError unless ``rows``, whose columns were checked, are whole segments of a policy's steps."""
        is_step = rows[IS_STEP]
        if len(rows) and (not is_step[0] or is_step[-1] or not (is_step[1:] | is_step[:-1]).all()):
            raise RefusedError("a segment is not whole")
        if self.discounts_ends_only and (is_step[1:] & is_step[:-1] & (rows[DISCOUNTS][:-1] == 0)).any():
            raise RefusedError("an episode goes on after its end")
        num_steps = int(np.count_nonzero(is_step))
        if self.has_all_steps and num_steps != info.num_env_steps:
            raise RefusedError("it has not the steps that it reports")
        if len(rows) - num_steps > self.num_rows + self.num_agents * len(info.episodes.returns):
            raise RefusedError("more segments than episodes")
        with np.errstate(over="ignore", invalid="ignore"):
            logp = self.actions.log_prob(rows[DIST_INPUTS], rows[ACTIONS])
        if not np.allclose(rows[LOGP], logp, rtol=PROBABILITY_ROUNDING, atol=PROBABILITY_ROUNDING):
            raise RefusedError("logp is not what the policy's outputs give the actions")


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
    segments: SegmentRules | None = None
    """The further rules for steps in order; None: rows are transitions."""


def admission_rules(config: CommonConfig, trial: PlayedTrial) -> AdmissionRules:
    """Return the rules for a trial's fragments, by its spaces."""
    space, replay, num_agents = trial.observation_space, config.replay, rows_per_env(trial.env_config)
    num_rows = config.num_envs_per_worker * num_agents
    assert space.shape is not None
    assert space.dtype is not None
    has_whole_episodes = config.batch_mode == "complete_episodes"
    steps = MOST_STEPS_OF_EPISODES if has_whole_episodes else config.joined_fragment_length * num_rows
    segments = None
    if replay is None:
        has_all_steps = num_agents == 1 and not has_whole_episodes
        segments = SegmentRules(actions_of(trial.action_space), num_rows, config.gamma > 0, has_all_steps, num_agents)
    # A worker makes frames of observations if the env's space has a frame's dtype.
    framed = has_frames(space.shape, np.dtype(space.dtype))
    frames = num_frames(space.shape) if framed else 0
    return AdmissionRules(
        columns=_columns(config, trial, replay, segments),
        max_rows=2 * steps if replay is None else steps + replay.n_step * num_rows,
        max_env_steps=steps,
        num_frames=frames,
        frame_shape=(*space.shape[:-1], space.shape[-1] // frames) if framed else (),
        moments_shape=standardised_shape(space) if config.observation_filter != "NoFilter" else None,
        max_abs_reward=board_keys_of(config).max_abs_reward,
        segments=segments,
    )


def _columns(
    config: CommonConfig, trial: PlayedTrial, replay: ReplayNeeds | None, segments: SegmentRules | None
) -> dict[str, ColumnRule]:
    obs, n_step = _observation_rule(config, trial.observation_space), 1 if replay is None else replay.n_step
    discounts = {0.0, *(math.pow(config.gamma, step) for step in range(1, n_step + 1))}
    columns = {
        OBS: obs,
        ACTIONS: _action_rule(trial.action_space, is_bounded=segments is None),
        REWARDS: _reward_rule(config, trial.env_config.env, n_step),
        DISCOUNTS: ColumnRule("f", (), one_of=np.array(sorted(discounts), np.float32), itemsize=4),
    }
    if segments is not None:
        inputs = ColumnRule("f", (segments.actions.num_inputs,), itemsize=4)
        return columns | {IS_STEP: ColumnRule("b", ()), DIST_INPUTS: inputs, LOGP: ColumnRule("f", (), itemsize=4)}
    columns[NEW_OBS] = obs
    if replay is not None and replay.workers_send_td_errors:
        columns[TD_ERRORS] = ColumnRule("f", (), low=0.0)
    return columns


def _action_rule(space: gym.Space[Any], is_bounded: bool) -> ColumnRule:
    """Return the rule for actions; ``is_bounded``: the policy's own numbers are within the bounds of a Box."""
    shape = space.shape
    assert shape is not None
    match space:
        case gym.spaces.Discrete():
            return ColumnRule("iu", (), int(space.start), int(space.start) + int(space.n) - 1)
        case gym.spaces.MultiDiscrete():
            return ColumnRule("iu", shape, space.start, space.start + space.nvec - 1)
        case gym.spaces.MultiBinary():
            return ColumnRule("iu", shape, 0, 1)
        case gym.spaces.Box() if np.issubdtype(space.dtype, np.integer):
            return ColumnRule("iu", shape, space.low, space.high)
    if not is_bounded:
        return ColumnRule("f", shape, itemsize=np.dtype(space.dtype).itemsize)
    return ColumnRule("f", shape, _bound(space, "low"), _bound(space, "high"), itemsize=4)


def _observation_rule(config: CommonConfig, space: gym.Space[np.ndarray]) -> ColumnRule:
    assert space.shape is not None
    dtype = np.dtype(space.dtype)
    if config.observation_filter != "NoFilter":
        return ColumnRule("f", space.shape, itemsize=4)
    if dtype.kind == "f":
        return ColumnRule("f", space.shape, _bound(space, "low"), _bound(space, "high"), itemsize=4)
    return ColumnRule(dtype.kind, space.shape, itemsize=dtype.itemsize)


def _bound(space: gym.Space[np.ndarray], name: str) -> np.ndarray | None:
    """Return the bounds of a space as float32, widened a little; None if the space has none."""
    given = getattr(space, name, None)
    if given is None:
        return None
    bound = np.asarray(given, np.float64)
    slack = ROUNDING * np.maximum(np.abs(bound), 1.0)
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(bound - slack if name == "low" else bound + slack).astype(np.float32)


def _reward_rule(config: CommonConfig, env: str, n_step: int) -> ColumnRule:
    """Return the rule for sums of up to n rewards: finite, and within n times the limit of one, if there is one."""
    limits, most = reward_limits(config, env), board_keys_of(config).max_abs_reward
    if limits is True:
        low, high = -1.0, 1.0
    elif limits is False:
        low, high = -math.inf, math.inf
    else:
        low, high = limits if isinstance(limits, tuple) else (-limits, limits)
    if most is not None and limits is not True:  # of signs, which do not shrink with their rewards
        low, high = max(low, -most), min(high, most)
    folded = n_step * (1 + ROUNDING)
    return ColumnRule("f", (), min(low, 0.0) * folded, max(high, 0.0) * folded, itemsize=4)


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
        if self._rules.segments is not None:
            self._rules.segments.check(batch, info)

    def _check_frames(self, rows: FrameRows) -> None:
        if rows.frames.shape[1:] != self._rules.frame_shape:
            raise RefusedError("frames of another shape")
        rule = self._rules.columns.get("obs")
        if rule is not None:
            ColumnRule(rule.kinds, self._rules.frame_shape, itemsize=rule.itemsize).check("frames", rows.frames)
        if len(np.unique(rows.numbers)) < len(rows.numbers):
            raise RefusedError("two frames have the same number")


def _all_among(column: Array, values: Array) -> bool:
    """Return whether each of ``column`` is one of ``values``, within rounding."""
    places = np.searchsorted(values, column).clip(1, len(values) - 1) if len(values) > 1 else np.ones(len(column), int)
    below, above = values[places - 1], values[np.minimum(places, len(values) - 1)]
    nearest = np.minimum(np.abs(column - below), np.abs(column - above))
    return bool((nearest <= 1e-5).all())
