"""The trainer's side of a board: the source of its joined actors, and what their fragments may be like."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import gymnasium as gym
import numpy as np

from rlexp.agents.workers import PlayedTrial, reward_limits
from rlexp.board.messages.credentials import signed_task
from rlexp.board.messages.tasks import Task
from rlexp.board.task import board_keys_of, describe_trial
from rlexp.board.trainer.admission import ROUNDING, AdmissionRules, ColumnRule, Strikes
from rlexp.board.trainer.inbox import Inbox
from rlexp.board.trainer.link import BoardLink
from rlexp.board.trainer.source import BoardSource, BoardSourceConfig, SourceGroup
from rlexp.board.trainer.thread import BoardThread
from rlexp.cluster.pool.pool import TaskPool
from rlexp.config.keys.common import CommonConfig
from rlexp.errors import UsageError
from rlexp.rollout.source import SampleSource
from rlexp.sample_batch import ACTIONS, DISCOUNTS, NEW_OBS, OBS, REWARDS, TD_ERRORS, has_frames, num_frames

MB: Final = 1_000_000
MOST_STEPS_OF_EPISODES: Final = 1_000_000
"""Env steps of a fragment, where it has whole episodes."""
INBOX_SHARE: Final = 2
"""Messages per seat that wait in the trainer's memory; more wait in the queue, and with the actors."""


@dataclass(frozen=True)
class BoardSeats:
    """The seats of a trial on its board, as its agent knows them: :class:`~rlexp.agents.workers.JoinedActors`."""

    link: BoardLink

    def num_players(self, config: CommonConfig) -> int:
        seats = 0 if config.board_keys is None else config.board_keys.actors
        return max(config.num_workers + seats, 1)

    def beside(
        self, own: SampleSource | None, pool: TaskPool, config: CommonConfig, trial: PlayedTrial
    ) -> SampleSource:
        joined = board_source(pool, self.link, config, trial)
        return joined if own is None else SourceGroup([own, joined])

    def figures(self, source: SampleSource) -> dict[str, Any]:
        sources = source.sources if isinstance(source, SourceGroup) else (source,)
        return {"board": next(each.figures() for each in sources if isinstance(each, BoardSource))}


def board_source(pool: TaskPool, link: BoardLink, config: CommonConfig, trial: PlayedTrial) -> BoardSource:
    """Return the source of the actors that join; raises UsageError where they cannot."""
    obstacle = config.board_obstacle
    if obstacle is not None:
        raise UsageError(f"actors cannot join over a board: {obstacle}", "leave out --board")
    board = board_keys_of(config)
    source_config = BoardSourceConfig(
        num_seats=board.actors,
        min_actors=board.min_actors,
        patience_s=board.patience_s,
        weights_period_s=board.weights_period_s,
        weights_dtype=board.weights_dtype,
    )
    inbox = Inbox(
        task_id=link.task_id,
        keys=link.keys,
        rules=admission_rules(config, trial),
        strikes=Strikes(board.max_strikes, board.refused_actors),
        num_seats=board.actors,
        first_index=config.num_workers,
        window=board.window,
        max_fragment_bytes=int(board.max_fragment_mb * MB),
    )
    description = {**describe_trial(config, trial), "queue": link.board.queue_kind}
    task = Task(link.task_id, link.name, board.actors, description, link.file)
    task = signed_task(task, link.keys)
    capacity = max(INBOX_SHARE * board.actors, board.window)
    thread = BoardThread(link, task, capacity, board.beat_s, board.lease_s, board.patience_s)
    return BoardSource(pool, thread, inbox, source_config)


def admission_rules(config: CommonConfig, trial: PlayedTrial) -> AdmissionRules:
    """Return what fragments of an agent with replay are like for a trial's spaces."""
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
    # A worker makes frames of observations by the dtype of the env's space.
    framed = has_frames(space.shape, np.dtype(space.dtype))
    frames = num_frames(space.shape) if framed else 0
    return AdmissionRules(
        columns=columns,
        max_rows=steps + replay.n_step * config.num_envs_per_worker,
        max_env_steps=steps,
        num_frames=frames,
        frame_shape=(*space.shape[:-1], space.shape[-1] // frames) if framed else (),
        moments_shape=space.shape if config.observation_filter != "NoFilter" else None,
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
    """Return the bounds of a space as float32, widened a little; None where the space has none."""
    given = getattr(space, name, None)
    if given is None:
        return None
    bound = np.asarray(given, np.float64)
    slack = ROUNDING * np.maximum(np.abs(bound), 1.0)
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(bound - slack if name == "low" else bound + slack).astype(np.float32)


def _reward_rule(config: CommonConfig, env: str, n_step: int) -> ColumnRule:
    """Return the rule of sums of up to n rewards: finite, and where each is limited, within n times that."""
    limits, most = reward_limits(config, env), board_keys_of(config).max_abs_reward
    if limits is True:
        low, high = -1.0, 1.0
    elif limits is False:
        low, high = -math.inf, math.inf
    else:
        low, high = limits if isinstance(limits, tuple) else (-limits, limits)
    if most is not None and limits is not True:  # of signs, which do not become smaller with their rewards
        low, high = max(low, -most), min(high, most)
    folded = n_step * (1 + ROUNDING)
    return ColumnRule("f", (), min(low, 0.0) * folded, max(high, 0.0) * folded, itemsize=4)


def _discounts(gamma: float, n_step: int) -> np.ndarray:
    """Return 0 and γ to the powers 1 to n, in ascending order."""
    powers = {0.0, *(math.pow(gamma, step) for step in range(1, n_step + 1))}
    return np.array(sorted(powers), np.float32)
