"""The rules for the rows of joined actors: transitions or sequences for replay, or segments for V-trace."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import gymnasium as gym
import numpy as np

from rlexp.agents.workers import PlayedTrial, reward_limits
from rlexp.board.task import board_keys_of
from rlexp.config.keys.common import CommonConfig
from rlexp.config.keys.model import RecurrentModelConfig
from rlexp.envs.action_masks import MaskedSpace
from rlexp.envs.make import rows_per_env
from rlexp.models.action_distributions import Actions, CategoricalActions, actions_of
from rlexp.models.memory import PREVIOUS, SEQUENCE_STARTS, STATE_IN, PreviousStep
from rlexp.models.network_config import MASKED
from rlexp.rollout.folds import DIST_INPUTS, IS_STEP, LOGP
from rlexp.rollout.fragment import SampleInfo
from rlexp.rollout.sequences import NUM_BURNED, NUM_FOLDED, ReplaySequences
from rlexp.sample_batch import ACTIONS, DISCOUNTS, NEW_OBS, OBS, REWARDS, TD_ERRORS, Array, SampleBatch

ROUNDING: Final = 1e-4
"""Relative tolerance by which a sum of limited rewards may exceed its bound."""
PROBABILITY_ROUNDING: Final = 1e-3
"""Absolute and relative tolerance of a probability's logarithm, as processors round in other ways."""
MOST_STEPS_OF_EPISODES: Final = 1_000_000
"""Most env steps of a fragment with whole episodes, and the bound of an LSTM's cells: a step adds at most 1."""
LARGEST: Final = 1e7
"""The bound of observations, rewards and other numbers where a trial has no narrower one: its square, summed over a
batch and a network's weights, is still a float32."""
_FLOAT: Final = np.dtype(np.float32)
_INDEX: Final = np.dtype(np.int32)
_BOOL: Final = np.dtype(np.bool_)


class RefusedError(Exception):
    """Raised for a refused fragment; the text says why in a few words, without any content of it."""


@dataclass(frozen=True, eq=False)
class ColumnRule:
    """The rules for the values of a column; all of them must be finite.

    Floating-point numbers are within ``largest`` if there are no narrower bounds.
    """

    dtype: np.dtype[Any]
    """The dtype, as replay and train batches have one for a column, whoever sends its rows."""
    shape: tuple[int, ...]
    """Shape of one row."""
    low: Array | float | None = None
    """The lowest value, for each element or for all; None: any."""
    high: Array | float | None = None
    one_of: Array | None = None
    """The only values, in ascending order; None: any."""
    largest: float = LARGEST
    """The bound of floating-point numbers."""

    def check(self, name: str, column: Array) -> None:
        """Raise RefusedError if ``column [B, ...]`` breaks the rule."""
        if column.dtype != self.dtype:
            raise RefusedError(f"{name} has another dtype")
        if column.shape[1:] != self.shape:
            raise RefusedError(f"{name} has another shape")
        if column.dtype.kind == "f" and not (np.abs(column) <= self.largest).all():  # False for NaN, too
            raise RefusedError(f"{name} is not finite, or beyond {self.largest:,.0f}")
        if self.low is not None and (column < self.low).any():
            raise RefusedError(f"{name} is below its lowest value")
        if self.high is not None and (column > self.high).any():
            raise RefusedError(f"{name} is above its highest value")
        if self.one_of is not None and not _all_among(column, self.one_of):
            raise RefusedError(f"{name} has a value that cannot be")


class RowForm(Protocol):
    """The further rules for rows that are more than a transition."""

    def check(self, rows: SampleBatch, info: SampleInfo, allowed: Array | None) -> None:
        """Raise RefusedError unless ``rows``, whose columns were checked, have this form.

        ``allowed`` says which actions the masks of the observations allow, ``[B, A]``; None: there are no masks.
        """

    def num_steps(self, rows: SampleBatch) -> int:
        """Return the steps that checked ``rows`` have; a step of several agents counts for each of them."""


