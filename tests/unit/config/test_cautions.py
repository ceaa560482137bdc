"""Wrappers that can be trained with, but lead to what few mean, are a notice at the key that lists them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rlexp.config.load import Plan

Load = Callable[..., Plan]
NORMALIZED_OBSERVATIONS = "gymnasium.wrappers:NormalizeObservation"


def messages(plan: Plan) -> list[str]:
    return [notice.message for notice in plan.notices]


@pytest.mark.parametrize("run", ["PPO", "DQN", "APEX"])
@pytest.mark.parametrize(
    ("wrapper", "instead"),
    [
        (NORMALIZED_OBSERVATIONS, "observation_filter: MeanStdFilter shares and saves them"),
        ("gymnasium.wrappers.stateful_observation:NormalizeObservation", "observation_filter: MeanStdFilter"),
        ("{gymnasium.wrappers:NormalizeReward: {gamma: 0.9}}", "clip_rewards limits only"),
    ],
)
def test_statistics_that_no_checkpoint_has_are_a_notice(load_ppo: Load, run: str, wrapper: str, instead: str) -> None:
    (notice,) = load_ppo(f"num_workers: 0, env_wrappers: [{wrapper}]", run=run).notices
    assert notice.where == "f.yaml:5:28"
    assert notice.message.startswith("config.env_wrappers names Normalize")
    assert instead in notice.message


def test_each_wrapper_is_noted_once(load_ppo: Load) -> None:
    twice = f"[{NORMALIZED_OBSERVATIONS}, {NORMALIZED_OBSERVATIONS}]"
    assert len(messages(load_ppo(f"num_workers: 0, env_wrappers: {twice}"))) == 1


def test_other_wrappers_are_not_noted(load_ppo: Load) -> None:
    wrappers = "[gymnasium.wrappers:FlattenObservation, mine:NormalizeObservation]"
    assert messages(load_ppo(f"num_workers: 0, env_wrappers: {wrappers}")) == []


def test_notices_of_an_agents_own_keys_are_beside_those_of_wrappers(load_ppo: Load) -> None:
    keys = f"num_workers: 0, env_wrappers: [{NORMALIZED_OBSERVATIONS}], prioritized_replay_beta: 0.9"
    assert ["env_wrappers" in message for message in messages(load_ppo(keys, run="DQN"))] == [True, False]
