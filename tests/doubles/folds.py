"""The double of a Fold that looks no step ahead and needs no next observation, as on-policy algorithms do."""

from __future__ import annotations

import numpy as np

from rlexp.rollout.fragment import Fragment
from rlexp.sample_batch import ACTIONS, OBS, SampleBatch


class StepFold:
    """Makes a row of each valid step: its observation, action and the policy's outputs; remembers the streams."""

    lookahead = 0

    def __init__(self) -> None:
        self.streams: list[Fragment] = []

    def rows(self, stream: Fragment, num_starts: int) -> SampleBatch:
        self.streams.append(stream)
        steps, envs = np.nonzero(stream.valid[:num_starts])
        outputs = {name: output[steps, envs] for name, output in stream.outputs.items()}
        return SampleBatch({OBS: stream.obs[steps, envs], ACTIONS: stream.actions[steps, envs], **outputs})