@dataclass(frozen=True, eq=False)
class SegmentRules:
    """The rules for steps in order, as :class:`~rlexp.rollout.folds.Segments` lays them out."""

    actions: Actions
    """The distribution from which a policy draws."""
    num_rows: int
    """Envs of a worker; of several agents, their number."""
    discounts_ends_only: bool
    """Whether a discount of 0 means the end of an episode: unless all are 0."""
    num_agents: int = 1
    """Agents of an env, each with a segment of an episode."""
    max_seq_len: int | None = None
    """Most steps of a sequence for a recurrent network; None: there are no sequences."""

    def check(self, rows: SampleBatch, info: SampleInfo, allowed: Array | None) -> None:
        """Raise RefusedError unless ``rows``, whose columns were checked, are whole segments of a policy's steps."""
        is_step = rows[IS_STEP]
        if len(rows) and (not is_step[0] or is_step[-1] or not (is_step[1:] | is_step[:-1]).all()):
            raise RefusedError("a segment is not whole")
        if self.discounts_ends_only and (is_step[1:] & is_step[:-1] & (rows[DISCOUNTS][:-1] == 0)).any():
            raise RefusedError("an episode goes on after its end")
        if len(rows) - self.num_steps(rows) > self.num_rows + self.num_agents * len(info.episodes.returns):
            raise RefusedError("more segments than episodes")
        if self.max_seq_len is not None and not np.array_equal(rows[SEQUENCE_STARTS], self._starts(is_step)):
            raise RefusedError("a sequence does not begin where it has to")
        if allowed is not None:
            inputs = rows[DIST_INPUTS]
            if (inputs[~allowed] != np.float32(MASKED)).any() or (np.abs(inputs[allowed]) > LARGEST).any():
                raise RefusedError("the policy's outputs do not fit the masks")
            if (np.abs(rows[LOGP][is_step]) > LARGEST).any():
                raise RefusedError("an action is not allowed")
        with np.errstate(over="ignore", invalid="ignore"):
            logp = self.actions.log_prob(rows[DIST_INPUTS], rows[ACTIONS])
        if not np.allclose(rows[LOGP], logp, rtol=PROBABILITY_ROUNDING, atol=PROBABILITY_ROUNDING):
            raise RefusedError("logp is not what the policy's outputs give the actions")

    def num_steps(self, rows: SampleBatch) -> int:
        return int(np.count_nonzero(rows[IS_STEP]))

    def _starts(self, is_step: Array) -> Array:
        """Return where sequences begin: with each segment, and then every ``max_seq_len`` steps."""
        assert self.max_seq_len is not None
        rows, follows = np.arange(len(is_step)), np.ones(len(is_step), bool)
        follows[:1], follows[1:] = False, is_step[:-1]
        first = np.maximum.accumulate(np.where(follows, 0, rows))
        starts: Array = is_step & ((rows - first) % self.max_seq_len == 0)
        return starts


@dataclass(frozen=True, eq=False)
class SequenceRules:
    """The rules for sequences, as :class:`~rlexp.rollout.sequences.ReplaySequences` lays them out."""

    form: ReplaySequences

    def check(self, rows: SampleBatch, info: SampleInfo, allowed: Array | None) -> None:
        """Raise RefusedError unless ``rows``, whose columns were checked, are sequences of steps of an episode."""
        form, folded = self.form, rows[NUM_FOLDED]
        steps, num_learned = np.arange(form.length), np.count_nonzero(folded, axis=1)
        if not num_learned.all():
            raise RefusedError("a sequence has no steps")
        reach = num_learned - 1 + folded[np.arange(len(folded)), num_learned - 1]
        is_learned = steps < num_learned[:, None]
        if not np.array_equal(folded, np.where(is_learned, np.minimum(form.n_step, reach[:, None] - steps), 0)):
            raise RefusedError("a return has not the steps that it must have")
        is_short = num_learned < form.length
        if (reach[is_short] != num_learned[is_short]).any():
            raise RefusedError("a sequence is short, and its episode goes on")
        discounts = rows[DISCOUNTS][is_learned]
        if not np.isclose(discounts, np.power(form.gamma, folded[is_learned]))[discounts != 0].all():
            raise RefusedError("a discount does not fit the steps of its return")

    def num_steps(self, rows: SampleBatch) -> int:
        return int(np.count_nonzero(rows[NUM_FOLDED]))


