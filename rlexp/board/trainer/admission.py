"""Decides which fragments of joined actors are learned from, as an unknown machine may send anything.

Admission compares each fragment with the rules of its trial; ``row_rules`` has those for the rows.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import gymnasium as gym
import numpy as np

from rlexp.agents.workers import PlayedTrial
from rlexp.board.task import board_keys_of
from rlexp.board.trainer.row_rules import (
    LARGEST,
    MOST_STEPS_OF_EPISODES,
    ROUNDING,
    ColumnRule,
    RefusedError,
    RowForm,
    bound_of,
    row_rules,
)
from rlexp.config.keys.common import CommonConfig
from rlexp.envs.action_masks import MaskedSpace, standardised_shape
from rlexp.envs.make import longest_episode, rows_per_env
from rlexp.rollout.episodes import Episodes
from rlexp.rollout.filters import Moments
from rlexp.rollout.fragment import SampleInfo
from rlexp.sample_batch import (
    FRAME_IDS_OF,
    OBS,
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


@dataclass(frozen=True, eq=False)
class MomentsRule:
    """The rule for the moments of observations between bounds."""

    low: Array
    """The lowest observation ``[...]``."""
    high: Array

    def check(self, moments: Moments, most_observed: int) -> None:
        """Raise RefusedError unless at most ``most_observed`` observations can have ``moments``."""
        if moments.mean.shape != self.low.shape:
            raise RefusedError("moments of another shape")
        if moments.count > most_observed:
            raise RefusedError("moments of more observations than it could make")
        if moments.count and ((moments.mean < self.low) | (moments.mean > self.high)).any():
            raise RefusedError("moments with a mean that cannot be")
        most = moments.count * np.square(self.high.astype(np.float64) - self.low) / 4  # half at each end (Popoviciu)
        if (moments.squares > most * (1 + ROUNDING)).any():
            raise RefusedError("moments with a variance that cannot be")


@dataclass(frozen=True, eq=False)
class AdmissionRules:
    """The rules for one experiment's fragments."""

    columns: Mapping[str, ColumnRule]
    """The rules of all columns of whole rows, by name; a fragment must have exactly these."""
    max_rows: int
    max_env_steps: int
    num_rows: int = 1
    """Rows of a worker's vector env: its envs, or their agents."""
    num_agents: int = 1
    """Agents of an env; an env step has a row of each that acts."""
    min_steps: int = 0
    """Least steps of rows of a fragment: an actor with whole episodes sends them when it has so many."""
    num_waiting: int = 0
    """Most steps that wait for later ones before they are in a row."""
    longest_episode: int | None = None
    """Most env steps of an episode; None: any number."""
    num_frames: int = 0
    """Number of frames of an observation; 0: it is sent as a whole."""
    frame_shape: tuple[int, ...] = ()
    moments: MomentsRule | None = None
    """The rule for a filter's moments; None: there is no filter."""
    max_abs_reward: float | None = None
    """Largest absolute reward of one env step, before clipping; None: any."""
    form: RowForm | None = None
    """The further rules for rows that are more than a transition."""
    has_policy_lag: bool = False
    """Whether it counts how old the weights are that acted."""
    masks: MaskedSpace | None = None
    """The observations, if their masks decide what a policy's outputs are."""


