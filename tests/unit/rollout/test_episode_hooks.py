"""Each hook is called once for what it is named after, with what the env returned, however steps reach the learner."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv, VectorEnv

from rlexp.callbacks import Callbacks, EpisodeEnd, EpisodeStep
from rlexp.config.keys.user_code import UserPart
from rlexp.envs.atari import GAME_OVER, GAME_SCORE, GAME_STEPS
from rlexp.envs.make import make_vector_env
from rlexp.envs.native_vectors import info_of
from rlexp.envs.registry import EnvConfig, FrameConfig
from rlexp.errors import CallbackError, UsageError
from rlexp.rollout import episodes as episode_hooks
from rlexp.rollout.episodes import EpisodeCounter, EpisodeHooks, Episodes, VectorStep, make_episode_hooks
from rlexp.rollout.evaluation import EvaluationLimits, play_episodes, played_to_end
from rlexp.rollout.fragment import SampleInfo
from rlexp.rollout.user_callbacks import CallbackClasses, UserCallbacks
from rlexp.rollout.worker import RolloutWorker, WorkerSpec
from tests.lab.doubles import ScriptedPolicy
from tests.lab.envs import (
    COUNTING_ENV,
    OPAQUE_ENV,
    UNEVEN_ENV,
    CountingEnv,
    CountingVectorEnv,
    episode_length,
    episode_terminates,
)
from tests.lab.parallel import LIVES, RELAY, Relay
from tests.lab.rollout import spec_of, whole
from tests.lab.user_callbacks import CALLS, GOAL_ENV, GoalEnv, calls_of, classes_of

NUM_ENVS = 3
FRAMES = FrameConfig("deepmind", 42, grayscale=True, framestack=True)


@pytest.fixture(autouse=True)
def no_calls() -> Iterator[None]:
    """Every test sees its own calls only."""
    CALLS.clear()
    yield
    CALLS.clear()


def spec_with(*names: str, env: str = COUNTING_ENV, num_envs: int = NUM_ENVS, **rollout: Any) -> WorkerSpec:
    return replace(spec_of(env, ScriptedPolicy, num_envs, **rollout), callbacks=classes_of(*names))


def sampled(worker: RolloutWorker, num_steps: int) -> list[SampleInfo]:
    """Return the reports of fragments until so many env steps were sampled."""
    infos: list[SampleInfo] = []
    while sum(info.num_env_steps for info in infos) < num_steps:
        infos.append(worker.sample(0)[1])
    return infos


def episodes_of(infos: list[SampleInfo]) -> Episodes:
    return Episodes.join([info.episodes for info in infos])


def play(spec: WorkerSpec, num_steps: int, state: Mapping[str, Any] | None = None) -> list[SampleInfo]:
    """Return the reports of the next env steps of a worker that goes on from ``state``; its calls are in CALLS."""
    worker = RolloutWorker(spec)
    if state is not None:
        worker.load(state)
    infos = sampled(worker, num_steps)
    worker.stop()
    return infos


def saved(spec: WorkerSpec, change: Callable[[], None] = lambda: None) -> tuple[dict[str, Any], int]:
    """Return the state of a worker after 50 env steps and a ``change``, and how many episodes have ended."""
    worker = RolloutWorker(spec)
    num_ends = len(episodes_of(sampled(worker, 50)).returns)
    change()
    state = copy.deepcopy(worker.state())
    worker.stop()
    assert num_ends > 0
    assert state is not None
    return state, num_ends


@pytest.mark.parametrize("batch_mode", ["truncate_episodes", "complete_episodes"])
@pytest.mark.parametrize("fragment_length", [1, 4, 25])
def test_hooks_are_called_once_per_start_step_and_end(fragment_length: int, batch_mode: str) -> None:
    infos = play(spec_with("Recorder", fragment_length=fragment_length, batch_mode=batch_mode), 200)
    episodes = episodes_of(infos)
    starts, steps, ends = calls_of("start"), calls_of("step"), calls_of("end")
    assert len(steps) == sum(info.num_env_steps for info in infos)
    assert [end.episode_return for end in ends] == episodes.returns.tolist()
    assert [end.length for end in ends] == episodes.lengths.tolist() == episodes.own_metrics["steps"].tolist()
    assert 0 <= len(starts) - len(ends) <= NUM_ENVS
    numbers = [(start.episode.env_index, start.episode.number) for start in starts]
    assert len(set(numbers)) == len(numbers)
    assert {id(end.episode) for end in ends} <= {id(start.episode) for start in starts}


def test_hooks_see_what_the_env_returned() -> None:
    play(spec_with("Recorder"), 300)
    assert [start.obs.tolist()[1:] for start in calls_of("start")] == [
        [start.episode.number, 0] for start in calls_of("start")
    ]
    for step in calls_of("step"):
        assert step.obs[1:].tolist() == [step.episode.number, step.length]
        assert step.reward == step.length
        assert step.episode_return == sum(range(step.length + 1))
        assert step.action == 0
    for end in calls_of("end"):
        number = end.episode.number
        assert end.obs[1:].tolist() == [number, episode_length(number)]
        assert end.terminated is not end.truncated
        assert end.terminated is episode_terminates(number)
        assert end.episode.worker_index == 0
        assert not end.episode.is_evaluation


def test_the_env_of_an_episode_is_not_reset_before_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    at_end: list[tuple[int, int]] = []

    def note(self: Any, end: EpisodeEnd) -> None:
        assert end.episode.env is not None
        env = end.episode.env.unwrapped
        assert isinstance(env, GoalEnv)
        at_end.append((env._episode, env._step))

    monkeypatch.setattr("tests.lab.user_callbacks.Ends.on_episode_end", note)
    play(spec_with("Ends", "Recorder", env=GOAL_ENV), 60)
    assert at_end == [(end.episode.number, GoalEnv.STEPS) for end in calls_of("end")]


def test_infos_are_those_of_one_env() -> None:
    play(spec_with("Recorder", env=GOAL_ENV), 60)
    for start in calls_of("start"):
        assert start.info == {"level": start.episode.number}
    for step in calls_of("step"):
        succeeds = step.length == GoalEnv.STEPS and step.episode.number % 2 == 1
        assert step.info == {"is_success": succeeds, "nested": {"step": step.length}}


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("kind", ["TellingEnv", "TellingAgents"])
def test_infos_of_envs_may_differ_in_type_and_shape(kind: str, num_envs: int) -> None:
    play(spec_with("Recorder", env=f"{__name__}:{kind}", num_envs=num_envs), 60)
    for step in calls_of("step"):
        assert repr(step.info) == repr(told(step.length))


def test_a_hook_may_keep_and_change_an_info(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Any] = []

    def keep(self: Any, step: EpisodeStep) -> None:
        kept.append((step.length, step.info["place"], step.info["nested"].pop("place")))
        step.info["place"] += 0.25

    monkeypatch.setattr("tests.lab.user_callbacks.Recorder.on_episode_step", keep)
    play(spec_with("Recorder", env=f"{__name__}:ReusingEnv"), 60)
    assert all(place == nested + 0.25 == length + 0.25 for length, place, nested in kept)


def told(number: int) -> dict[Any, Any]:
    """Return an info whose types and shapes depend on the number of a step."""
    return {
        "score": number + 0.9 if number % 2 else number,
        "winner": [None, "red", 1, {"a": number}, np.zeros(number)][number % 5],
        "_score": "high",
        3: number,
    }


class TellingEnv(CountingEnv):
    """An env whose envs come into different steps."""

    def step(self, action: int) -> Any:
        return *super().step(action)[:4], told(self._step)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        obs, info = super().reset(seed=seed, options=options)
        if seed is not None:
            self._episode += seed % 3
        return obs, info


class TellingAgents(Relay):
    """Agents of whom one comes later."""

    def step(self, actions: Mapping[str, Any]) -> Any:
        *rest, infos = super().step(actions)
        return *rest, {agent: told(self._step - self._lives[agent][0]) for agent in infos}


class ReusingEnv(CountingEnv):
    """Returns the same arrays with each step."""

    def __init__(self) -> None:
        super().__init__()
        self._place = np.zeros(1)

    def step(self, action: int) -> Any:
        step = super().step(action)
        self._place[:] = self._step
        return *step[:4], {"place": self._place, "nested": {"place": self._place}}


def test_an_info_that_only_some_envs_gave_is_only_theirs() -> None:
    infos = {"a": np.array([1, 0]), "_a": np.array([True, False]), "_b": np.array([2, 3]), "c": np.array([4, 5])}
    nested = {"d": {"e": np.array([0, 6]), "_e": np.array([False, True])}, "_d": np.array([False, True])}
    assert info_of(infos | nested, 0, 2) == {"a": 1, "_b": 2, "c": 4}
    assert info_of(infos | nested, 1, 2) == {"_b": 3, "c": 5, "d": {"e": 6}}


@pytest.mark.parametrize(
    "value", [60.0, np.float32(60), "fast", None, np.arange(5), [1, 2, 3, 4], np.array(7)], ids=repr
)
def test_an_info_of_all_envs_together_is_given_to_each(value: Any) -> None:
    infos: dict[Any, Any] = {0: 1, "fps": value, "score": np.array([1, 2]), "listed": [3, 4], "nested": {"deep": value}}
    for index in range(2):
        info: dict[Any, Any] = info_of(infos, index, 2)
        assert info["fps"] is value
        assert info[0] == 1
        assert info["nested"]["deep"] is value
        assert (info["score"], info["listed"]) == (1 + index, 3 + index)


def test_a_vector_env_may_return_one_info_for_all_its_envs() -> None:
    play(spec_with("Recorder", env="tests.unit.rollout.test_episode_hooks:TimedVectorEnv"), 30)
    assert {step.info["fps"] for step in calls_of("step")} == {60.0}


class TimedVectorEnv(CountingVectorEnv):
    """Says of all its envs together how fast they were; masks no action in its infos, or by a method."""

    def __init__(self, num_envs: int, place: str | None = None) -> None:
        super().__init__(num_envs)
        masks = np.ones((num_envs, 1000), bool)
        self._masks = {"action_mask": masks} if place == "info" else {}
        if place == "method":
            self.action_masks = lambda: masks

    def reset(self, **kwargs: Any) -> Any:
        return super().reset(**kwargs)[0], self._masks

    def step(self, actions: Any) -> Any:
        return *super().step(actions)[:4], {"fps": 60.0, **self._masks}


@pytest.mark.parametrize("place", [None, "info", "method"])
def test_hooks_see_infos_of_a_vector_env_that_a_horizon_cuts(place: str | None) -> None:
    config = EnvConfig(f"{__name__}:TimedVectorEnv", {"place": place}, horizon=2, action_mask="auto")
    vector = make_vector_env(config, 2)
    vector.reset(seed=0)
    infos = vector.step(np.zeros(2, np.int64))[4]
    assert [info_of(infos, index, 2).pop("fps") for index in range(2)] == [60.0, 60.0]
    assert ("action_mask" in infos) == (place is not None)


def test_hooks_are_called_ahead_where_workers_sample_ahead() -> None:
    infos = play(spec_with("Recorder", fragment_length=4, sample_async=True), 200)
    ahead = len(calls_of("step")) - sum(info.num_env_steps for info in infos)
    assert 0 <= ahead <= 4 * NUM_ENVS
    assert episodes_of(infos).own_metrics["steps"].tolist() == episodes_of(infos).lengths.tolist()


def test_a_hook_that_is_not_written_is_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episode_hooks, "EpisodeStep", None)
    monkeypatch.setattr(episode_hooks, "EpisodeStart", None)
    episodes = episodes_of(play(spec_with("Ends"), 100))
    assert episodes.own_metrics["ended"].tolist() == [1.0] * len(episodes.returns)


def test_without_hooks_for_episodes_nothing_calls_any() -> None:
    vector = make_vector_env(EnvConfig(COUNTING_ENV), 1)
    idle = CallbackClasses((UserPart("config.callbacks", "rlexp.callbacks:Callbacks"),)).make("here")
    assert make_episode_hooks(idle, vector, 0) is None
    assert make_episode_hooks(classes_of("Ends").make("here"), vector, 0) is not None


def test_own_metrics_are_those_of_reported_envs() -> None:
    episodes = episodes_of(play(spec_with("Recorder", num_envs=2, reported_envs=(False, True)), 100))
    assert len(calls_of("end")) == len(episodes.returns)
    assert episodes.own_metrics["steps"].tolist() == episodes.lengths[episodes.reported].tolist()
    assert 0 < episodes.reported.sum() < len(episodes.reported)


def test_own_metrics_of_agents_are_those_of_reported_envs() -> None:
    episodes = episodes_of(play(spec_with("Recorder", env=RELAY, num_envs=2, reported_envs=(False, True)), 60))
    of_reported = [end.length for end in calls_of("end") if end.episode.env_index >= len(LIVES)]
    assert episodes.own_metrics["steps"].tolist() == of_reported
    assert 0 < len(of_reported) < len(calls_of("end"))


def test_hooks_of_several_classes_are_called_in_order() -> None:
    episodes = episodes_of(play(spec_with("Recorder", "Ends"), 100))
    assert episodes.own_metrics.keys() == {"begun", "steps", "ended"}
    assert len(episodes.own_metrics["ended"]) == len(episodes.returns)


@pytest.mark.parametrize("num_episodes", [1, 5, 8])
def test_evaluations_call_hooks_for_the_episodes_that_count(num_episodes: int) -> None:
    vector = make_vector_env(EnvConfig(UNEVEN_ENV), NUM_ENVS)
    hooks = make_episode_hooks(classes_of("Recorder").make("here"), vector, worker_index=None)
    limits = EvaluationLimits(1000, None)
    played = played_to_end(play_episodes(ScriptedPolicy(), vector, num_episodes, 0, limits, hooks))
    assert len(calls_of("start")) == len(calls_of("end")) == num_episodes
    assert len(calls_of("step")) == played.lengths.sum()
    assert sorted(played.own_metrics["steps"]) == sorted(played.lengths)
    assert all(end.episode.is_evaluation and end.episode.worker_index is None for end in calls_of("end"))


class TestGames:
    """Of Atari games, lives are the learner's episodes, and whole games those of hooks and results."""

    def hooks(self) -> EpisodeHooks:
        vector = SyncVectorEnv([GoalEnv])
        hooks = make_episode_hooks(classes_of("Recorder").make("here"), vector, 0)
        assert hooks is not None
        hooks.note_first_reset(np.array([[0.0]]), {})
        hooks.begin()
        return hooks

    def play(self, steps: list[tuple[bool, bool]]) -> None:
        """Take steps of one env; each says whether a life ended with it, and whether the game was over after it."""
        hooks, counter = self.hooks(), EpisodeCounter(1)
        for number, (life_ended, game_over) in enumerate(steps, 1):
            resetting, ended = counter.resetting, np.array([life_ended])
            infos = {GAME_OVER: np.array([game_over]), GAME_SCORE: np.array([7.0]), GAME_STEPS: np.array([number])}
            finished = counter.add(np.ones(1), ended, infos)
            obs, no = np.array([[float(number)]]), np.zeros(1, bool)
            hooks.after_step(VectorStep(resetting, obs, np.zeros(1), np.ones(1), ended, no, infos), finished)

    def test_a_life_ends_no_episode(self) -> None:
        self.play([(False, False), (True, False), (False, False), (False, False)])
        assert [name for name, _ in CALLS] == ["start", "step", "step", "step"]
        assert [step.terminated for step in calls_of("step")] == [False, True, False]

    def test_a_game_ends_with_its_last_life(self) -> None:
        self.play([(True, False), (False, False), (True, True), (False, False), (False, False)])
        assert [name for name, _ in CALLS] == ["start", "step", "step", "end", "start", "step"]
        (end,) = calls_of("end")
        assert (end.episode_return, end.length, end.obs.tolist()) == (7.0, 3, [3.0])

    def test_a_game_may_end_while_its_next_life_begins(self) -> None:
        self.play([(False, False), (True, False), (False, True), (False, False)])
        assert [name for name, _ in CALLS] == ["start", "step", "step", "end", "start", "step"]
        (end,) = calls_of("end")
        assert (end.length, end.obs.tolist(), end.terminated) == (3, [2.0], True)
        assert [start.obs.tolist() for start in calls_of("start")] == [[0.0], [3.0]]

    @pytest.mark.parametrize("env_config", [{}, {"difficulty": 0}], ids=["native", "wrappers"])
    def test_hooks_of_breakout_count_games(self, env_config: Mapping[str, Any]) -> None:
        pytest.importorskip("ale_py")
        vector = make_vector_env(EnvConfig("ALE/Breakout-v5", env_config, 150, frames=FRAMES), 2)
        assert (_innermost(vector) is not None) == bool(env_config)
        hooks = make_episode_hooks(classes_of("Recorder").make("here"), vector, worker_index=None)
        limits = EvaluationLimits(5000, None)
        played = played_to_end(play_episodes(RandomPolicy(), vector, 2, 0, limits, hooks))
        vector.close()
        starts, ends = calls_of("start"), calls_of("end")
        assert len(starts) == len(ends) == len(played.returns) == 2
        assert [end.episode_return for end in ends] == played.returns.tolist()
        assert [end.length for end in ends] == played.lengths.tolist()
        lives = [step for step in calls_of("step") if step.terminated and step.length < step.episode.data["steps"]]
        assert lives, "no life was lost within a game"
        # After each life the game goes on with a step that nobody chose: it counts as one of the game's steps.
        assert 0 < played.lengths.sum() - len(calls_of("step")) <= 2 * 5


