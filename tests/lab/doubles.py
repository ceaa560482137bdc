"""The doubles of a Fold, Policy, Learner, SampleSource and TaskPool, which do what a test says; and rows for them.

Ray's workers import the policies from here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from rlexp.agents.dqn.exploration import EpsilonGreedy, PolicyExploration
from rlexp.cluster.pool.pool import Actor, InlineTaskPool, Lane, Ref
from rlexp.policy import LearnResult, Outputs, Weights
from rlexp.replay.shard import ReplayConfig, ReplayShard
from rlexp.rollout.episodes import Episodes
from rlexp.rollout.evaluation import ShouldStop, never
from rlexp.rollout.filters import Moments
from rlexp.rollout.folds import VF_PREDS
from rlexp.rollout.fragment import Fragment, SampleInfo, SampleTime, join_infos
from rlexp.rollout.gatherer import Gathered, GatheredInfo
from rlexp.rollout.source import Sample
from rlexp.sample_batch import ACTIONS, KEYS, NEW_OBS, OBS, TD_ERRORS, Array, FrameRows, SampleBatch, new

R = TypeVar("R")


class StepFold:
    """Makes a row of each valid step: its observation, action and the policy's outputs; remembers the streams.

    It looks no step ahead and needs no next observation, as the folds of on-policy algorithms.
    """

    lookahead = 0

    def __init__(self) -> None:
        self.streams: list[Fragment] = []

    def rows(self, stream: Fragment, num_starts: int) -> SampleBatch:
        self.streams.append(stream)
        steps, envs = np.nonzero(stream.valid[:num_starts])
        outputs = {name: output[steps, envs] for name, output in stream.outputs.items()}
        return SampleBatch({OBS: stream.obs[steps, envs], ACTIONS: stream.actions[steps, envs], **outputs})


NUM_ACTIONS = 1000
"""Of a CountingEnv."""
SEEN = "seen"
"""The output of a StepPolicy."""
VERSION = "version"
"""The output of a VersionPolicy: the weights that acted."""


class ScriptedPolicy:
    """Acts with 0, or at random where ``exploration`` says so by its ε; remembers what it was given."""

    postprocess_reads_obs = False

    def __init__(self, exploration: PolicyExploration | None = None) -> None:
        self.weights_given: list[Weights] = []
        self.acts: list[tuple[int, list[bool]]] = []
        """The clock of each act, and which envs reset."""
        self._schedule = None if exploration is None else exploration.epsilon
        if exploration is not None:
            rng = np.random.default_rng(exploration.seed_of("epsilon"))
            self._epsilon_greedy = EpsilonGreedy(NUM_ACTIONS, rng)

    def compute_actions(self, obs: Array) -> Array:
        return np.zeros(len(obs), np.int64)

    def act(self, obs: Array, resetting: Array, num_steps_sampled: int) -> tuple[Array, Outputs]:
        self.acts.append((num_steps_sampled, resetting.tolist()))
        actions = self.compute_actions(obs)
        if self._schedule is not None:
            actions = self._epsilon_greedy(actions, self._schedule.epsilons(num_steps_sampled))
        return actions, self.outputs(obs)

    def outputs(self, obs: Array) -> Outputs:
        return {}

    def postprocess(self, batch: SampleBatch) -> SampleBatch:
        return batch

    def set_weights(self, weights: Weights) -> None:
        self.weights_given.append(weights)

    def state(self) -> dict[str, Any]:
        return {} if self._schedule is None else self._epsilon_greedy.state()

    def load(self, state: Mapping[str, Any]) -> None:
        if self._schedule is not None:
            self._epsilon_greedy.load(state)


class StepPolicy(ScriptedPolicy):
    """Acts with the step that a CountingEnv shows; its output is twice the observation, and its TD error the step."""

    postprocess_reads_obs = True

    def compute_actions(self, obs: Array) -> Array:
        return obs[:, 2].astype(np.int64)

    def outputs(self, obs: Array) -> Outputs:
        return {SEEN: 2 * obs}

    def postprocess(self, batch: SampleBatch) -> SampleBatch:
        assert (batch[SEEN] == 2 * batch[OBS]).all()
        assert (batch[new(SEEN)] == 2 * batch[NEW_OBS]).all()
        return without(batch, SEEN, new(SEEN)).with_columns(**{TD_ERRORS: batch[OBS][:, 2]})


class CountingPolicy(ScriptedPolicy):
    """A row's first TD error is a number of its own; the weights are a version, which must grow."""

    postprocess_reads_obs = True
    version = -1.0

    def postprocess(self, batch: SampleBatch) -> SampleBatch:
        return batch.with_columns(**{TD_ERRORS: own_number(batch[OBS])})

    def set_weights(self, weights: Weights) -> None:
        assert weights["version"] > self.version, "weights went back in time"
        self.version = float(weights["version"])


