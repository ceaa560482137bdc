"""A worker whose env shows images sends frames; whatever its policy asks for, the rows are those of whole ones."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest

from rlexp.policy import Outputs, Policy
from rlexp.rollout.folds import Fold
from rlexp.rollout.worker import RolloutWorker
from rlexp.rollout.worker_spec import MakePolicy
from rlexp.sample_batch import NEW_OBS, OBS, TD_ERRORS, Array, FrameRows, SampleBatch, new
from tests.doubles.folds import StepFold
from tests.doubles.policies import SEEN, ScriptedPolicy, without
from tests.envs import PIXEL_ENV
from tests.rollout_settings import ONE_STEP, spec_of
from tests.unit.rollout.test_rollout_worker import KeepingWriter

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
