"""Frames on their way: what is sent makes the same rows as whole observations would, and has each frame once."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlexp.errors import TrialError
from rlexp.policy import Outputs, Policy
from rlexp.rollout import fragment as fragments
from rlexp.rollout.folds import (
    EpisodeAccumulator,
    Fold,
    FragmentAccumulator,
    NStep,
)
from rlexp.rollout.fragment import Fragment, FramePacker
from rlexp.rollout.worker import MakePolicy, RolloutWorker
from rlexp.sample_batch import FRAME_IDS, NEW_FRAME_IDS, NEW_OBS, OBS, TD_ERRORS, Array, FrameRows, SampleBatch, new
from tests.lab.doubles import SEEN, ScriptedPolicy, StepFold, without
from tests.lab.envs import PIXEL_ENV
from tests.lab.rollout import ONE_STEP, assert_same_batch, spec_of
from tests.unit.rollout.test_rollout_worker import KeepingWriter

SIDE = 16
STACKED = 4
GAMMA = 0.9


def frames_of_env(rng: np.random.Generator, channels: int) -> Iterator[Array]:
    """Yield frames, of which some are like the one before."""
    frame = np.zeros((SIDE, SIDE, channels), np.uint8)
    while True:
        if rng.random() < 0.8:
            frame = rng.integers(0, 256, frame.shape, np.uint8)
        yield frame


class StackingEnv:
    """Shows stacks of the last frames, with ends of episodes here and there; the step after one resets."""

    def __init__(self, seed: int, channels: int, overlap: bool) -> None:
        self._rng = np.random.default_rng(seed)
        self._frames = frames_of_env(self._rng, channels)
        self._overlap = overlap
        self.ended = False
        self.obs = self._first()

    def step(self) -> tuple[bool, bool, bool]:
        """Return whether the episode terminated, was truncated, and whether this was an env step."""
        if self.ended:
            self.obs, self.ended = self._first(), False
            return False, False, False
        channels = self.obs.shape[-1] // STACKED
        newer = np.concatenate([self.obs[..., channels:], next(self._frames)], axis=-1)
        self.obs = newer if self._overlap else self._first()
        terminated, truncated = bool(self._rng.random() < 0.1), bool(self._rng.random() < 0.1)
        self.ended = terminated or truncated
        return terminated, truncated, True

    def _first(self) -> Array:
        return np.concatenate([next(self._frames)] * STACKED, axis=-1)


class Recorder:
    """Records fragments of several envs, as a worker does."""

    def __init__(self, num_envs: int, channels: int = 1, overlap: bool = True) -> None:
        self._envs = [StackingEnv(seed, channels, overlap) for seed in range(num_envs)]

    def record(self, num_steps: int) -> Fragment:
        obs, steps = [self._obs()], []
        for _ in range(num_steps):
            steps.append([env.step() for env in self._envs])
            obs.append(self._obs())
        terminated, truncated, valid = np.array(steps).transpose(2, 0, 1)
        rewards = np.arange(terminated.size, dtype=np.float32).reshape(terminated.shape)
        return Fragment(np.array(obs), rewards.astype(np.int64), rewards, terminated, truncated, valid)

    def _obs(self) -> Array:
        return np.array([env.obs for env in self._envs])


@settings(deadline=None)
@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=8),
    num_envs=st.integers(1, 3),
    fold=st.builds(NStep, st.integers(1, 4), st.just(GAMMA)) | st.builds(StepFold),
    channels=st.sampled_from([1, 3]),
    overlap=st.booleans(),
    complete=st.booleans(),
)
def test_frame_packer_rows_match_whole_observations(
    lengths: list[int], num_envs: int, fold: Fold, channels: int, overlap: bool, complete: bool
) -> None:
    recorder, packer = Recorder(num_envs, channels, overlap), FramePacker(num_envs)
    plain, framed = (EpisodeAccumulator(fold, 10) if complete else FragmentAccumulator(fold) for _ in range(2))
    for length in lengths:
        fragment = recorder.record(length)
        expected, batch = plain.push(fragment), framed.push(packer.pack(fragment))
        assert (expected is None) == (batch is None)
        if batch is not None and expected is not None:
            sent = packer.send(batch)
            assert_same_batch(sent.stacks(), expected)
            assert len(np.unique(sent.numbers)) == len(sent.frames)


THREE_STEPS = NStep(3, GAMMA)


def sent_fragments(
    recorder: Recorder, num_envs: int, count: int, steps: int, fold: Fold = THREE_STEPS
) -> list[FrameRows]:
    packer, accumulator = FramePacker(num_envs), FragmentAccumulator(fold)
    return [packer.send(accumulator.push(packer.pack(recorder.record(steps)))) for _ in range(count)]


def test_frame_packer_repeated_frames_keep_their_numbers() -> None:
    """So that replay, which has them already, knows them."""
    frames: dict[int, Array] = {}
    batches = sent_fragments(Recorder(3), 3, count=10, steps=20)
    for sent in batches:
        for number, frame in zip(sent.numbers.tolist(), sent.frames, strict=True):
            np.testing.assert_array_equal(frames.setdefault(number, frame), frame)
    sent_more_than_once = sum(len(sent.frames) for sent in batches) - len(frames)
    num_borders = 9 * 3
    assert num_borders <= sent_more_than_once <= num_borders * (2 + STACKED)
    num_steps = 10 * 20 * 3
    assert len(frames) <= num_steps + 3 * (STACKED - 1)


@pytest.mark.parametrize("channels", [1, 3])
def test_frame_packer_detects_channels_per_step(channels: int) -> None:
    recorder = Recorder(2, channels)
    packed = FramePacker(2).pack(recorder.record(200))
    moved_on = [
        len(set(after.tolist()) - set(before.tolist()))
        for before, after, is_step in zip(packed.obs[:-1, 0], packed.obs[1:, 0], packed.valid[:, 0], strict=True)
        if is_step
    ]
    assert moved_on.count(channels) > 100
    assert sum(moved_on) < 1.5 * channels * len(moved_on)


def test_frame_packers_use_different_numbers() -> None:
    first, second = (sent_fragments(Recorder(2), 2, count=3, steps=10) for _ in "12")
    numbers = [{number for sent in batches for number in sent.numbers.tolist()} for batches in (first, second)]
    assert numbers[0].isdisjoint(numbers[1])
    assert min(map(min, numbers)) >= 0


def test_frame_packer_sends_first_frame_once() -> None:
    recorder = Recorder(1)
    fragment = recorder.record(1)
    packed = FramePacker(1).pack(fragment)
    assert len(set(packed.obs[0, 0].tolist())) == 1


def test_frame_packer_sends_each_frame_of_a_fragment_once_without_next_observations() -> None:
    num_steps, num_envs = 50, 2
    for sent in sent_fragments(Recorder(num_envs), num_envs, count=6, steps=num_steps, fold=StepFold()):
        assert NEW_FRAME_IDS not in sent.rows
        assert len(np.unique(sent.numbers)) == len(sent.frames)
        np.testing.assert_array_equal(np.unique(sent.rows[FRAME_IDS]), np.arange(len(sent.frames)))
        # A frame for each step, and those that the first stack shares with the fragment before.
        assert len(sent.frames) <= num_envs * (num_steps + STACKED - 1)


@pytest.mark.parametrize("fold", [THREE_STEPS, StepFold()], ids=["3-step", "StepFold"])
def test_frame_packer_forgets_old_frames(fold: Fold) -> None:
    recorder, packer, accumulator = Recorder(2), FramePacker(2), FragmentAccumulator(fold)
    held = []
    for _ in range(20):
        packer.send(accumulator.push(packer.pack(recorder.record(20))))
        held.append(packer.nbytes)
    assert max(held) <= 2 * (3 + STACKED + 1) * SIDE * SIDE


def test_frame_packer_refuses_episodes_that_do_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fragments, "MAX_WAITING_BYTES", 100 * SIDE * SIDE)
    recorder, packer, accumulator = (
        Recorder(1),
        FramePacker(1, whole_episodes=True),
        EpisodeAccumulator(NStep(3, GAMMA), 10),
    )
    never = np.zeros((50, 1), bool)
    for _ in range(2):
        accumulator.push(packer.pack(replace(recorder.record(50), terminated=never, truncated=never)))
    fragment = recorder.record(50)
    with pytest.raises(TrialError, match="episodes that have not ended") as caught:
        packer.pack(fragment)
    assert "horizon" in str(caught.value.hint)


def test_frame_packer_blames_a_fragment_that_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fragments, "MAX_WAITING_BYTES", 100 * SIDE * SIDE)
    recorder, packer = Recorder(1), FramePacker(1)
    with pytest.raises(TrialError, match="for one fragment") as caught:
        packer.pack(recorder.record(150))
    assert caught.value.hint == "lower sample_batch_size or num_envs_per_worker"


SIZE = 20


def brightness(observations: Array) -> Array:
    """A number that tells the two pictures of a PixelEnv apart."""
    sums: Array = observations[:, 0, 0].sum(axis=1).astype(np.float32)
    return sums


class LookingPolicy(ScriptedPolicy):
    """Looks at the observations again when it is given the rows."""

    postprocess_reads_obs = True

    def postprocess(self, batch: SampleBatch) -> SampleBatch:
        return batch.with_columns(**{TD_ERRORS: brightness(batch[OBS]) - brightness(batch[NEW_OBS])})


class RememberingPolicy(ScriptedPolicy):
    """Remembers what it saw, and is not shown it again."""

    def outputs(self, obs: Array) -> Outputs:
        return {SEEN: brightness(obs)}

    def postprocess(self, batch: SampleBatch) -> SampleBatch:
        return without(batch, SEEN, new(SEEN)).with_columns(**{TD_ERRORS: batch[SEEN] - batch[new(SEEN)]})


class OnPolicy(RememberingPolicy):
    """Adds a column from the outputs of its own rows; they have no next observation."""

    def postprocess(self, batch: SampleBatch) -> SampleBatch:
        return batch.with_columns(doubled=2 * batch[SEEN])


class LookingOnPolicy(OnPolicy):
    """Looks at the observations again."""

    postprocess_reads_obs = True

    def postprocess(self, batch: SampleBatch) -> SampleBatch:
        assert (batch[SEEN] == brightness(batch[OBS])).all()
        return super().postprocess(batch)


def make_worker(
    make_policy: MakePolicy, size: int = SIZE, row_writer: KeepingWriter | None = None, fold: Fold = ONE_STEP
) -> RolloutWorker:
    spec = spec_of(PIXEL_ENV, make_policy, fold=fold, env_config={"size": size})
    return RolloutWorker(replace(spec, row_writer=row_writer))


@pytest.mark.parametrize(
    ("make_policy", "make_whole", "fold"),
    [
        (LookingPolicy, LookingPolicy, ONE_STEP),
        (RememberingPolicy, LookingPolicy, ONE_STEP),
        (OnPolicy, OnPolicy, StepFold()),
        (LookingOnPolicy, OnPolicy, StepFold()),
    ],
)
def test_worker_sends_frames_instead_of_images(make_policy: type[Policy], make_whole: type[Policy], fold: Fold) -> None:
    worker, writer = make_worker(make_policy, fold=fold), KeepingWriter()
    whole = make_worker(make_whole, row_writer=writer, fold=fold)
    for _ in range(4):
        sent, info = worker.sample(0)
        whole.sample(0)
        assert isinstance(sent, FrameRows)
        assert sent.frames.shape[1:] == (SIZE, SIZE, 1)
        assert info.num_rows == len(sent)
        assert_same_batch(sent.stacks(), writer.batches[-1])


def test_worker_sends_small_images_whole() -> None:
    sent, _ = make_worker(LookingPolicy, size=18).sample(0)
    assert isinstance(sent, SampleBatch)
    assert sent[OBS].shape[1:] == (18, 18, 3)


def test_frame_rows_survive_pickling() -> None:
    sent, _ = make_worker(LookingPolicy).sample(0)
    assert isinstance(sent, FrameRows)
    arrived = pickle.loads(pickle.dumps(sent, protocol=5))  # noqa: S301 (as Ray does)
    np.testing.assert_array_equal(arrived.stacks()[OBS], sent.stacks()[OBS])
    np.testing.assert_array_equal(arrived.numbers, sent.numbers)
