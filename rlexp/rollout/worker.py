"""Stage 1 of the data path: steps envs with a policy and turns the steps into transitions.

A worker is built from its WorkerSpec, in any process. This module imports neither torch nor Ray.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Protocol

import numpy as np
from gymnasium.vector import VectorEnv

from rlexp.envs.parallel_envs import agents_per_env
from rlexp.policy import Policy, Weights
from rlexp.rollout.episodes import EpisodeHooks, Episodes, make_episode_hooks
from rlexp.rollout.filters import Moments
from rlexp.rollout.folds import Accumulator, EpisodeAccumulator, Fold, FragmentAccumulator
from rlexp.rollout.fragment import (
    FramePacker,
    SampleInfo,
    SampleTime,
    join_reports_of_worker,
    join_rows,
)
from rlexp.rollout.recorder import ENV, FragmentRecorder, Recording, RecordingAhead, RolloutConfig, StepRecorder
from rlexp.rollout.sequences import ReplaySequences, SequenceAccumulator
from rlexp.rollout.shared_weights import WeightsHandle
from rlexp.rollout.user_callbacks import CallbackClasses
from rlexp.sample_batch import FRAME_IDS_OF, FrameRows, SampleBatch, SentRows, WrittenRows, has_frames
from rlexp.schedules import derive_seed

MakeVectorEnv = Callable[[], "VectorEnv[Any, Any, Any]"]
MakePolicy = Callable[[], Policy]


class RowWriter(Protocol):
    """Puts rows where replay finds them, so that the worker need not send them."""

    def write(self, batch: SampleBatch) -> WrittenRows:
        """Write ``batch [B]`` and return the place of its rows."""


@dataclass(frozen=True)
class MessageLimits:
    """Limits within which fragments are sent together: another one is recorded unless all would exceed a limit."""

    num_fragments: int = 1
    """Most fragments; 1: each is sent alone."""
    num_bytes: int = 0
    """Most bytes of all rows."""
    seconds: float = 0.0
    """Most seconds in which all were recorded."""

    def have_room(self, num_fragments: int, num_bytes: int, seconds: float) -> bool:
        """Return whether another fragment like these, which took so many bytes and seconds, may join them."""
        if num_fragments >= self.num_fragments:
            return False
        growth = (num_fragments + 1) / num_fragments
        return growth * num_bytes <= self.num_bytes and growth * seconds <= self.seconds


EACH_ALONE = MessageLimits()
"""Every fragment is a message of its own."""


@dataclass(frozen=True)
class WorkerSpec:
    """The settings of one rollout worker. It can be pickled, as its functions are module functions."""

    index: int
    seed: int
    """Seed of its envs; each random stream is derived from it and ``index``."""
    make_env: MakeVectorEnv
    make_policy: MakePolicy
    """Called once, or twice with ``sample_async``, as each policy is used by one thread."""
    fold: Fold | None
    """Makes rows of its steps; None if rows are something else."""
    rollout: RolloutConfig
    row_writer: RowWriter | None = None
    """Writes its transitions into replay; None: they are sent."""
    callbacks: CallbackClasses | None = None
    """The user's classes with hooks for its episodes; None: no callbacks."""
    weights: WeightsHandle | None = None
    """The place of the newest weights, if its process can reach that memory; None: weights are sent to it."""
    message: MessageLimits = EACH_ALONE
    """The limits of fragments that it sends together, if it reads weights itself. Sent weights wait for its calls."""


