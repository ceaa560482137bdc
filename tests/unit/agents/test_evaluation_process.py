"""Evaluations in a process of their own: the same episodes, and an env that fails there does not fail the trial."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rlexp.agents import evaluation as evaluator
from rlexp.agents import evaluation_process
from rlexp.agents.agent import Agent
from rlexp.agents.dqn.agent import DQNAgent
from rlexp.agents.ppo.agent import PPOAgent
from rlexp.agents.pqn.agent import PQNAgent
from rlexp.cluster.pool.pool import Actor, InlineTaskPool, TaskPool
from rlexp.config.keys.dqn import DQNConfig
from rlexp.config.keys.ppo import PPOConfig
from rlexp.config.keys.pqn import PQNConfig
from rlexp.errors import EnvError, TrialError
from rlexp.rollout import evaluation
from rlexp.rollout.evaluation import PlayedEpisodes, ignore_progress, never
from rlexp.tuning.stop_condition import CheckpointEvaluation, Reached
from tests.lab import pqn
from tests.lab.agents import TINY
from tests.lab.process_pool import ProcessTaskPool

CARTPOLE = "CartPole-v1"
FAILING_ENV = "tests.lab.failing_env:FailsOnceEnv"
PPO_TINY = {"model": {"fcnet_hiddens": [8]}, "sample_batch_size": 20, "train_batch_size": 40, "sgd_minibatch_size": 20}
GOAL = Reached("episode_reward_mean", 476.0, 475.0)

MakeAgent = Callable[..., Agent[Any]]


@pytest.fixture
def pool() -> Iterator[ProcessTaskPool]:
    pool = ProcessTaskPool()
    yield pool
    pool.stop()


def make_dqn(pool: TaskPool, env: str = CARTPOLE, **changes: Any) -> Agent[Any]:
    return DQNAgent(env, DQNConfig.model_validate({**TINY, "num_workers": 1, **changes}), pool, seed=3)


def make_ppo(pool: TaskPool, env: str = CARTPOLE, **changes: Any) -> Agent[Any]:
    return PPOAgent(env, PPOConfig.model_validate({**PPO_TINY, "num_workers": 1, **changes}), pool, seed=3)


def make_pqn(pool: TaskPool, env: str = CARTPOLE, **changes: Any) -> Agent[Any]:
    return PQNAgent(env, PQNConfig.model_validate({**pqn.TINY, "num_workers": 1, **changes}), pool, seed=3)


def failing(pool: TaskPool, folder: Path, how: str, **changes: Any) -> Agent[Any]:
    """Return an agent whose env fails in evaluations only."""
    failed = folder / "failed"
    failed.touch()
    changes["env_config"] = {"failed": str(failed), "how": how}
    changes["evaluation_config"] = {"env_config": {"always": True}}
    return make_dqn(pool, FAILING_ENV, **changes)


def evaluation_player(pool: ProcessTaskPool) -> Actor[Any] | None:
    found = [actor for actor in pool.actors() if actor.name == "evaluation"]
    return found[0] if found else None


def as_data(played: PlayedEpisodes) -> dict[str, Any]:
    own = {name: values.tolist() for name, values in played.own_metrics.items()}
    return {"returns": played.returns.tolist(), "lengths": played.lengths.tolist(), "own": own}


@pytest.mark.parametrize("make", [make_dqn, make_ppo, make_pqn])
@pytest.mark.parametrize("explore", [False, True])
def test_the_same_weights_play_the_same_episodes_as_in_the_process_of_the_trial(
    make: MakeAgent, explore: bool, pool: ProcessTaskPool
) -> None:
    changes = {"observation_filter": "MeanStdFilter", "evaluation_config": {"explore": explore}}
    agent = make(pool, **changes)
    for _ in range(2):  # the process is kept, and gets the weights of each time
        agent.train()
        apart = agent.evaluate(10)
        assert as_data(apart) == as_data(agent._evaluation.play(agent._progress.iteration, 10, never, ignore_progress))
        assert apart.is_complete
    assert len(pool.actors()) == 2
    agent.stop()
    assert pool.actors() == []


def test_callbacks_have_an_object_in_that_process(pool: ProcessTaskPool) -> None:
    agent = make_dqn(pool, callbacks="tests.lab.user_callbacks:CountsEnds")
    own = [agent.evaluate(3).own_metrics["ends"].tolist() for _ in range(2)]
    assert own == [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
    agent.stop()


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("die", "the process of evaluations died"),
        ("hang", "the process of evaluations delivered nothing for 3 s (sample_timeout_s)"),
        ("raise", "RuntimeError: this env fails"),
    ],
)
def test_an_env_that_fails_in_evaluations_does_not_fail_the_trial(
    how: str, said: str, tmp_path: Path, pool: ProcessTaskPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = failing(pool, tmp_path, how, sample_timeout_s=3)
    agent.train()
    agent.prepare_evaluation()
    assert evaluation_player(pool) is not None
    monkeypatch.setattr(evaluation_process, "START_S", 0.0)
    evaluated = CheckpointEvaluation(agent, 4, never, ignore_progress)
    row: dict[str, Any] = {}
    assert evaluated.confirms(GOAL, row)  # the reward of training counts alone
    evaluated.release()
    assert row == {}
    (event,) = agent.drain_events()
    assert event.startswith("checkpoints are not evaluated any more: ")
    assert event.endswith(said)
    assert evaluation_player(pool) is None
    assert agent.train()["training_iteration"] == 2
    agent.stop()


def test_what_is_cut_off_leaves_the_process_for_the_next_evaluation(pool: ProcessTaskPool) -> None:
    agent = make_dqn(pool)
    agent.prepare_evaluation()
    player = evaluation_player(pool)
    assert not len(agent.evaluate(10, lambda: True).returns)  # it is asked, and not waited for
    assert agent.evaluate(10).is_complete
    assert evaluation_player(pool) is player
    agent.stop()


def test_an_error_of_the_trial_itself_is_none_of_the_process(pool: ProcessTaskPool) -> None:
    agent = make_dqn(pool)
    agent.prepare_evaluation()

    def look_into_a_removed_directory() -> bool:
        raise OSError("it is gone")

    with pytest.raises(OSError, match="it is gone"):
        agent.evaluate(4, look_into_a_removed_directory)
    assert evaluation_player(pool) is not None
    agent.stop()


def test_a_process_that_still_hangs_in_what_was_cut_off_is_removed(
    tmp_path: Path, pool: ProcessTaskPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = failing(pool, tmp_path, "hang", sample_timeout_s=0.01)
    agent.prepare_evaluation()
    monkeypatch.setattr(evaluation_process, "START_S", 0.0)
    agent.evaluate(4, lambda: True)
    with pytest.raises(TrialError, match="delivered nothing"):
        agent.evaluate(4)
    assert evaluation_player(pool) is None
    agent.stop()


def test_the_progress_of_an_evaluation_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "REPORT_PERIOD_S", 0.0)
    agent = make_dqn(InlineTaskPool())
    seen: list[tuple[int, int]] = []
    played = agent.evaluate(4, report=lambda *progress: seen.append(progress))
    assert seen[0] == (0, 4)
    assert len(seen) * 4 == played.num_env_steps
    agent.stop()


def test_without_workers_an_evaluation_is_played_here(pool: ProcessTaskPool, tmp_path: Path) -> None:
    agent = failing(pool, tmp_path, "raise", num_workers=0)
    agent.prepare_evaluation()
    with pytest.raises(EnvError):
        agent.evaluate(4)
    assert pool.actors() == []
    agent.stop()


def test_without_workers_an_env_that_hangs_in_close_does_not_stop_the_trial(
    pool: ProcessTaskPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluator, "CLOSE_TIMEOUT_S", 0.2)
    agent = failing(pool, tmp_path, "close", num_workers=0, horizon=50)  # its env never ends an episode
    agent.train()
    evaluated = CheckpointEvaluation(agent, 4, never, ignore_progress)
    assert evaluated.confirms(GOAL, {})
    evaluated.release()
    assert agent.drain_events() == ["checkpoints are not evaluated any more: env.close has not returned for 0.2 s"]
    assert agent.train()["training_iteration"] == 2
    agent.stop()
