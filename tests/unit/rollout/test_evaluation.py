"""What counts as an episode: what the env ends, or the game that it says is over; and evaluations and their limits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rlexp.envs.atari import GAME_OVER, GAME_SCORE, GAME_STEPS
from rlexp.envs.make import make_vector_env
from rlexp.envs.registry import EnvConfig
from rlexp.rollout import evaluation
from rlexp.rollout.episodes import EpisodeCounter, Finished
from rlexp.rollout.evaluation import EvaluationLimits, PlayedEpisodes, play_episodes, played_to_end
from rlexp.sample_batch import Array
from tests.lab.doubles import ScriptedPolicy
from tests.lab.envs import COUNTING_ENV, ENDLESS_ENV, IDENTITY_ENV, UNEVEN_ENV, CountingEnv, IdentityEnv, UnevenEnv


def flags(*values: int) -> Any:
    return np.array(values, bool)


def found(finished: Finished | None) -> list[tuple[int, float, int]]:
    assert finished is not None
    return list(zip(finished.envs.tolist(), finished.returns.tolist(), finished.lengths.tolist(), strict=True))


def test_episodes_end_where_the_env_says_and_resets_are_no_steps() -> None:
    counter = EpisodeCounter(2)
    rewards = np.array([1.0, 10.0])
    assert counter.add(rewards, flags(0, 0), {}) is None
    assert found(counter.add(rewards, flags(1, 0), {})) == [(0, 2.0, 2)]
    assert counter.resetting.tolist() == [True, False]
    assert found(counter.add(np.array([0.0, 10.0]), flags(0, 1), {})) == [(1, 30.0, 3)]
    assert found(counter.add(np.array([1.0, 0.0]), flags(1, 0), {})) == [(0, 1.0, 1)]


@pytest.mark.parametrize("life_ends", [0, 1])
def test_games_are_reported_when_they_are_over_and_lives_are_not(life_ends: int) -> None:
    counter = EpisodeCounter(2)

    def infos(*over: int) -> dict[str, Any]:
        return {GAME_OVER: flags(*over), GAME_SCORE: np.array([50.0, 7.0]), GAME_STEPS: np.array([900, 30])}

    assert counter.add(np.ones(2), flags(life_ends, 1), infos(0, 0)) is None
    # A game may end while the env resets: its life ended on the step before.
    assert found(counter.add(np.ones(2), flags(life_ends, 0), infos(0, 1))) == [(1, 7.0, 30)]
    assert found(counter.add(np.ones(2), flags(1, 1), infos(1, 1))) == [(0, 50.0, 900), (1, 7.0, 30)]


SEED = 4
LIMITS = EvaluationLimits(max_steps=1000, timeout_s=None)


class RightPolicy(ScriptedPolicy):
    """Knows what IdentityEnv wants."""

    def compute_actions(self, obs: Array) -> Array:
        return np.asarray(obs.argmax(axis=1))


def play(
    env: str, num_envs: int, num_episodes: int, policy: ScriptedPolicy | None = None, limits: EvaluationLimits = LIMITS
) -> PlayedEpisodes:
    vector = make_vector_env(EnvConfig(env), num_envs)
    return played_to_end(play_episodes(policy or ScriptedPolicy(), vector, num_episodes, SEED, limits))


def test_returns_and_lengths_by_hand() -> None:
    played = play(COUNTING_ENV, num_envs=1, num_episodes=4)
    assert played.lengths.tolist() == [3, 7, 12, 3]
    assert played.returns.tolist() == [6, 28, 78, 6]


@pytest.mark.parametrize(("num_envs", "num_episodes"), [(1, 5), (2, 5), (5, 5), (8, 5), (3, 10)])
def test_plays_as_many_episodes_as_asked_for(num_envs: int, num_episodes: int) -> None:
    played = play(COUNTING_ENV, num_envs, num_episodes)
    assert played.is_complete
    assert len(played.returns) == len(played.lengths) == num_episodes


@pytest.mark.parametrize(("num_episodes", "num_short", "num_long"), [(8, 4, 4), (4, 2, 2), (7, 4, 3), (20, 10, 10)])
def test_short_episodes_are_not_preferred(num_episodes: int, num_short: int, num_long: int) -> None:
    # Of four envs, the even ones live for 1 step and the odd ones for 9: the first to end would nearly all be short.
    played = play(UNEVEN_ENV, 4, num_episodes)
    assert sorted(played.lengths) == [UnevenEnv.SHORT] * num_short + [UnevenEnv.LONG] * num_long
    assert played.returns.sum() == num_short


def test_acts_on_what_the_policy_sees() -> None:
    assert play(IDENTITY_ENV, 3, 30, RightPolicy()).returns.tolist() == [1.0] * 30
    blind = play(IDENTITY_ENV, 3, 30)
    assert 0 < blind.returns.sum() < 30, f"one of {IdentityEnv.NUM_ACTIONS} actions is right"


def test_the_same_seed_plays_the_same_episodes() -> None:
    first, again = (play(IDENTITY_ENV, 3, 40).returns.tolist() for _ in range(2))
    assert first == again


def test_evaluation_ends_at_its_step_limit_with_the_episodes_so_far() -> None:
    played = play(COUNTING_ENV, 2, 3, limits=EvaluationLimits(max_steps=6, timeout_s=None))
    assert (played.lengths.tolist(), played.num_wanted, played.num_env_steps) == ([3, 3], 3, 12)
    assert not played.is_complete
    assert str(played) == "2 of 3 evaluation episodes ended within 0 s, 12 env steps"


def test_evaluation_ends_at_its_time_limit_in_an_env_without_an_end() -> None:
    played = play(ENDLESS_ENV, 2, 3, limits=EvaluationLimits(max_steps=10**9, timeout_s=0.05))
    assert played.returns.tolist() == []
    assert 0.05 <= played.seconds < 5.0


def test_evaluation_reports_its_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "REPORT_PERIOD_S", 0.0)
    vector = make_vector_env(EnvConfig(COUNTING_ENV), 2)
    seen: list[tuple[int, int]] = []
    played_to_end(play_episodes(ScriptedPolicy(), vector, 2, SEED, LIMITS), lambda *progress: seen.append(progress))
    assert seen == [(0, 2), (0, 4), (2, 6)]


def test_episodes_that_the_env_had_begun_before_do_not_count() -> None:
    vector = make_vector_env(EnvConfig(COUNTING_ENV), 1)
    vector.reset(seed=1)
    for _ in range(5):
        vector.step(np.zeros(1, np.int64))
    assert played_to_end(play_episodes(ScriptedPolicy(), vector, 2, SEED, LIMITS)).lengths.tolist() == [3, 7]


class LivesEnv(CountingEnv):
    """Its episodes are lives: each second one ends a game, that scored 100 and lasted 50 steps."""

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, _ = super().step(action)
        is_over = (terminated or truncated) and int(obs[1]) % 2 == 1
        return obs, reward, terminated, truncated, {GAME_OVER: is_over, GAME_SCORE: 100.0, GAME_STEPS: 50}


def test_whole_games_are_played_where_episodes_are_lives() -> None:
    vector = SyncVectorEnv([LivesEnv] * 2, autoreset_mode=AutoresetMode.NEXT_STEP)
    played = played_to_end(play_episodes(ScriptedPolicy(), vector, 3, SEED, LIMITS))
    assert (played.returns.tolist(), played.lengths.tolist()) == ([100.0] * 3, [50] * 3)
