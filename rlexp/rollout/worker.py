"""The first hop of the data: steps envs with a policy and turns the steps into transitions."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Protocol

import numpy as np
from gymnasium.vector import VectorEnv

from rlexp.policy import Policy, Weights
from rlexp.rollout.episodes import Episodes
from rlexp.rollout.exploration import EpsilonSchedule
from rlexp.rollout.filters import Moments
from rlexp.rollout.fragment import Fragment
from rlexp.rollout.frame_packer import FramePacker, refuse_large_fragment
from rlexp.rollout.n_step import NStepAccumulator
from rlexp.rollout.recorder import FragmentRecorder, Recorder, Recording
from rlexp.rollout.recording_ahead import RecordingAhead
from rlexp.rollout.rollout_config import RolloutConfig
from rlexp.rollout.sample_time import SampleTime
from rlexp.rollout.whole_episodes import EpisodeAccumulator, refuse_unended_episodes
from rlexp.sample_batch import (
    FRAME_IDS_OF,
    OUTPUTS,
    Array,
    FrameRows,
    SampleBatch,
    SentRows,
    WrittenRows,
    has_frames,
)

MakeVectorEnv = Callable[[], "VectorEnv[Any, Any, Any]"]
MakePolicy = Callable[[], Policy]


@dataclass(frozen=True)
class FragmentInfo:
    """What is told about a sampled batch; small, and separate from it, so that the batch can travel by reference."""

    worker_index: int
    num_rows: int
    """Transitions in the batch."""
    num_env_steps: int
    """Env steps taken; differs from ``num_rows`` by what waits for its n-step successors, or for its episode's end."""
    episodes: Episodes
    epsilons: Array
    """ε per env ``[M]`` at the last step."""
    weights_version: int
    """Learner updates behind the weights that acted."""
    time: SampleTime
    """How long it took to make."""
    observed: Moments | None = None
    """Moments of the raw observations, where a filter wants them."""
    shard: int | None = None
    """The replay shard for which the rows were written already; None: they may go to any."""


