from pathlib import Path
from typing import Any

import pytest

from rlexp.runs.checkpoints import list_checkpoints, read_checkpoint
from rlexp.tuning import stop_condition
from tests.behaviour.inline_trials import assigned, rows_of

PAYING_ENV = "tests.behaviour.paying_env:PayingEnv"
HALF_AS_MUCH = {"evaluation_config": {"env_config": {"pay": 0.5}}}
STOP = {"episode_reward_mean": 10, "training_iteration": 3}


@pytest.mark.key("checkpoint_evaluation_episodes", "stop")
@pytest.mark.parametrize(
    ("episodes", "config", "evaluated"),
    [
        (4, {}, [10.0]),
        (4, HALF_AS_MUCH, [5.0, None, None]),  # later ones have no time
        (0, HALF_AS_MUCH, [None]),
    ],
)
def test_a_trial_ends_at_a_reward_that_its_weights_reach(
    episodes: int,
    config: dict[str, Any],
    evaluated: list[float | None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stop_condition, "SHARE", 0.0)
    keys: dict[str, Any] = {"env": PAYING_ENV, "stop": STOP, "checkpoint_evaluation_episodes": episodes}
    with assigned(tmp_path, config, **keys) as assignment:
        rows = rows_of(assignment, monkeypatch)
    assert [row["episode_reward_mean"] for row in rows] == [10.0] * len(evaluated)
    assert [row.get("evaluation", {}).get("episode_reward_mean") for row in rows] == evaluated


def test_a_checkpoint_says_what_its_weights_have_played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with assigned(tmp_path, HALF_AS_MUCH, env=PAYING_ENV, stop={"episode_reward_mean": 5}) as assignment:
        rows_of(assignment, monkeypatch)
    (checkpoint,) = list_checkpoints(assignment.directory)
    metrics = read_checkpoint(checkpoint).metadata["metrics"]
    assert (metrics["episode_reward_mean"], metrics["evaluation"]["episode_reward_mean"]) == (10.0, 5.0)
    assert metrics["evaluation"]["episodes_this_iter"] == 20