class RandomPolicy:
    """Acts at random, so that games end."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)

    def compute_actions(self, obs: Any) -> Any:
        return self._rng.integers(4, size=len(obs))


def _innermost(vector: VectorEnv[Any, Any, Any]) -> SyncVectorEnv | None:
    while hasattr(vector, "env"):
        vector = vector.env
    return vector if isinstance(vector, SyncVectorEnv) else None


class TestState:
    def test_episodes_continue_where_they_were(self) -> None:
        worker = RolloutWorker(spec_with("Recorder", fragment_length=5))
        sampled(worker, 50)
        state = copy.deepcopy(worker.state())
        assert state is not None
        begun = len(calls_of("start"))
        expected = episodes_of(sampled(worker, 100))
        starts_after = len(calls_of("start")) - begun
        worker.stop()
        CALLS.clear()
        resumed = RolloutWorker(spec_with("Recorder", fragment_length=5))
        resumed.load(state)
        found = episodes_of(sampled(resumed, 100))
        resumed.stop()
        assert found.lengths.tolist() == found.own_metrics["steps"].tolist() == expected.lengths.tolist()
        assert len(calls_of("start")) == starts_after
        assert min(start.episode.number for start in calls_of("start")) > 0

    @pytest.mark.parametrize("kept", [object(), (1, 2)], ids=["object", "tuple"])
    def test_with_data_that_no_checkpoint_holds_callbacks_go_on_alone(self, kept: Any) -> None:
        spec = spec_with("CountsEnds", "Recorder")
        state, num_ends = saved(spec, lambda: calls_of("start")[-1].episode.data.update(kept=kept))
        self.check_that_callbacks_go_on(spec, state, num_ends)

    def test_without_a_snapshot_of_the_env_callbacks_go_on_alone(self) -> None:
        spec = spec_with("CountsEnds", env=OPAQUE_ENV)
        self.check_that_callbacks_go_on(spec, *saved(spec))

    def check_that_callbacks_go_on(self, spec: WorkerSpec, state: dict[str, Any], num_ends: int) -> None:
        """Check that ``state`` has the callbacks of a worker, and that another one goes on with these alone."""
        assert list(state) == ["recorder"]
        assert list(state["recorder"]) == ["hooks"]
        assert list(state["recorder"]["hooks"]) == ["callbacks"]
        resumed, new = (episodes_of(play(spec, 100, each)).own_metrics["ends"].tolist() for each in (state, None))
        assert new[0] == 1
        assert resumed == [count + num_ends for count in new], "the episodes are new ones, their count goes on"

    def test_envs_that_cannot_be_restored_leave_callbacks_to_go_on(self, monkeypatch: pytest.MonkeyPatch) -> None:
        spec = spec_with("CountsEnds")
        state, num_ends = saved(spec)
        monkeypatch.setattr("rlexp.rollout.recorder.restore_snapshot", lambda *given: False)
        assert episodes_of(play(spec, 100, state)).own_metrics["ends"][0] == num_ends + 1

    def test_without_callbacks_nothing_is_saved_of_an_env_without_a_snapshot(self) -> None:
        worker = RolloutWorker(spec_of(OPAQUE_ENV, ScriptedPolicy, NUM_ENVS))
        sampled(worker, 50)
        assert worker.state() is None
        worker.stop()

    def test_a_nan_metric_of_a_running_episode_is_left_out(self) -> None:
        nan = np.float32("nan")
        state, _ = saved(spec_with("Recorder"), lambda: calls_of("start")[-1].episode.metrics.update(distance=nan))
        assert len(state["recorder"]["hooks"]["episodes"]) == NUM_ENVS
        assert "nan" not in str(state["recorder"]["hooks"]).lower()

    @pytest.mark.parametrize("names", [(), ("Ends",)])
    def test_episodes_of_other_callbacks_have_no_hooks_until_they_end(self, names: tuple[str, ...]) -> None:
        before = spec_with(*names) if names else spec_of(COUNTING_ENV, ScriptedPolicy, NUM_ENVS)
        state, _ = saved(before)
        episodes = episodes_of(play(spec_with("Recorder"), 200, state))
        assert len(episodes.returns) - NUM_ENVS <= len(calls_of("end")) < len(episodes.returns)
        assert all(end.length == end.episode.data["steps"] for end in calls_of("end"))


class Saves(Callbacks):
    """Returns ``state`` as its own."""

    def __init__(self, state: Any) -> None:
        self._state = state

    def state(self) -> dict[str, Any]:
        saved: dict[str, Any] = self._state
        return saved


@pytest.mark.parametrize("state", [{"x": object()}, {"x": float("nan")}, {1: 2}, {"x": (1, 2)}, [1], None])
def test_a_state_that_no_checkpoint_holds_is_an_error(state: Any) -> None:
    with pytest.raises(CallbackError, match=r"callbacks mine:Saves: .*state returned"):
        UserCallbacks((("mine:Saves", Saves(state)),)).state()


def test_a_state_is_a_copy_of_plain_data() -> None:
    own: dict[str, Any] = {"a": [1, 2.5, "x", None, True], "b": {"c": np.arange(3)}, "d": np.float32(0.5)}
    (state,) = UserCallbacks((("mine:Saves", Saves(own)),)).state()["states"]
    assert json.loads(json.dumps({"a": state["a"], "d": state["d"]})) == {"a": own["a"], "d": 0.5}
    state["b"]["c"][:] = 9
    assert own["b"]["c"].tolist() == [0, 1, 2]


class TestErrors:
    def fail(self, name: str, **kwargs: Any) -> CallbackError:
        spec = replace(spec_of(GOAL_ENV, ScriptedPolicy, 2), index=4, callbacks=classes_of(name, **kwargs))
        worker = RolloutWorker(spec)
        with pytest.raises(CallbackError) as caught:
            sampled(worker, 100)
        worker.stop()
        return caught.value

    @pytest.mark.parametrize("hook", ["on_episode_start", "on_episode_step", "on_episode_end"])
    def test_what_a_hook_raises_names_class_line_hook_and_worker(self, hook: str) -> None:
        message = self.fail("Fails", hook=hook).message
        assert "callbacks tests.lab.user_callbacks:Fails: " in message
        assert "user_callbacks.py:" in message
        assert message.endswith(f"KeyError: 'is_success' ({hook}, worker 4)")

    @pytest.mark.parametrize("value", ["high", None, float("inf"), [1, 2], 1j])
    def test_a_metric_that_is_no_number_is_refused(self, value: Any) -> None:
        message = self.fail("Reports", metric="distance", value=value).message
        assert f"the metric distance is {value!r} (worker 4)" in message

    @pytest.mark.parametrize("name", ["a b", "", "a/b", "x" * 65, 3])
    def test_a_name_that_no_row_can_have_is_refused(self, name: Any) -> None:
        assert f"{name!r} is not a valid name of a metric" in self.fail("Reports", metric=name, value=1).message

    @pytest.mark.parametrize("value", [True, np.bool_(1), np.float32(1), np.array([1]), 1])
    def test_numbers_of_all_kinds_are_metrics(self, value: Any) -> None:
        checked = classes_of("Ends").make("here").checked_metrics({"x": value, "y": float("nan")}, of_episode=True)
        assert checked == {"x": 1.0}

    def test_a_metric_that_is_not_declared_is_refused(self) -> None:
        error = self.fail("Undeclared")
        assert "the metric sucess is not declared, only success, length" in error.message

    def test_a_class_that_declares_no_metrics_allows_any(self) -> None:
        checked = classes_of("SuccessRate", "Ends").make("here").checked_metrics({"ended": 1}, of_episode=True)
        assert checked == {"ended": 1.0}

    @pytest.mark.parametrize("declared", ["speed", None, {"speed": 1}])
    def test_declared_metrics_must_be_a_tuple(self, declared: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tests.lab.user_callbacks.Ends.EPISODE_METRICS", declared)
        with pytest.raises(UsageError, match=r"EPISODE_METRICS is .*, not a tuple of names") as caught:
            classes_of("Ends").make("here")
        assert caught.value.hint == 'write EPISODE_METRICS = ("name",)'

    @pytest.mark.parametrize("name", ["a b", 3])
    def test_declared_metrics_must_have_names_of_metrics(self, name: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tests.lab.user_callbacks.Ends.EPISODE_METRICS", ("good", name))
        with pytest.raises(UsageError, match=f"{name!r} is not a valid name of a metric"):
            classes_of("Ends").make("here")

    def test_a_class_of_another_kind_is_refused(self) -> None:
        with pytest.raises(UsageError, match=r"GoalEnv is not a rlexp\.callbacks\.Callbacks"):
            classes_of("GoalEnv").make("here")

    def test_arguments_that_do_not_fit_are_an_error_of_the_class(self) -> None:
        with pytest.raises(CallbackError, match=r"SuccessRate: TypeError: .*unexpected keyword argument 'bonsu'"):
            classes_of("SuccessRate", bonsu=1).make("here")


def test_a_hook_cannot_change_what_is_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.lab.user_callbacks.Recorder.on_episode_step", lambda self, step: step.obs.fill(-1.0))
    found = []
    for names in ((), ("Recorder",)):
        worker = RolloutWorker(spec_with(*names))
        found.append({name: column.tolist() for name, column in whole(worker.sample(0)[0]).columns.items()})
        worker.stop()
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("on_episode_ends", "did you mean on_episode_end?"),
        ("on_zzz", "the hooks are on_checkpoint, on_episode_end, on_episode_start, on_episode_step, on_iteration"),
    ],
)
def test_method_that_is_called_like_a_hook_is_refused(name: str, hint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.lab.user_callbacks.Ends." + name, lambda self, end: None, raising=False)
    with pytest.raises(UsageError, match=f"{name} is not a hook") as caught:
        CallbackClasses((UserPart("config.callbacks", "tests.lab.user_callbacks:Ends"),)).make("worker 0")
    assert caught.value.hint == hint


@pytest.mark.parametrize(
    "wrong",
    [lambda self: None, lambda self, one, two: None, lambda self, *, worker, episode: None],
    ids=["none", "two", "as RLlib's"],
)
def test_hook_that_does_not_take_one_argument_is_refused(wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.lab.user_callbacks.Ends.on_iteration", wrong)
    with pytest.raises(UsageError, match="Ends: on_iteration does not take one argument") as caught:
        CallbackClasses((UserPart("config.callbacks", "tests.lab.user_callbacks:Ends"),)).make("worker 0")
    assert caught.value.hint == "write def on_iteration(self, iteration)"
