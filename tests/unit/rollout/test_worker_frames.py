"""A worker whose env shows images sends frames; whatever its policy asks for, the rows are those of whole ones."""

from __future__ import annotations

import pickle
from functools import partial

import numpy as np
import pytest

from rlexp.envs import EnvConfig, make_vector_env
from rlexp.policy import Policy
from rlexp.rollout.exploration import ConstantEpsilon
from rlexp.rollout.worker import MakePolicy, RolloutWorker
from rlexp.sample_batch import NEW_OBS, NEW_OUTPUTS, OBS, OUTPUTS, TD_ERRORS, Array, FrameRows, SampleBatch
from tests.envs import PIXEL_ENV
from tests.rollout_settings import PLAIN
from tests.unit.rollout.policies import ZeroPolicy
from tests.unit.rollout.test_rollout_worker import KeepingWriter

NUM_ENVS = 2
SIZE = 20


def brightness(observations: Array) -> Array:
    """A number that tells the two pictures of a PixelEnv apart."""
    sums: Array = observations[:, 0, 0].sum(axis=1).astype(np.float32)
    return sums


class LookingPolicy(ZeroPolicy):
    """Looks at the observations again when it is given the rows."""

    def postprocess(self, batch: SampleBatch) -> SampleBatch:
        return batch.with_columns(**{TD_ERRORS: brightness(batch[OBS]) - brightness(batch[NEW_OBS])})


class RememberingPolicy(ZeroPolicy):
    """Remembers what it saw, and is not shown it again."""

    def sample_actions(
        self, obs: Array, epsilons: Array, resetting: Array, rng: np.random.Generator
    ) -> tuple[Array, Array | None]:
        return self.compute_actions(obs), brightness(obs)

    def outputs(self, obs: Array) -> Array | None:
        return brightness(obs)

    def postprocess(self, batch: SampleBatch) -> SampleBatch:
        kept = {name: column for name, column in batch.columns.items() if name not in {OUTPUTS, NEW_OUTPUTS}}
        return SampleBatch({**kept, TD_ERRORS: batch[OUTPUTS] - batch[NEW_OUTPUTS]})


def make_worker(make_policy: MakePolicy, size: int = SIZE, row_writer: KeepingWriter | None = None) -> RolloutWorker:
    return RolloutWorker(
        partial(make_vector_env, EnvConfig(PIXEL_ENV, {"size": size}, None), NUM_ENVS),
        make_policy,
        ConstantEpsilon((0.0,) * NUM_ENVS),
        PLAIN,
        worker_index=0,
        seed=0,
        row_writer=row_writer,
    )


@pytest.mark.parametrize("make_policy", [LookingPolicy, RememberingPolicy])
def test_worker_sends_frames_instead_of_images(make_policy: type[Policy]) -> None:
    worker, writer = make_worker(make_policy), KeepingWriter()
    whole = make_worker(LookingPolicy, row_writer=writer)
    for _ in range(4):
        sent, info = worker.sample(0)
        whole.sample(0)
        assert isinstance(sent, FrameRows)
        assert sent.frames.shape[1:] == (SIZE, SIZE, 1)
        assert info.num_rows == len(sent)
        expected = writer.batches[-1]
        stacks = sent.stacks()
        assert set(stacks) == set(expected)
        for name in expected:
            np.testing.assert_array_equal(stacks[name], expected[name])


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