def row_rules(config: CommonConfig, trial: PlayedTrial) -> tuple[dict[str, ColumnRule], RowForm | None]:
    """Return the rules for the columns of a trial's rows, and for rows that are more than a transition."""
    replay = config.replay
    if replay is None:
        return _segment_rules(config, trial)
    columns = _columns(config, trial, replay.n_step, is_bounded=True)
    if replay.workers_send_td_errors:
        columns[TD_ERRORS] = ColumnRule(_FLOAT, (), low=0.0)
    if replay.sequences is None:
        return columns | {NEW_OBS: columns[OBS]}, None
    return _sequence_rules(config, trial, ReplaySequences.of(replay, config.gamma), columns)


def _sequence_rules(
    config: CommonConfig, trial: PlayedTrial, form: ReplaySequences, columns: dict[str, ColumnRule]
) -> tuple[dict[str, ColumnRule], SequenceRules]:
    """Return the rules for sequences by the ``columns`` of single steps."""
    assert isinstance(trial.action_space, gym.spaces.Discrete)
    assert isinstance(config.model, RecurrentModelConfig)
    discounts = _discounts(config, range(form.n_step + 1))  # padding has 1, of no step
    columns = columns | {
        OBS: _side_by_side(columns[OBS], form.num_obs),
        ACTIONS: replace(columns[ACTIONS], shape=(form.length,)),
        REWARDS: replace(columns[REWARDS], shape=(form.length,)),
        DISCOUNTS: replace(columns[DISCOUNTS], shape=(form.length,), one_of=discounts),
        NUM_FOLDED: ColumnRule(_INDEX, (form.length,), 0, form.n_step),
        NUM_BURNED: ColumnRule(_INDEX, (), 0, form.burn_in),
        **_memory_columns(config.model, actions_of(gym.spaces.Discrete(int(trial.action_space.n))), config),
    }
    if not form.stores_states:
        del columns[STATE_IN]
    if PREVIOUS in columns:
        columns[PREVIOUS] = replace(columns[PREVIOUS], shape=(form.num_obs, *columns[PREVIOUS].shape))
    return columns, SequenceRules(form)


def _segment_rules(config: CommonConfig, trial: PlayedTrial) -> tuple[dict[str, ColumnRule], SegmentRules]:
    actions, num_agents = actions_of(trial.action_space), rows_per_env(trial.env_config)
    is_masked = isinstance(trial.observation_space, MaskedSpace)
    largest = -MASKED * (1 + actions.num_inputs) if is_masked else LARGEST  # logp adds up masked choices
    columns = _columns(config, trial, 1, is_bounded=False) | {
        IS_STEP: ColumnRule(_BOOL, ()),
        DIST_INPUTS: ColumnRule(_FLOAT, (actions.num_inputs,), largest=largest),
        LOGP: ColumnRule(_FLOAT, (), largest=largest),
    }
    model = config.model
    length = None
    if isinstance(model, RecurrentModelConfig) and model.use_lstm:
        length = model.max_seq_len
        columns |= {SEQUENCE_STARTS: ColumnRule(_BOOL, ()), **_memory_columns(model, actions, config)}
    return columns, SegmentRules(
        actions,
        num_rows=config.num_envs_per_worker * num_agents,
        discounts_ends_only=config.gamma > 0,
        num_agents=num_agents,
        max_seq_len=length,
    )


def _columns(config: CommonConfig, trial: PlayedTrial, n_step: int, is_bounded: bool) -> dict[str, ColumnRule]:
    """Return the rules for what all rows have."""
    return {
        OBS: _observation_rule(config, trial.observation_space),
        ACTIONS: _action_rule(trial.action_space, is_bounded),
        REWARDS: _reward_rule(config, trial.env_config.env, n_step),
        DISCOUNTS: ColumnRule(_FLOAT, (), one_of=_discounts(config, range(1, n_step + 1))),
    }


