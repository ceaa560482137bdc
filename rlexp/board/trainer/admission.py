"""Decides which fragments of joined actors enter replay, as an unknown machine may send anything.

Admission compares each fragment with the rules of its trial. Strikes counts refused fragments and bans actors.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import gymnasium as gym
import numpy as np

from rlexp.agents.workers import PlayedTrial, reward_limits
from rlexp.board.messages.envelope import Header
from rlexp.board.servers.board import actor_of
from rlexp.board.task import board_keys_of
from rlexp.config.keys.common import CommonConfig
from rlexp.envs.action_masks import standardised_shape
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
KEPT_REFUSALS: Final = 20
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
class AdmissionRules:
    """The rules for one experiment's fragments."""

    columns: Mapping[str, ColumnRule]
    """The rules of all columns of whole rows, by name; a fragment must have exactly these."""
    max_rows: int
    """Most rows of a fragment."""
    max_env_steps: int
    num_frames: int = 0
    """Number of frames of an observation; 0: it is sent as a whole."""
    frame_shape: tuple[int, ...] = ()
    """Shape of one frame."""
    moments_shape: tuple[int, ...] | None = None
    """Shape of a filter's observations; None: there is no filter."""
    max_abs_reward: float | None = None
    """Largest absolute reward of one env step, before clipping; None: any."""


