"""``rlexp explain``: every name that a file or a result may have is explained."""

from __future__ import annotations

from typing import get_args

import pytest

from rlexp.config.keys.dqn import DQNConfig
from rlexp.config.keys.metrics import KNOWN_METRICS
from rlexp.config.keys.ppo import PPOConfig
from rlexp.config.keys.search import SearchConfig
from rlexp.config.reference.explain import named_values
from rlexp.config.space.samplers import GRID, PYTHON_KEYS, SAMPLERS
from rlexp.errors import UsageError
from rlexp.runs.rows import COLUMNS
from rlexp.terminal.explanations import print_explanation

SEARCHERS = [name for each in get_args(SearchConfig.model_fields["searcher"].annotation) for name in get_args(each)]
SCHEDULERS = list(get_args(SearchConfig.model_fields["scheduler"].annotation))


def explained(name: str | None, capsys: pytest.CaptureFixture[str]) -> str:
    print_explanation(name)
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    return printed


@pytest.mark.parametrize("name", [*COLUMNS, *DQNConfig.AGENT_COLUMNS, *PPOConfig.AGENT_COLUMNS, *KNOWN_METRICS])
def test_every_column_of_a_result_is_explained(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = explained(name, capsys).splitlines()
    assert lines[0] == f"{name} (metric)"
    assert len(lines) > 1


@pytest.mark.parametrize("name", [GRID, PYTHON_KEYS[0], *SAMPLERS, *SEARCHERS, *SCHEDULERS])
def test_every_sampler_searcher_and_scheduler_is_explained(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    first, *rest = explained(name, capsys).splitlines()
    assert first.startswith(f"{name} (")
    assert any(line.startswith("  example: ") for line in rest)


def test_explained_names_exist() -> None:
    known = {
        *COLUMNS,
        *DQNConfig.AGENT_COLUMNS,
        *PPOConfig.AGENT_COLUMNS,
        *KNOWN_METRICS,
        GRID,
        PYTHON_KEYS[0],
        *SAMPLERS,
        *SEARCHERS,
        *SCHEDULERS,
    }
    assert {each.name for each in named_values()} == known


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("replay_fill", "info/replay_fill (metric)"),
        ("loss", "info/learner/loss (metric)"),
        ("num_env_steps_sampled_lifetime", "timesteps_total (metric)"),
        ("env_runners/episode_return_mean", "episode_reward_mean (metric)"),
        ("asha", "  keys:    time_attr, grace_period, reduction_factor, brackets"),
        ("search.pbt.quantile_fraction", "  default: 0.25"),
        ("clip_param", "  default: 0.3 (PPO)"),
    ],
)
def test_explanation_has_other_spellings_and_keys_of_groups(
    name: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert expected in explained(name, capsys).splitlines()


def test_defaults_in_the_list_are_not_cut(capsys: pytest.CaptureFixture[str]) -> None:
    assert "..." not in explained(None, capsys)
    assert "truncate_episodes" in explained("PPO", capsys)


@pytest.mark.parametrize(
    ("name", "hint"), [("loguniforms", "loguniform"), ("episode_reward_maen", "episode_reward_mean")]
)
def test_misspelt_name_is_answered_with_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(UsageError, match=f"unknown name {name}") as caught:
        print_explanation(name)
    assert caught.value.hint == f"did you mean {hint}?"
