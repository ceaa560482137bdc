"""What a key that is typed in part can become."""

from __future__ import annotations

import pytest

from rlexp.config.keys.agents import AGENTS
from rlexp.config.keys.key_table import key_table
from rlexp.config.reference.candidates import explained_from, overrides_from


def texts(typed: str, *agents: str) -> list[str]:
    return [candidate.text for candidate in overrides_from(typed, agents)]


def test_first_level_has_groups_and_keys_beside_config() -> None:
    found = texts("")
    assert {"config.", "stop.", "search.", "env=", "run="} <= set(found)
    assert "lr=" not in found


@pytest.mark.parametrize("typed", ["config.train_b", "train_b"])
def test_keys_of_config_with_and_without_their_group(typed: str) -> None:
    group = typed.removesuffix("train_b")
    assert texts(typed, "DQN") == [f"{group}train_batch_size=", f"{group}train_batch_size=32"]
    assert texts(typed, "APEX") == [f"{group}train_batch_size=", f"{group}train_batch_size=512"]


def test_a_group_alone_becomes_its_keys() -> None:
    assert texts("config.mode") == texts("config.model.")
    assert "config.model.fcnet_hiddens=" in texts("config.mode")
    assert not any(text.endswith(".") for text in texts("config.optimizer."))


def test_a_key_alone_comes_with_its_default_and_named_values() -> None:
    assert texts("config.lr", "DQN") == ["config.lr=", "config.lr_schedule="]
    assert texts("config.gam", "DQN") == ["config.gamma=", "config.gamma=0.99"]
    assert texts("double_q", "DQN") == ["double_q=", "double_q=true", "double_q=false"]
    assert texts("batch_mode=", "PPO") == [
        "batch_mode=",
        "batch_mode=truncate_episodes",
        "batch_mode=complete_episodes",
    ]
    assert texts("batch_mode=c", "PPO") == ["batch_mode=complete_episodes"]


def test_metrics_stop_trials() -> None:
    assert "stop.timesteps_total=" in texts("stop.")
    assert len(texts("stop.episode_reward_me")) == 2


@pytest.mark.parametrize("run", AGENTS)
def test_every_key_of_an_agent_can_be_reached(run: str) -> None:
    """Each candidate is a key or leads to some, and no key is left out."""
    reached, open_ = set(), [""]
    while open_:
        for text in texts(open_.pop(), run):
            if text.endswith("."):
                open_.append(text)
            else:
                reached.add(text.partition("=")[0])
    groups = {path[:-1] for path in key_table(run)} | {("stop",)}
    leaves = {".".join(path) for path in key_table(run) if path not in groups}
    assert {name for name in reached if not name.startswith("stop.")} == leaves


def test_keys_of_other_agents_are_left_out() -> None:
    assert "config.clip_param=" in texts("config.", "PPO")
    assert "config.clip_param=" not in texts("config.", "DQN")
    assert "config.clip_param=" in texts("config.")
    assert {"config.clip_param=", "config.double_q="} <= set(texts("config.", "PPO", "DQN"))


def test_unknown_keys_become_nothing() -> None:
    assert texts("config.nope") == texts("nope=") == texts("config.model.nope=1") == []


def test_explained_names() -> None:
    names = {candidate.text for candidate in explained_from("")}
    assert {"DQN", "lr", "config.lr", "asha", "grid_search", "episode_reward_mean"} <= names
    assert [candidate.text for candidate in explained_from("logu")] == ["loguniform"]
    assert explained_from("nonsense") == []


def test_meanings_are_one_short_line() -> None:
    meanings = [candidate.meaning for candidate in (*overrides_from("config."), *explained_from(""))]
    assert max(map(len, meanings)) <= 60
    assert not any("\n" in meaning or "``" in meaning for meaning in meanings)
