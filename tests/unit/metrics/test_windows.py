from __future__ import annotations

import math

import numpy as np

from rlexp.metrics import EpisodeSummary, EpisodeWindow, Mean


def test_empty_episode_window_is_nan() -> None:
    summary = EpisodeWindow(3).summary()
    figures = (summary.reward_mean, summary.reward_min, summary.reward_max, summary.len_mean)
    assert all(math.isnan(figure) for figure in figures)


def test_episode_window_by_hand() -> None:
    window = EpisodeWindow(10)
    window.extend(np.array([1.0, 4.0]), np.array([2, 5]))
    window.extend(np.array([-2.0]), np.array([5]))
    assert window.summary() == EpisodeSummary(reward_mean=1.0, reward_min=-2.0, reward_max=4.0, len_mean=4.0)


def test_episode_window_keeps_newest_episodes() -> None:
    window = EpisodeWindow(2)
    window.extend(np.array([100.0, 1.0]), np.array([100, 1]))
    window.extend(np.array([3.0]), np.array([3]))
    assert window.summary() == EpisodeSummary(reward_mean=2.0, reward_min=1.0, reward_max=3.0, len_mean=2.0)


def test_episode_window_extended_by_none_is_unchanged() -> None:
    window = EpisodeWindow(2)
    window.extend(np.array([3.0]), np.array([3]))
    before = window.summary()
    window.extend(np.empty(0), np.empty(0, np.int64))
    assert window.summary() == before


def test_mean_drain_resets() -> None:
    mean = Mean()
    for value in (1.0, 2.0, 6.0):
        mean.add(value)
    assert mean.drain() == 3.0
    mean.add(10.0)
    assert mean.drain() == 10.0


def test_mean_of_nothing_is_zero() -> None:
    assert Mean().drain() == 0.0
