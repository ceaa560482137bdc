"""The key ``callbacks``: hooks are called, and their metrics are wherever metrics are."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rlexp.agents.agent import Agent
from rlexp.agents.dqn.agent import DQNAgent
from rlexp.cluster.pool.pool import InlineTaskPool
from rlexp.config.keys.apex import ApexConfig
from rlexp.config.keys.dqn import DQNConfig
from rlexp.config.keys.user_code import UserModules
from rlexp.errors import CallbackError, ConfigError
from rlexp.metrics import MOST_METRICS
from rlexp.runs.checkpoint_contents import read_checkpoint
from rlexp.runs.recorders import CsvRecorder, JsonRecorder
from tests.lab.agents import TINY, checkpoint_of, make_apex, make_dqn
from tests.lab.ppo import make_ppo
from tests.lab.pqn import make_pqn
from tests.lab.trials import assigned, results_of, rows_of, trials_of
from tests.lab.user_callbacks import CALLS, GOAL_ENV, MODULE, RECORDER, SUCCESS_RATE, GoalEnv, calls_of

EVERY_OTHER = pytest.approx(0.5, abs=0.1)
"""The success rate of GoalEnv."""


@pytest.fixture(autouse=True)
def no_calls() -> Iterator[None]:
    """Every test sees its own calls only."""
    CALLS.clear()
    yield
    CALLS.clear()


def trained(iterations: int, make: Callable[..., Agent[Any]] = make_dqn, **keys: Any) -> list[dict[str, Any]]:
    """Return the rows of a new agent on GoalEnv."""
    agent = make(GOAL_ENV, **keys)
    return [agent.train() for _ in range(iterations)]


@pytest.mark.key("callbacks")
@pytest.mark.parametrize(
    ("make", "num_workers"),
    [(make_dqn, 0), (make_apex, 2), (make_ppo, 0), (make_pqn, 0)],
    ids=["DQN", "APEX", "PPO", "PQN"],
)
def test_every_agent_calls_hooks_and_reports_their_metrics(make: Callable[..., Agent[Any]], num_workers: int) -> None:
    callbacks = [RECORDER, SUCCESS_RATE.replace("SuccessRate", "Ends")]
    rows = trained(2, make, callbacks=callbacks, num_workers=num_workers)
    ends, steps = calls_of("end"), calls_of("step")
    own = rows[-1]["custom_metrics"]
    assert own["steps_mean"] == own["steps_min"] == own["steps_max"] == GoalEnv.STEPS
    assert own["ended_mean"] == 1.0
    # Of several workers, fragments may have been played that have not arrived yet.
    played_ahead = 0 if num_workers == 0 else 3 * 2 * 2
    assert 0 <= len(ends) - rows[-1]["episodes_total"] <= played_ahead
    assert 0 <= len(steps) - rows[-1]["timesteps_total"] <= played_ahead * 2 * GoalEnv.STEPS
    assert [iteration.row["training_iteration"] for iteration in calls_of("iteration")] == [1, 2]


@pytest.mark.key("callbacks")
def test_without_callbacks_rows_have_no_metrics_of_their_own() -> None:
    (row,) = trained(1)
    assert "custom_metrics" not in row


@pytest.mark.key("callbacks")
def test_arguments_and_iterations_reach_the_class() -> None:
    first, second = trained(2, callbacks={SUCCESS_RATE: {"bonus": 2.5}})
    assert second["custom_metrics"]["success_mean"] == EVERY_OTHER
    assert first["custom_metrics"]["bonus"] == 2.5
    assert [row["custom_metrics"]["iterations"] for row in (first, second)] == [1, 2]


@pytest.mark.key("callbacks")
def test_an_iteration_cannot_replace_what_episodes_report() -> None:
    callbacks = [RECORDER, {f"{MODULE}:ReportsIterations": {"prefix": "steps_mean", "number": 1}}]
    with pytest.raises(CallbackError, match="on_iteration reports the metric steps_mean, but episodes have"):
        trained(1, callbacks=callbacks)


@pytest.mark.key("callbacks")
def test_iterations_report_a_bounded_number_of_names() -> None:
    callbacks = {f"{MODULE}:ReportsIterations": {"prefix": "x", "number": MOST_METRICS - 40}}
    (row,) = trained(1, callbacks=callbacks)
    assert len(row["custom_metrics"]) == MOST_METRICS - 40
    with pytest.raises(CallbackError, match=f"on_iteration reports more than {MOST_METRICS} own metrics: x"):
        trained(2, callbacks=callbacks)


@pytest.mark.key("callbacks", "metrics_smoothing_episodes")
def test_metrics_are_those_of_the_newest_episodes() -> None:
    (row,) = trained(1, callbacks=SUCCESS_RATE, metrics_smoothing_episodes=1)
    own = row["custom_metrics"]
    assert own["success_mean"] == own["success_min"] == own["success_max"]


@pytest.mark.key("callbacks")
def test_a_row_cannot_be_changed_by_a_hook() -> None:
    (row,) = trained(1, callbacks=RECORDER)
    (iteration,) = calls_of("iteration")
    with pytest.raises(TypeError):
        iteration.row["episode_reward_mean"] = 1000.0
    iteration.row["info"]["num_steps_sampled"] = -1
    assert row["info"]["num_steps_sampled"] > 0


@pytest.mark.key("callbacks", "evaluation_interval")
def test_evaluations_report_metrics_of_their_own() -> None:
    first, second = trained(2, callbacks=[SUCCESS_RATE, RECORDER], evaluation_interval=2, evaluation_num_episodes=4)
    assert "evaluation" not in first
    # Each of the four envs begins with an episode without success.
    assert second["evaluation"]["custom_metrics"]["success_mean"] == 0.0
    assert second["evaluation"]["custom_metrics"]["steps_mean"] == GoalEnv.STEPS
    evaluated = [end for end in calls_of("end") if end.episode.is_evaluation]
    assert len(evaluated) == 4
    assert second["custom_metrics"]["success_mean"] == EVERY_OTHER


@pytest.mark.key("callbacks", "stop")
def test_a_trial_stops_by_its_own_metric(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys: dict[str, Any] = {"env": GOAL_ENV, "stop": {"custom_metrics/iterations": 3, "training_iteration": 9}}
    with assigned(tmp_path, {"callbacks": SUCCESS_RATE}, **keys) as assignment:
        rows = rows_of(assignment, monkeypatch)
    assert [row["done"] for row in rows] == [False, False, True]


@pytest.mark.key("callbacks", "checkpoint_freq")
def test_checkpoints_are_announced_when_they_are_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys: dict[str, Any] = {"env": GOAL_ENV, "stop": {"training_iteration": 3}, "checkpoint_freq": 2}
    with assigned(tmp_path, {"callbacks": RECORDER}, **keys) as assignment:
        rows_of(assignment, monkeypatch)
        saved = calls_of("checkpoint")
        written = [read_checkpoint(checkpoint.path).metadata["metrics"] for checkpoint in saved]
        for rows in ([checkpoint.row for checkpoint in saved], written):
            assert [row["training_iteration"] for row in rows] == [2, 3]


@pytest.mark.key("callbacks")
def test_declared_metrics_have_columns_from_the_first_row_on(tmp_path: Path) -> None:
    rows = trained(20, callbacks=SUCCESS_RATE, timesteps_per_iteration=1, sample_batch_size=2)
    for recorder in (CsvRecorder(tmp_path), JsonRecorder(tmp_path)):
        for row in rows:
            recorder.record({**row, "trial_name": "t"})
        recorder.close()
    with (tmp_path / "progress.csv").open(encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    assert table[0]["custom_metrics/success_mean"] == ""
    assert float(table[-1]["custom_metrics/success_mean"]) == rows[-1]["custom_metrics"]["success_mean"]
    lines = (tmp_path / "result.json").read_text(encoding="utf-8").splitlines()
    assert json.loads(lines[0])["custom_metrics"]["success_mean"] is None


@pytest.mark.key("callbacks")
def test_a_resumed_agent_goes_on_with_metrics_and_state(tmp_path: Path) -> None:
    callbacks = [SUCCESS_RATE, RECORDER]
    agent = make_dqn(GOAL_ENV, callbacks=callbacks)
    agent.train()
    checkpoint = checkpoint_of(agent, tmp_path)
    num_starts = len(calls_of("start"))
    expected = agent.train()["custom_metrics"]
    num_starts_after = len(calls_of("start")) - num_starts
    CALLS.clear()
    (row,) = trained(1, callbacks=callbacks, checkpoint=checkpoint)
    assert row["custom_metrics"] == expected
    assert expected["iterations"] == 2
    assert len(calls_of("start")) == num_starts_after


@pytest.mark.key("callbacks")
def test_what_a_hook_of_an_iteration_raises_ends_the_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"callbacks": {f"{MODULE}:Fails": {"hook": "on_iteration"}}}
    with assigned(tmp_path, config, env=GOAL_ENV, stop={"training_iteration": 3}) as assignment:
        with pytest.raises(CallbackError, match=r"KeyError: 'is_success' \(on_iteration, the trial's process\)"):
            rows_of(assignment, monkeypatch)
        (error,) = (tmp_path / "out").rglob("error.txt")
        assert "user_callbacks.py:" in error.read_text(encoding="utf-8").splitlines()[0]


NOTED = (
    "stop names custom_metrics/sucess_mean, which the callbacks have not reported in the first iteration with "
    "episodes; is custom_metrics/success_mean meant?"
)


@pytest.mark.key("callbacks")
@pytest.mark.parametrize(
    ("stop", "events"),
    [
        ({"custom_metrics/sucess_mean": 1, "training_iteration": 3}, [NOTED]),
        ({"custom_metrics/success_mean": 1, "training_iteration": 2}, []),
    ],
)
def test_a_metric_that_stop_names_but_nobody_reports_is_noted(
    stop: dict[str, float], events: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with assigned(tmp_path, {"callbacks": SUCCESS_RATE}, env=GOAL_ENV, stop=stop) as assignment:
        results = results_of(assignment, monkeypatch)
    assert [event for result in results for event in result["events"]] == events


class TestFiles:
    """What is said of files before anything runs."""

    def problems(self, folder: Path, config: dict[str, Any] | None = None, **keys: Any) -> list[str]:
        with pytest.raises(ConfigError) as caught:
            trials_of(folder, config, **keys)
        return [problem.message for problem in caught.value.problems]

    @pytest.mark.key("callbacks")
    @pytest.mark.parametrize(
        "keys",
        [
            {"stop": {"custom_metrics/success_mean": 0.9}},
            {"checkpoint_score_attr": "min-custom_metrics/success_mean"},
            {"search": {"metric": "custom_metrics/success_mean"}},
        ],
        ids=lambda keys: next(iter(keys)),
    )
    def test_own_metrics_need_callbacks(self, tmp_path: Path, keys: dict[str, Any]) -> None:
        grid = {"lr": {"grid_search": [1e-3, 1e-4]}}
        messages = set(self.problems(tmp_path, grid, **keys))
        assert len(messages) == 1
        assert messages.pop().endswith("success_mean is never reported, because there are no callbacks")
        assert len(trials_of(tmp_path, {**grid, "callbacks": SUCCESS_RATE}, **keys)) == 2

    @pytest.mark.key("callbacks")
    def test_own_metrics_of_evaluations_need_evaluations(self, tmp_path: Path) -> None:
        keys = {"stop": {"evaluation/custom_metrics/success_mean": 0.9}}
        (message,) = self.problems(tmp_path, {"callbacks": SUCCESS_RATE}, **keys)
        assert message.endswith("success_mean is never reported, because there are no evaluations")
        assert trials_of(tmp_path, {"callbacks": SUCCESS_RATE, "evaluation_interval": 1}, **keys)

    @pytest.mark.key("callbacks")
    def test_own_metrics_may_be_negative(self, tmp_path: Path) -> None:
        assert trials_of(tmp_path, {"callbacks": SUCCESS_RATE}, stop={"custom_metrics/distance_mean": -0.5})

    @pytest.mark.key("callbacks")
    @pytest.mark.parametrize(
        ("value", "message"),
        [
            ({"on_episode_end": "print"}, "rlexp does not call functions by the names of hooks"),
            ("<MyCallbacks>", "is a class of RLlib"),
            ("my.module.Class", "config.callbacks[0] must be package.module:Class"),
            (["a:B", 3], "config.callbacks[1] must be package.module:Class"),
        ],
    )
    def test_other_values_are_refused(self, tmp_path: Path, value: Any, message: str) -> None:
        assert any(message in problem for problem in self.problems(tmp_path, {"callbacks": value}))

    @pytest.mark.key("callbacks")
    @pytest.mark.parametrize("value", [None, [], {}, {"on_episode_end": None}, "<DefaultCallbacks>"])
    def test_values_that_ask_for_nothing_are_accepted(self, tmp_path: Path, value: Any) -> None:
        (trial,) = trials_of(tmp_path, {"callbacks": value})
        assert trial.experiment.config.callbacks == ()

    @pytest.mark.key("callbacks")
    def test_classes_are_parts_of_the_users_own(self, tmp_path: Path) -> None:
        (trial,) = trials_of(tmp_path, {"callbacks": [{SUCCESS_RATE: {"bonus": 1}}, RECORDER]})
        parts = list(trial.experiment.config.user_parts())
        assert [(part.name, dict(part.kwargs)) for part in parts] == [(SUCCESS_RATE, {"bonus": 1}), (RECORDER, {})]
        assert MODULE in trial.experiment.named_modules

    @pytest.mark.key("callbacks")
    @pytest.mark.parametrize("config", [DQNConfig, ApexConfig])
    def test_actors_cannot_join_a_trial_with_callbacks(self, config: type[DQNConfig]) -> None:
        assert config.model_validate(TINY).board_obstacle is None
        obstacle = config.model_validate({**TINY, "callbacks": RECORDER}).board_obstacle
        assert obstacle is not None
        assert "callbacks" in obstacle

    @pytest.mark.key("callbacks")
    def test_a_file_that_was_written_is_read_again(self, tmp_path: Path) -> None:
        (trial,) = trials_of(tmp_path, {"callbacks": [{SUCCESS_RATE: {"bonus": 1}}, RECORDER]})
        dumped = trial.experiment.model_dump(mode="json")
        assert type(trial.experiment).model_validate(dumped).config.callbacks == trial.experiment.config.callbacks


@pytest.mark.key("callbacks")
def test_a_class_beside_the_file_is_found(tmp_path: Path) -> None:
    (tmp_path / "callbacks_beside_the_file.py").write_text(
        "from rlexp.callbacks import Callbacks\n\n\n"
        "class Mine(Callbacks):\n"
        "    def on_episode_end(self, end):\n"
        "        end.metrics['mine'] = 3\n",
        encoding="utf-8",
    )
    modules = UserModules(folders=(str(tmp_path),))
    config = DQNConfig.model_validate({**TINY, "callbacks": "callbacks_beside_the_file:Mine"})
    agent = DQNAgent(GOAL_ENV, config, InlineTaskPool(), 0, modules=modules)
    row = agent.train()
    agent.stop()
    assert row["custom_metrics"]["mine_mean"] == 3.0