class VersionPolicy(ScriptedPolicy):
    """Values an observation of a CountingEnv by its step; says which weights it has."""

    version = -1

    def outputs(self, obs: Array) -> Outputs:
        return {VF_PREDS: obs[:, 2], VERSION: np.full(len(obs), self.version)}

    def set_weights(self, weights: Weights) -> None:
        assert weights["version"] > self.version, "weights went back in time"
        self.version = int(weights["version"])


class RememberedPolicies:
    """Makes policies of a kind for a worker, and keeps them."""

    def __init__(self, kind: type[ScriptedPolicy] = StepPolicy) -> None:
        self.made: list[ScriptedPolicy] = []
        self._kind = kind

    def __call__(self) -> ScriptedPolicy:
        self.made.append(self._kind())
        return self.made[-1]

    def clocks(self) -> list[int]:
        """Return the clock of every act."""
        return [clock for policy in self.made for clock, _ in policy.acts]


def own_number(obs: Array) -> Array:
    """Return a number for each row that depends on which one it is."""
    number: Array = 1 + obs[:, 0] % 7 + obs[:, 1] % 5 + obs[:, 2]
    return number


def without(batch: SampleBatch, *names: str) -> SampleBatch:
    """Return ``batch`` without the columns ``names``."""
    return SampleBatch({name: column for name, column in batch.columns.items() if name not in names})


TIMEOUT_S = 20.0
"""Bound of every wait in a test; reaching it is a failure."""


class ScriptedLearner:
    """Counts its updates; the TD error of a row is its observation, the weights are the number of updates."""

    def __init__(self) -> None:
        self.num_updates = 0
        self.num_snapshots = 0
        self.progress: list[int] = []
        self.fails_at: int | None = None
        self.learned = threading.Semaphore(0)
        """One for each update begun."""
        self.may_learn = threading.Event()
        """Cleared, it holds the learner inside its next update."""
        self.may_learn.set()

    def observe_progress(self, num_steps_sampled: int) -> None:
        self.progress.append(num_steps_sampled)

    def learn_on_batch(self, batch: SampleBatch, should_stop: ShouldStop = never) -> LearnResult:
        self.learned.release()
        assert self.may_learn.wait(TIMEOUT_S)
        if self.num_updates == self.fails_at:
            raise FloatingPointError("this learner fails")
        self.num_updates += 1
        return LearnResult({"loss": float(self.num_updates)}, batch[OBS].copy())

    def stats(self) -> Mapping[str, Any]:
        return {"num_snapshots": self.num_snapshots}

    def get_weights(self) -> Weights:
        self.num_snapshots += 1
        return {"updates": np.array([self.num_updates])}

    def state_dict(self) -> Mapping[str, Array]:
        return {"updates": np.array([self.num_updates])}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        (self.num_updates,) = state["updates"].tolist()