class Accumulator(Protocol):
    """Turns fragments into transitions."""

    def push(self, fragment: Fragment) -> SampleBatch | None:
        """Return the transitions that may be sent now; None asks for more fragments first."""
        ...

    def state(self) -> dict[str, Any]:
        """Return the steps that wait."""
        ...

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from what ``state`` returned, as a new accumulator."""
        ...


class RowWriter(Protocol):
    """Puts rows where replay finds them, so that the worker need not send them."""

    def write(self, batch: SampleBatch) -> WrittenRows:
        """Write ``batch [B]`` and return where it lies."""
        ...


class RolloutWorker:
    """Owns a recorder, with its envs and policy, and the steps that still wait before they are sent.

    A plain class: ``RemoteWorkers`` places it as an actor, ``LocalWorkers`` calls it in its own thread.
    """

    def __init__(
        self,
        make_env: MakeVectorEnv,
        make_policy: MakePolicy,
        epsilon_schedule: EpsilonSchedule,
        config: RolloutConfig,
        worker_index: int,
        seed: int,
        row_writer: RowWriter | None = None,
    ) -> None:
        """With ``row_writer``, transitions are written with it instead of sent."""
        self._worker_index = worker_index
        self._row_writer = row_writer
        self._policy = make_policy()
        env = make_env()
        self._accumulator = _make_accumulator(config, env.num_envs)
        self._packer = _make_packer(env, config, row_writer)
        # A policy is never shared between threads: the one that records ahead acts with a policy of its own.
        self._policy_acts = not config.sample_async
        acting_policy = self._policy if self._policy_acts else make_policy()
        recorder = FragmentRecorder(env, acting_policy, epsilon_schedule, config, worker_index, seed)
        self._recorder: Recorder = recorder if self._policy_acts else RecordingAhead(recorder)

    def set_weights(self, version: int, weights: Weights) -> None:
        """Act with ``weights`` from the next fragment on; ``version`` counts the learner's updates behind them."""
        self._recorder.set_weights(version, weights)
        if not self._policy_acts:
            self._policy.set_weights(weights)

    def set_filter(self, moments: Moments) -> None:
        """Standardise observations by ``moments`` of all workers from the next fragment on."""
        self._recorder.set_filter(moments)

    def sample(self, num_steps_sampled: int) -> tuple[SentRows, FragmentInfo]:
        """Step every env ``fragment_length`` times; return the complete transitions and what is told about them.

        With ``batch_mode: complete_episodes`` again and again, until as many steps of whole episodes are
        there. ``num_steps_sampled`` is the env steps of all workers that the caller knows of, the clock of ε.
        """
        recordings: list[Recording] = []
        batch, folding_s = None, 0.0
        while batch is None:
            recording = self._recorder.record(num_steps_sampled)
            num_steps_sampled += recording.num_env_steps
            recordings.append(recording)
            started = time.perf_counter()
            fragment = recording.fragment
            batch = self._accumulator.push(fragment if self._packer is None else self._packer.pack(fragment))
            folding_s += time.perf_counter() - started
        started = time.perf_counter()
        rows = self._postprocessed(batch)
        folding_s += time.perf_counter() - started
        sent: SentRows = rows
        if self._row_writer is not None and isinstance(rows, SampleBatch):
            sent = self._row_writer.write(rows)
        return sent, self._told(sent, recordings, SampleTime(folding_s, folding_s=folding_s))

    def state(self) -> dict[str, Any] | None:
        """Return all that the next call of ``sample`` depends on but weights; None where that cannot be told."""
        recorder = self._recorder.state()
        if recorder is None:
            return None
        packer = None if self._packer is None else self._packer.state()
        return {"recorder": recorder, "accumulator": self._accumulator.state(), "packer": packer}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from what the ``state`` of a worker like this one returned, if the envs can; else begin episodes.

        Call it before the first ``sample``.
        """
        if not self._recorder.load(state["recorder"]):
            return
        self._accumulator.load(state["accumulator"])
        if self._packer is not None:
            self._packer.load(state["packer"])

    def stop(self) -> None:
        """End what is under way and close the envs; idempotent."""
        self._recorder.stop()

    def _postprocessed(self, batch: SampleBatch) -> SampleBatch | FrameRows:
        """Return what is to be sent; a policy that has not remembered what it saw is shown the observations again."""
        if self._packer is None:
            return self._policy.postprocess(batch)
        sent = self._packer.send(batch)
        if OUTPUTS in batch:
            return replace(sent, rows=self._policy.postprocess(sent.rows))
        rows = self._policy.postprocess(sent.stacks())
        return replace(sent, rows=rows.exchange({obs: (ids, sent.rows[ids]) for obs, ids in FRAME_IDS_OF.items()}))

    def _told(self, sent: SentRows, recordings: Sequence[Recording], folding: SampleTime) -> FragmentInfo:
        last = recordings[-1]
        observed = [recording.observed for recording in recordings if recording.observed is not None]
        return FragmentInfo(
            worker_index=self._worker_index,
            num_rows=sent.count,
            num_env_steps=sum(recording.num_env_steps for recording in recordings),
            episodes=Episodes.join([recording.episodes for recording in recordings]),
            epsilons=last.epsilons,
            weights_version=last.weights_version,
            time=SampleTime.sum([*(recording.time for recording in recordings), folding]),
            observed=reduce(Moments.merged, observed) if observed else None,
            shard=sent.shard if isinstance(sent, WrittenRows) else None,
        )


def _make_packer(
    env: VectorEnv[Any, Any, Any], config: RolloutConfig, row_writer: RowWriter | None
) -> FramePacker | None:
    """Return what makes frames of large observations; a ring of shared memory takes them whole."""
    space = env.single_observation_space
    is_large = space.shape is not None and space.dtype is not None and has_frames(space.shape, np.dtype(space.dtype))
    if not is_large or row_writer is not None:
        return None
    whole_episodes = config.batch_mode == "complete_episodes"
    return FramePacker(env.num_envs, refuse_unended_episodes if whole_episodes else refuse_large_fragment)


def _make_accumulator(config: RolloutConfig, num_envs: int) -> Accumulator:
    if config.batch_mode == "complete_episodes":
        return EpisodeAccumulator(config.n_step, config.gamma, config.fragment_length * num_envs)
    return NStepAccumulator(config.n_step, config.gamma)