def admission_rules(config: CommonConfig, trial: PlayedTrial) -> AdmissionRules:
    """Return the rules for fragments of an agent with replay, by a trial's spaces."""
    space, replay = trial.observation_space, config.replay
    assert space.shape is not None
    assert space.dtype is not None
    assert replay is not None
    obs = _observation_rule(config, space)
    columns = {
        OBS: obs,
        ACTIONS: _action_rule(trial.action_space),
        REWARDS: _reward_rule(config, trial.env_config.env, replay.n_step),
        DISCOUNTS: ColumnRule("f", (), one_of=_discounts(config.gamma, replay.n_step), itemsize=4),
        NEW_OBS: obs,
    }
    if replay.workers_send_td_errors:
        columns[TD_ERRORS] = ColumnRule("f", (), low=0.0)
    steps = config.joined_fragment_length * config.num_envs_per_worker
    if config.batch_mode == "complete_episodes":
        steps = MOST_STEPS_OF_EPISODES
    # A worker makes frames of observations if the env's space has a frame's dtype.
    framed = has_frames(space.shape, np.dtype(space.dtype))
    frames = num_frames(space.shape) if framed else 0
    return AdmissionRules(
        columns=columns,
        max_rows=steps + replay.n_step * config.num_envs_per_worker,
        max_env_steps=steps,
        num_frames=frames,
        frame_shape=(*space.shape[:-1], space.shape[-1] // frames) if framed else (),
        moments_shape=standardised_shape(space) if config.observation_filter != "NoFilter" else None,
        max_abs_reward=board_keys_of(config).max_abs_reward,
    )


def _action_rule(space: gym.Space[Any]) -> ColumnRule:
    if isinstance(space, gym.spaces.Discrete):
        return ColumnRule("iu", (), 0, int(space.n) - 1)
    assert space.shape is not None
    return ColumnRule("f", space.shape, _bound(space, "low"), _bound(space, "high"), itemsize=4)


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


def _discounts(gamma: float, n_step: int) -> np.ndarray:
    """Return 0 and γ to the powers 1 to n, in ascending order."""
    powers = {0.0, *(math.pow(gamma, step) for step in range(1, n_step + 1))}
    return np.array(sorted(powers), np.float32)


class Admission:
    """Checks the fragments of one seat and epoch; owned by the inbox."""

    def __init__(self, rules: AdmissionRules, clock: Callable[[], float] = time.monotonic) -> None:
        """Initialise; ``clock`` returns seconds that never decrease."""
        self._rules = rules
        self._clock = clock
        self._began_s = clock()
        self._num_env_steps = 0
        self._dtypes: dict[str, np.dtype[np.generic]] = {}

    def check(self, rows: SampleBatch | FrameRows, info: SampleInfo) -> None:
        """Raise RefusedError unless a worker could have made the fragment."""
        self._check_counts(rows, info)
        self._check_rows(rows)
        self._num_env_steps += info.num_env_steps

    def _check_counts(self, rows: SampleBatch | FrameRows, info: SampleInfo) -> None:
        rules = self._rules
        if rows.count > rules.max_rows:
            raise RefusedError(f"more than {rules.max_rows} rows")
        if info.num_env_steps > rules.max_env_steps:
            raise RefusedError(f"more than {rules.max_env_steps} env steps")
        if len(info.episodes.returns) > max(info.num_env_steps, rows.count):
            raise RefusedError("more episodes than steps")
        self._check_returns(info)
        if (info.observed is None) is not (rules.moments_shape is None):
            raise RefusedError("moments of a filter without a filter, or a filter without moments")
        if info.observed is not None and info.observed.mean.shape != rules.moments_shape:
            raise RefusedError("moments of another shape")
        if info.observed is not None and info.observed.count > rules.max_rows:
            raise RefusedError("moments of more observations than it could make")
        allowed = MOST_STEPS_PER_S * (ALLOWANCE_S + self._clock() - self._began_s)
        if self._num_env_steps + info.num_env_steps > allowed:
            raise RefusedError("more steps than any machine takes in that time")

    def _check_returns(self, info: SampleInfo) -> None:
        """Refuse impossible returns, as returns decide when a run stops and which checkpoint is its best."""
        limit, episodes = self._rules.max_abs_reward, info.episodes
        if limit is not None and (np.abs(episodes.returns) > limit * episodes.lengths * (1 + ROUNDING)).any():
            raise RefusedError("an episode has a return that cannot be")

    def _check_rows(self, rows: SampleBatch | FrameRows) -> None:
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
            # Replay has one dtype per column, given by the first rows.
            if self._dtypes.setdefault(name, batch[name].dtype) != batch[name].dtype:
                raise RefusedError(f"{name} has another dtype than before")

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


class Strikes:
    """Counts invalid fragments by actor, over all its seats; owned by the inbox."""

    def __init__(self, max_strikes: int, refused_actors: Iterable[str] = ()) -> None:
        """Ban an actor after ``max_strikes`` of them, and ``refused_actors`` from the start."""
        self.num_refused = 0
        self.last_refusal = ""
        """Why a message was last refused."""
        self._max_strikes = max_strikes
        self._strikes: Counter[str] = Counter()
        self._banned = dict.fromkeys(refused_actors)
        self._kept: deque[dict[str, Any]] = deque(maxlen=KEPT_REFUSALS)
        self._events: list[str] = []

    @property
    def banned(self) -> tuple[str, ...]:
        """The ids of the banned actors, in order of their bans; without tokens, their members."""
        return tuple(self._banned)

    def is_banned(self, member: str) -> bool:
        """Return whether a member is banned."""
        return actor_of(member) in self._banned

    def ban(self, actors: Iterable[str]) -> None:
        """Ban ``actors`` too, which an earlier process of the same task banned."""
        self._banned |= dict.fromkeys(actors)

    def refuse(self, why: str, header: Header | None = None) -> None:
        """Count a message for which nobody is blamed, as anyone may have sent it."""
        self.num_refused += 1
        self.last_refusal = why if header is None else f"seat {header.seat}: {why}"
        self._kept.append({"why": why, **({} if header is None else _said(header))})

    def strike(self, member: str, header: Header, why: str) -> None:
        """Count an invalid fragment of ``member``; ban it after too many."""
        self.refuse(why, header)
        actor = actor_of(member)
        self._strikes[actor] += 1
        if self._strikes[actor] == self._max_strikes and actor not in self._banned:
            self._banned[actor] = None
            self._events.append(
                f"actor {actor} is banned after {self._max_strikes} invalid fragments; the last one: "
                f"{self.last_refusal}"
            )

    def drain_events(self) -> list[str]:
        """Return the bans since the last call, a sentence each."""
        events, self._events = self._events, []
        return events

    def drain_refusals(self) -> list[dict[str, Any]]:
        """Return the newest messages refused since the last call, at most KEPT_REFUSALS."""
        kept = list(self._kept)
        self._kept.clear()
        return kept


def _said(header: Header) -> dict[str, Any]:
    """Return the content of a header, without texts that its sender has chosen."""
    rows = next((column.shape[0] for column in header.columns if column.shape), 0)
    return {
        "actor": header.actor,
        "seat": header.seat,
        "epoch": header.epoch,
        "number": header.number,
        "weights_version": header.weights_version,
        "rows": rows,
        "bytes": header.raw_bytes,
    }