def admission_rules(config: CommonConfig, trial: PlayedTrial) -> AdmissionRules:
    """Return the rules for a trial's fragments, by its spaces."""
    space, replay, board, env = trial.observation_space, config.replay, board_keys_of(config), trial.env_config
    num_agents = rows_per_env(env)
    num_rows = config.num_envs_per_worker * num_agents
    assert space.shape is not None
    assert space.dtype is not None
    columns, form = row_rules(config, trial)
    # A worker makes frames of observations if the env's space has a frame's dtype.
    framed = has_frames(space.shape, np.dtype(space.dtype))
    frames = num_frames(space.shape) if framed else 0
    frame_shape = (*space.shape[:-1], space.shape[-1] // frames) if framed else ()
    longest, fragment = longest_episode(env), config.joined_fragment_length * num_rows
    if config.batch_mode == "complete_episodes":
        max_rows = max_env_steps = MOST_STEPS_OF_EPISODES
        num_waiting, min_steps = num_rows * (longest or MOST_STEPS_OF_EPISODES) + fragment, fragment
        if framed:  # its rows share frames, so that their observations may be many times what was sent
            max_rows = int(board.max_fragment_mb * 1e6) // (math.prod(frame_shape) * space.dtype.itemsize)
    else:
        max_rows, max_env_steps, num_waiting, min_steps = fragment, fragment, 0, 0
        if replay is not None:
            num_waiting = num_rows * (replay.n_step + (0 if replay.sequences is None else replay.sequences.length))
    return AdmissionRules(
        columns=columns,
        max_rows=2 * max_rows if replay is None else max_rows + replay.n_step * num_rows,
        max_env_steps=max_env_steps,
        num_rows=num_rows,
        num_agents=num_agents,
        min_steps=min_steps,
        num_waiting=num_waiting,
        longest_episode=longest,
        num_frames=frames * (columns[OBS].shape[-1] // space.shape[-1] if framed else 1),
        frame_shape=frame_shape,
        moments=_moments_rule(space) if config.observation_filter != "NoFilter" else None,
        max_abs_reward=board.max_abs_reward,
        form=form,
        has_policy_lag=replay is None,
        masks=space if replay is None and isinstance(space, MaskedSpace) else None,
    )


def _moments_rule(space: gym.Space[Any]) -> MomentsRule:
    shape = standardised_shape(space)
    bounds = (np.broadcast_to(bound_of(space, name), space.shape or ()) for name in ("low", "high"))
    low, high = (bound if bound.shape == shape else bound[: shape[0]] for bound in bounds)
    return MomentsRule(low, high)


class Admission:
    """Checks the fragments of one seat and epoch; owned by the inbox."""

    def __init__(self, rules: AdmissionRules, clock: Callable[[], float] = time.monotonic) -> None:
        self._rules = rules
        self._clock = clock
        self._began_s = clock()
        self._num_env_steps = 0
        self._num_steps_of_episodes = 0.0
        self._num_fragments = 0

    def check(self, rows: SampleBatch | FrameRows, info: SampleInfo, number: int) -> None:
        """Raise RefusedError unless a worker could have made the fragment, its ``number``-th from 0 on."""
        self._check_counts(rows, info)
        self._check_rows(rows, info)
        self._check_episodes(info.episodes, number)
        self._num_env_steps += info.num_env_steps
        self._num_steps_of_episodes += float(info.episodes.lengths.sum(dtype=np.float64))

    def _check_counts(self, rows: SampleBatch | FrameRows, info: SampleInfo) -> None:
        rules = self._rules
        if rows.count > rules.max_rows:
            raise RefusedError(f"more than {rules.max_rows} rows")
        if info.num_env_steps > rules.max_env_steps:
            raise RefusedError(f"more than {rules.max_env_steps} env steps")
        if len(info.episodes.returns) > max(info.num_env_steps, rows.count):
            raise RefusedError("more episodes than steps")
        if (info.observed is None) is not (rules.moments is None):
            raise RefusedError("moments of a filter without a filter, or a filter without moments")
        if info.observed is not None and rules.moments is not None:
            # Each step has an observation after it, and one more where it ended an episode; an env begins with one.
            rules.moments.check(info.observed, 2 * (rules.num_agents * info.num_env_steps + rules.num_rows))
        if self._num_env_steps + info.num_env_steps > self._most_steps():
            raise RefusedError("more steps than any machine takes in that time")

    def _most_steps(self) -> float:
        """Return how many env steps a machine can have taken since it took its seat."""
        return MOST_STEPS_PER_S * (ALLOWANCE_S + self._clock() - self._began_s)

    def _check_episodes(self, episodes: Episodes, number: int) -> None:
        """Check the returns, which decide when a run stops and which checkpoint is its best."""
        rules, lengths = self._rules, episodes.lengths
        self._num_fragments = max(self._num_fragments, number + 1)  # they may come in another order
        if not len(lengths):
            return
        played = min(self._num_fragments * rules.max_env_steps, self._most_steps())
        longest = played if rules.longest_episode is None else min(rules.longest_episode, played)
        if (lengths > longest).any() or self._num_steps_of_episodes + lengths.sum(dtype=np.float64) > played:
            raise RefusedError("an episode has more steps than it can have")
        limit = LARGEST if rules.max_abs_reward is None else rules.max_abs_reward
        if (np.abs(episodes.returns) > limit * lengths * (1 + ROUNDING)).any():
            raise RefusedError("an episode has a return that cannot be")

    def _check_rows(self, rows: SampleBatch | FrameRows, info: SampleInfo) -> None:
        if isinstance(rows, FrameRows) != bool(self._rules.num_frames):
            raise RefusedError("observations are sent in another way")
        columns = dict(self._rules.columns)
        batch = rows.rows if isinstance(rows, FrameRows) else rows
        if isinstance(rows, FrameRows):
            self._check_frames(rows)
            ids = ColumnRule(np.dtype(np.int32), (self._rules.num_frames,))
            columns = {FRAME_IDS_OF.get(name, name): rule for name, rule in columns.items()}
            columns |= {name: ids for name in FRAME_IDS_OF.values() if name in columns}
        if set(batch) != columns.keys():
            raise RefusedError("not the columns of this experiment")
        for name, rule in columns.items():
            rule.check(name, batch[name])
        form, rules = self._rules.form, self._rules
        if form is not None:
            form.check(batch, info, self._allowed(rows))
        num_steps, reported = batch.count if form is None else form.num_steps(batch), info.num_env_steps
        if num_steps < rules.min_steps:
            raise RefusedError("fewer steps than an actor sends")
        if not reported - rules.num_waiting <= num_steps <= rules.num_agents * reported + rules.num_waiting:
            raise RefusedError("it has not the steps that it reports")

    def _allowed(self, rows: SampleBatch | FrameRows) -> Array | None:
        """Return which actions the masks in the observations of checked ``rows`` allow; None without masks."""
        masks = self._rules.masks
        if masks is None:
            return None
        if isinstance(rows, FrameRows):  # an observation with its mask is one frame
            return np.asarray(masks.allowed(rows.frames)[rows.rows[FRAME_IDS_OF[OBS]][:, 0]])
        return masks.allowed(rows[OBS])

    def _check_frames(self, rows: FrameRows) -> None:
        if rows.frames.shape[1:] != self._rules.frame_shape:
            raise RefusedError("frames of another shape")
        rule = self._rules.columns.get("obs")
        if rule is not None:
            ColumnRule(rule.dtype, self._rules.frame_shape).check("frames", rows.frames)
        if len(np.unique(rows.numbers)) < len(rows.numbers):
            raise RefusedError("two frames have the same number")
