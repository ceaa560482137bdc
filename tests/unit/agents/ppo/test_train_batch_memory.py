"""How much memory a train batch takes beside the samples that it is made of."""

from __future__ import annotations

import tracemalloc

import numpy as np

from rlexp.cluster.pool import InlineTaskPool
from rlexp.optimizers.sync_samples_optimizer import SyncSamplesOptimizer, TrainBatchConfig
from rlexp.policy import LearnResult
from rlexp.rollout.evaluation import ShouldStop, never
from rlexp.sample_batch import FRAME_IDS, OBS, FrameRows, SampleBatch
from tests.doubles.scripted import ScriptedLearner, ScriptedSource

NUM_SAMPLES, ROWS, NUMBERS = 32, 64, 1024
SAMPLE_BYTES = ROWS * NUMBERS * 4


class MeasuringLearner(ScriptedLearner):
    """Knows the most memory that was in use at once before its batch."""

    peak_bytes = 0
    last_obs = 0.0

    def learn_on_batch(self, batch: SampleBatch, should_stop: ShouldStop = never) -> LearnResult:
        _, self.peak_bytes = tracemalloc.get_traced_memory()
        assert batch[OBS].shape == (NUM_SAMPLES * ROWS, NUMBERS)
        self.last_obs = float(batch[OBS][-1, -1])
        return LearnResult({})


def sent(value: float) -> FrameRows:
    """Return rows as a worker sends large vectors: each is a frame."""
    numbers = np.arange(ROWS)
    frames = np.full((ROWS, NUMBERS), value, np.float32)
    return FrameRows(SampleBatch({FRAME_IDS: numbers[:, None]}), frames, numbers)


def test_sync_samples_optimizer_joins_large_rows_one_sample_after_another() -> None:
    """The samples themselves, the train batch, and at most a few samples more: no third copy of all rows."""
    source, learner = ScriptedSource(), MeasuringLearner()
    config = TrainBatchConfig(NUM_SAMPLES * ROWS, ROWS, num_workers=0, overlaps=False)
    optimizer = SyncSamplesOptimizer(InlineTaskPool(), source, learner, config)
    optimizer.start()
    tracemalloc.start()
    try:
        for number in range(NUM_SAMPLES):
            source.give(sent(number))
            optimizer.step()
    finally:
        tracemalloc.stop()
    assert learner.last_obs == NUM_SAMPLES - 1
    assert learner.peak_bytes < (2 * NUM_SAMPLES + 4) * SAMPLE_BYTES