def _discounts(config: CommonConfig, steps: Iterable[int]) -> Array:
    return np.array(sorted({0.0, *(math.pow(config.gamma, step) for step in steps)}), np.float32)


def _memory_columns(model: RecurrentModelConfig, actions: Actions, config: CommonConfig) -> dict[str, ColumnRule]:
    """Return the rules for what a recurrent network had before an observation: its state, and the step before."""
    previous, cells = PreviousStep.of(model, actions), model.lstm_cell_size
    most = np.repeat(np.array([1.0, MOST_STEPS_OF_EPISODES], np.float32), cells)
    columns = {STATE_IN: ColumnRule(_FLOAT, most.shape, -most, most)}
    if not previous.num_numbers:
        return columns
    high = np.full(previous.num_numbers, LARGEST, np.float32)
    low = -high
    if isinstance(previous.actions, CategoricalActions):
        low[: previous.num_action_numbers], high[: previous.num_action_numbers] = 0, 1
    most_reward = board_keys_of(config).max_abs_reward
    if previous.has_reward and most_reward is not None:
        low[-1], high[-1] = -most_reward, most_reward
    return columns | {PREVIOUS: ColumnRule(_FLOAT, low.shape, low, high)}


def _side_by_side(rule: ColumnRule, count: int) -> ColumnRule:
    """Return the rule for ``count`` values together, along the last axis."""
    low, high = (np.tile(bound, count) if isinstance(bound, np.ndarray) else bound for bound in (rule.low, rule.high))
    return replace(rule, shape=(*rule.shape[:-1], count * rule.shape[-1]), low=low, high=high)


def _action_rule(space: gym.Space[Any], is_bounded: bool) -> ColumnRule:
    """Return the rule for actions; ``is_bounded``: the policy's own numbers are within the bounds of a Box."""
    shape, dtype = space.shape, np.dtype(space.dtype)
    assert shape is not None
    match space:
        case gym.spaces.Discrete():
            return ColumnRule(dtype, (), int(space.start), int(space.start) + int(space.n) - 1)
        case gym.spaces.MultiDiscrete():
            return ColumnRule(dtype, shape, space.start, space.start + space.nvec - 1)
        case gym.spaces.MultiBinary():
            return ColumnRule(dtype, shape, 0, 1)
        case gym.spaces.Box() if np.issubdtype(space.dtype, np.integer):
            return ColumnRule(dtype, shape, space.low, space.high)
    if not is_bounded:
        return ColumnRule(dtype, shape)
    return ColumnRule(dtype, shape, bound_of(space, "low"), bound_of(space, "high"))


def _observation_rule(config: CommonConfig, space: gym.Space[np.ndarray]) -> ColumnRule:
    assert space.shape is not None
    dtype = np.dtype(space.dtype)
    if config.observation_filter != "NoFilter":
        return ColumnRule(_FLOAT, space.shape)
    if dtype.kind == "f":
        return ColumnRule(_FLOAT, space.shape, bound_of(space, "low"), bound_of(space, "high"))
    return ColumnRule(dtype, space.shape)


def bound_of(space: gym.Space[Any], name: str) -> Array:
    """Return the ``low`` or ``high`` of a space as float32, widened a little, and at most LARGEST from 0."""
    most = -LARGEST if name == "low" else LARGEST
    bound = np.asarray(getattr(space, name, most), np.float64)
    slack = ROUNDING * np.maximum(np.abs(bound), 1.0)
    with np.errstate(invalid="ignore"):
        widened = bound - slack if name == "low" else bound + slack
    return np.asarray(widened.clip(-LARGEST, LARGEST), np.float32)


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
    return ColumnRule(_FLOAT, (), min(low, 0.0) * folded, max(high, 0.0) * folded)


def _all_among(column: Array, values: Array) -> bool:
    """Return whether each of ``column`` is one of ``values``, within rounding."""
    places = np.searchsorted(values, column).clip(1, len(values) - 1) if len(values) > 1 else np.ones(len(column), int)
    below, above = values[places - 1], values[np.minimum(places, len(values) - 1)]
    nearest = np.minimum(np.abs(column - below), np.abs(column - above))
    return bool((nearest <= 1e-5).all())