class ScriptedSource:
    """Delivers the batches that a test has given it, all at the next poll or as many as it wants."""

    def __init__(self) -> None:
        self.num_weight_syncs = 0
        self.num_worker_restarts = 0
        self.num_in_flight = 0
        self.has_waiting = False
        self.timeouts: list[float] = []
        """Of each wait."""
        self.wants_weights = False
        self.published: list[tuple[int, int]] = []
        self.clocks: list[int] = []
        self.wanted: list[int | None] = []
        """Of each poll."""
        self.num_stops = 0
        self._samples: list[Sample] = []

    def give(
        self,
        batch: SampleBatch | FrameRows,
        num_env_steps: int | None = None,
        weights_version: int = 0,
        shard: int | None = None,
    ) -> None:
        """Let the next poll deliver ``batch``; by default, each row took one env step and may go to any shard."""
        steps = batch.count if num_env_steps is None else num_env_steps
        info = SampleInfo(0, batch.count, steps, Episodes.join([]), weights_version, SampleTime(0.001), shard=shard)
        self._samples.append(Sample(Ref(batch), info))

    def give_report(self, num_rows: int) -> None:
        """Let the next poll deliver the report of a gatherer about rows that are stored."""
        gathered = Gathered(0, 0, num_worker_restarts=0, num_fragments_held=0, events=(), observed={})
        about = {**vars(join_infos([])), "num_rows": num_rows, "num_env_steps": num_rows}
        self._samples.append(
            Sample(Ref(None), GatheredInfo(**about, gathered=gathered, fed=(0,), num_fragments_lost=0))
        )

    def poll(self, num_steps_sampled: int, wanted: int | None = None) -> list[Sample]:
        self.clocks.append(num_steps_sampled)
        self.wanted.append(wanted)
        count = len(self._samples) if wanted is None else max(wanted, 0)
        samples, self._samples = self._samples[:count], self._samples[count:]
        return samples

    def wait(self, timeout: float) -> bool:
        self.timeouts.append(timeout)
        return True

    def weights_wanted(self) -> bool:
        return self.wants_weights

    def publish(self, version: int, weights: Weights) -> None:
        self.num_weight_syncs += 1
        self.published.append((version, int(weights["updates"][0])))

    def set_filter(self, moments: Moments) -> None:
        raise AssertionError("an optimizer knows of no filters")

    def state(self) -> dict[str, Any]:
        return {"num_weight_syncs": self.num_weight_syncs}

    def load(self, state: Mapping[str, Any]) -> None:
        self.num_weight_syncs = state["num_weight_syncs"]

    def drain_events(self) -> list[str]:
        return []

    def stop(self) -> None:
        self.num_stops += 1


class RaisingPool(InlineTaskPool):
    """An inline pool whose calls may end with an error: to get a reference to one raises it."""

    def get(self, ref: Ref[R], timeout: float) -> R:
        if isinstance(ref.handle, Exception):
            raise ref.handle
        return super().get(ref, timeout)


class HeldPool(InlineTaskPool):
    """Holds every lane's calls back until a test lets some of them run; they run in the order made.

    ``calls`` are the actor, the method's name and the arguments of all that was started.
    """

    def __init__(self, on_start: Callable[[str], None] = lambda method: None) -> None:
        self.calls: list[tuple[Actor[Any], str, tuple[Any, ...]]] = []
        self._on_start = on_start
        self._held: list[Callable[[], None]] = []

    def start(self, lane: Lane, actor: Actor[Any], method: Callable[..., Any], args: tuple[object, ...]) -> None:
        self.calls.append((actor, method.__name__, args))
        start = super().start
        self._held.append(lambda: start(lane, actor, method, args))
        self._on_start(method.__name__)

    def let_run(self, count: int | None = None) -> None:
        """Run the oldest ``count`` held calls, by default all."""
        ready, self._held = self._held[:count], self._held[len(self._held[:count]) :]
        for run in ready:
            run()

    def made(self, method: str, actor: Actor[Any] | None = None) -> list[tuple[Any, ...]]:
        """Return the arguments of all calls of ``method``, on one actor or on all."""
        return [args for called, name, args in self.calls if name == method and actor in (None, called)]


def rows(value: float, count: int) -> SampleBatch:
    """Return ``count`` rows whose observation, and so whose TD error, is ``value``."""
    return SampleBatch({OBS: np.full(count, value, np.float32), ACTIONS: np.arange(count)})


def keyed_rows(value: float, count: int) -> SampleBatch:
    """Return rows as a shard hands them out."""
    return rows(value, count).with_columns(**{KEYS: np.arange(count)})


def prioritized_rows(value: float, count: int) -> SampleBatch:
    """Return rows as a worker hands them over, with their first TD errors."""
    return rows(value, count).with_columns(**{TD_ERRORS: np.full(count, value, np.float32)})


REPLAY = ReplayConfig(
    capacity=64, learning_starts=1, train_batch_size=4, prioritized=True, alpha=0.6, eps=1e-6, storage="frames"
)
"""Settings of a shard, of which a test replaces what it is about."""


def make_shard(**changes: Any) -> ReplayShard:
    return ReplayShard(replace(REPLAY, **changes), seed=0)