class SamplingWorker(Protocol):
    """A worker as sources, fleets and gatherers call it, in their own process or in another one."""

    def set_weights(self, version: int, weights: Weights) -> None:
        """Act with ``weights`` from the next sample on; ``version`` counts the learner updates that they include."""

    def set_filter(self, moments: Moments) -> None:
        """Standardise observations by ``moments`` of all workers from the next sample on."""

    def sample(self, num_steps_sampled: int) -> tuple[SentRows, SampleInfo]:
        """Play, and return rows and a report. ``num_steps_sampled``, of all workers, is the clock of schedules."""

    def state(self) -> dict[str, Any] | None:
        """Return everything except weights on which the next ``sample`` depends; None if it cannot be read."""

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from the ``state`` of a worker like this one. Call it before the first ``sample``."""

    def stop(self) -> None:
        """Close the envs; idempotent."""


class RolloutWorker:
    """Owns a recorder with its envs and policy, and the steps that wait to be sent.

    A plain class, built from a ``WorkerSpec`` in the process that runs it: ``RemoteWorkers`` places it as an actor,
    ``LocalWorkers`` calls it in its own thread.
    """

    def __init__(self, spec: WorkerSpec) -> None:
        self._spec = spec
        self._weights = None if spec.weights is None else spec.weights.open()
        self._policy = spec.make_policy()
        env = spec.make_env()
        self._accumulator = _make_accumulator(spec, env.num_envs)
        self._packer = _make_packer(spec, env)
        # A policy is never shared between threads: the one that records ahead acts with a policy of its own.
        self._policy_acts = not spec.rollout.sample_async
        acting_policy = self._policy if self._policy_acts else spec.make_policy()
        env_seed = derive_seed(spec.seed, "worker", spec.index, "env")
        recorder = FragmentRecorder(env, acting_policy, spec.rollout, env_seed, make_hooks(spec, env))
        self._recorder: StepRecorder = recorder if self._policy_acts else RecordingAhead(recorder)

    def set_weights(self, version: int, weights: Weights) -> None:
        """Act with ``weights``, unless the worker has read newer ones from shared memory meanwhile."""
        if self._weights is not None:
            if version <= self._weights.version:
                return
            self._weights.given(version)
        self._act_with(version, weights)

    def set_filter(self, moments: Moments) -> None:
        self._recorder.set_filter(moments)

    def sample(self, num_steps_sampled: int) -> tuple[SentRows, SampleInfo]:
        """Step every env ``fragment_length`` times; return the complete transitions and a report about them.

        With ``batch_mode: complete_episodes``, repeat this until there are as many steps of whole episodes. A worker
        that reads weights itself may sample several fragments and return them together.
        """
        started, num_bytes = time.perf_counter(), 0
        parts: list[SampleBatch | FrameRows] = []
        infos: list[SampleInfo] = []
        while not parts or self._may_gather(len(parts), num_bytes, time.perf_counter() - started):
            rows, info = self._sample_once(num_steps_sampled)
            num_steps_sampled += info.num_env_steps
            num_bytes += rows.nbytes
            parts.append(rows)
            infos.append(info)
        if len(parts) == 1:
            return self._sent(parts[0], infos[0])
        return self._sent(join_rows(parts), join_reports_of_worker(infos))

    def state(self) -> dict[str, Any] | None:
        """Return the state; if the envs cannot be read, it has only the states of the user's callbacks."""
        recorder = self._recorder.state()
        if recorder is None:
            return None
        if ENV not in recorder:  # waiting steps belong to episodes that will not continue
            return {"recorder": recorder}
        packer = None if self._packer is None else self._packer.state()
        return {"recorder": recorder, "accumulator": self._accumulator.state(), "packer": packer}

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state`` if the envs can; else start new episodes."""
        if not self._recorder.load(state["recorder"]):
            return
        self._accumulator.load(state["accumulator"])
        if self._packer is not None:
            self._packer.load(state["packer"])

    def stop(self) -> None:
        self._recorder.stop()

    def _act_with(self, version: int, weights: Weights) -> None:
        self._recorder.set_weights(version, weights)
        if not self._policy_acts:
            self._policy.set_weights(weights)

    def _may_gather(self, num_fragments: int, num_bytes: int, seconds: float) -> bool:
        return self._weights is not None and self._spec.message.have_room(num_fragments, num_bytes, seconds)

    def _sample_once(self, num_steps_sampled: int) -> tuple[SampleBatch | FrameRows, SampleInfo]:
        """Return the rows of the next fragment, or of the next whole episodes, and a report about them."""
        num_weight_reads = self._read_weights()
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
        info = self._info(rows, recordings, SampleTime(folding_s, folding_s=folding_s))
        if self._weights is None:
            return rows, info
        self._weights.sampled(info.num_env_steps)
        return rows, replace(info, num_weight_reads=num_weight_reads)

    def _read_weights(self) -> int:
        """Act with newer weights if the worker reads them itself and is due; return the number of new versions."""
        weights = None if self._weights is None else self._weights.take()
        if self._weights is None or weights is None:
            return 0
        self._act_with(self._weights.version, weights)
        return 1

    def _sent(self, rows: SampleBatch | FrameRows, info: SampleInfo) -> tuple[SentRows, SampleInfo]:
        """Return what is sent: the rows, or where they were written, and the report about them."""
        if self._spec.row_writer is None or not isinstance(rows, SampleBatch):
            return rows, info
        written = self._spec.row_writer.write(rows)
        return written, replace(info, shard=written.shard)

    def _postprocessed(self, batch: SampleBatch) -> SampleBatch | FrameRows:
        """Return the rows to send; their observations are laid out in full if the policy needs them."""
        if self._packer is None:
            return self._policy.postprocess(batch)
        sent = self._packer.send(batch)
        if not self._policy.postprocess_reads_obs:
            return replace(sent, rows=self._policy.postprocess(sent.rows))
        rows = self._policy.postprocess(sent.stacks())
        frame_ids = {obs: (ids, sent.rows[ids]) for obs, ids in FRAME_IDS_OF.items() if ids in sent.rows}
        return replace(sent, rows=rows.exchange(frame_ids))

    def _info(self, rows: SampleBatch | FrameRows, recordings: Sequence[Recording], folding: SampleTime) -> SampleInfo:
        observed = [recording.observed for recording in recordings if recording.observed is not None]
        return SampleInfo(
            worker_index=self._spec.index,
            num_rows=rows.count,
            num_env_steps=sum(recording.num_env_steps for recording in recordings),
            episodes=Episodes.join([recording.episodes for recording in recordings]),
            weights_version=recordings[-1].weights_version,
            time=SampleTime.sum([*(recording.time for recording in recordings), folding]),
            observed=reduce(Moments.merged, observed) if observed else None,
        )


def _make_packer(spec: WorkerSpec, env: VectorEnv[Any, Any, Any]) -> FramePacker | None:
    """Return a packer for large observations; None if a shared-memory ring takes whole observations."""
    space = env.single_observation_space
    is_large = space.shape is not None and space.dtype is not None and has_frames(space.shape, np.dtype(space.dtype))
    if not is_large or spec.row_writer is not None:
        return None
    return FramePacker(env.num_envs, spec.rollout.batch_mode == "complete_episodes")


def make_hooks(spec: WorkerSpec, env: VectorEnv[Any, Any, Any]) -> EpisodeHooks | None:
    """Return what calls the user's hooks for the episodes of a worker; None without callbacks."""
    if spec.callbacks is None:
        return None
    reported, callbacks = spec.rollout.reported_envs, spec.callbacks.make(f"worker {spec.index}")
    by_row = None if reported is None else np.repeat(reported, agents_per_env(env))
    return make_episode_hooks(callbacks, env, spec.index, by_row)


def _make_accumulator(spec: WorkerSpec, num_envs: int) -> Accumulator:
    assert spec.fold is not None
    if spec.rollout.batch_mode == "complete_episodes":
        return EpisodeAccumulator(spec.fold, spec.rollout.fragment_length * num_envs)
    return SequenceAccumulator(spec.fold) if isinstance(spec.fold, ReplaySequences) else FragmentAccumulator(spec.fold)
