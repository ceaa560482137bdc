"""ReplaySequences against a model that looks at one env, one step at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlexp.models.memory import STATE_IN
from rlexp.rollout.folds import EpisodeAccumulator
from rlexp.rollout.fragment import FramePacker
from rlexp.rollout.sequences import NUM_BURNED, NUM_FOLDED, ReplaySequences, SequenceAccumulator
from rlexp.sample_batch import ACTIONS, DISCOUNTS, OBS, REWARDS, FrameRows, SampleBatch
from tests.unit.rollout.test_folds import (
    GOES_ON,
    OUTPUT,
    TERMINATED,
    TRUNCATED,
    NStepRow,
    Step,
    make_fragment,
    make_steps,
    slow_n_step_rows,
    streams,
)


@dataclass(frozen=True)
class Sequence:
    """A sequence as the model cuts it."""

    burned: list[int]
    """The observations of the burn-in."""
    learned: list[NStepRow]


def slow_sequences(steps: list[Step], fold: ReplaySequences, whole_episodes: bool) -> list[Sequence]:
    """Cut the episodes of one env; a last one that has not ended gives only sequences with all their successors."""
    episodes: list[list[Step]] = [[]]
    for step in steps:
        if not step.is_reset:
            episodes[-1].append(step)
            if step.ending != GOES_ON:
                episodes.append([])
    found = []
    for episode in episodes:
        has_ended = bool(episode) and episode[-1].ending != GOES_ON
        # Transitions whose successors the end cuts short exist only for an episode that has one.
        padding = [Step(-1, 0, GOES_ON, True)] * (fold.n_step - 1) if has_ended else []
        rows = slow_n_step_rows([*episode, *padding], fold.n_step, fold.gamma) if episode else []
        for first in range(0, len(rows) if has_ended or not whole_episodes else 0, fold.length):
            learned = rows[first : first + fold.length]
            if has_ended or len(learned) == fold.length:
                burned = episode[max(first - fold.burn_in, 0) : first]
                found.append(Sequence([step.obs for step in burned], learned))
    return found


def read(batch: SampleBatch, fold: ReplaySequences) -> list[Sequence]:
    """Read the sequences of a batch, and check what is padded and what the policy returned."""
    sequences = []
    for row in range(batch.count):
        obs = batch[OBS][row].astype(int).tolist()
        assert len(obs) == fold.num_obs
        assert (batch[OUTPUT][row] == 10 * batch[OBS][row]).all()
        burned, seen = obs[: fold.burn_in], obs[fold.burn_in :]
        num_burned, folded = int(batch[NUM_BURNED][row]), batch[NUM_FOLDED][row].tolist()
        count = fold.length - folded.count(0)
        assert folded[count:] == [0] * (fold.length - count)
        assert batch[STATE_IN][row, 0] == (burned[:num_burned] + seen)[0]
        assert (-batch[ACTIONS][row, :count]).tolist() == seen[:count]
        learned = [
            NStepRow(seen[t], float(batch[REWARDS][row, t]), float(batch[DISCOUNTS][row, t]), seen[t + folded[t]])
            for t in range(count)
        ]
        sequences.append(Sequence(burned[:num_burned], learned))
    return sequences


def assert_same(found: list[Sequence], expected: list[Sequence]) -> None:
    found, expected = (sorted(each, key=lambda one: one.learned[0].obs) for each in (found, expected))
    assert [one.burned for one in found] == [one.burned for one in expected]
    for one, other in zip(found, expected, strict=True):
        for row, model in zip(one.learned, other.learned, strict=True):
            assert row.obs == model.obs
            assert row.reward == pytest.approx(model.reward, rel=1e-5, abs=1e-5)
            assert row.discount == pytest.approx(model.discount, rel=1e-6)
            # What follows an end is not the model's next step, but the last observation of the episode.
            assert row.new_obs == (model.new_obs if model.new_obs >= 0 else row.new_obs)


FOLDS = st.builds(
    ReplaySequences,
    length=st.integers(1, 5),
    burn_in=st.integers(0, 6),
    n_step=st.integers(1, 4),
    gamma=st.sampled_from([1.0, 0.9]),
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(streams(), FOLDS, st.booleans())
def test_each_step_is_learned_once_and_after_the_steps_before_it(
    stream: tuple[list[list[Step]], list[int]], fold: ReplaySequences, whole_episodes: bool
) -> None:
    envs, lengths = stream
    accumulator = EpisodeAccumulator(fold, 1) if whole_episodes else SequenceAccumulator(fold)
    found: list[Sequence] = []
    stop = 0
    for length in lengths:
        start, stop = stop, stop + length
        fragment = make_fragment(envs, start, stop)
        batch = accumulator.push(replace(fragment, outputs={**fragment.outputs, STATE_IN: fragment.obs}))
        found += [] if batch is None else read(batch, fold)
        assert_same(found, [one for env in envs for one in slow_sequences(env[:stop], fold, whole_episodes)])
        state = accumulator.state()
        accumulator = EpisodeAccumulator(fold, 1) if whole_episodes else SequenceAccumulator(fold)
        accumulator.load(state)


def test_an_agent_that_never_comes_holds_back_no_steps() -> None:
    endings = [[GOES_ON, GOES_ON, TERMINATED, GOES_ON] * 10, [GOES_ON] * 40]
    envs = [make_steps(env, [1] * 40, each) for env, each in enumerate(endings)]
    accumulator = SequenceAccumulator(ReplaySequences(length=2, burn_in=1, n_step=1, gamma=0.9))
    found = 0
    for t in range(0, 40, 4):
        both = make_fragment(envs, t, t + 4)
        absent = replace(both, valid=both.valid & [True, False], outputs={STATE_IN: both.obs})
        found += accumulator.push(absent).count
        assert len(accumulator.state()["waiting"]["actions"]) <= 2  # the burn-in, and a step that is in no sequence
    assert found == 20


def test_frames_of_sequences_are_sent_once() -> None:
    fold = ReplaySequences(length=2, burn_in=1, n_step=1, gamma=0.9)
    fragment = make_fragment(
        [make_steps(0, [1] * 6, [GOES_ON, GOES_ON, TERMINATED, GOES_ON, TRUNCATED, GOES_ON])], 0, 6
    )
    pixels = np.arange(7, dtype=np.uint8)[:, None, None, None, None] + np.zeros((1, 1, 2, 2, 2), np.uint8)
    packer, accumulator = FramePacker(1), SequenceAccumulator(fold)
    sent = packer.send(accumulator.push(packer.pack(replace(fragment, obs=pixels, outputs={}))))
    assert isinstance(sent, FrameRows)
    assert sent.frames.shape == (6, 2, 2, 1)  # both channels are equal, no frame comes twice, and no row has the last
    first = sent.stacks()[OBS][:, 0, 0]
    assert first.tolist() == [[0, 0, 0, 0, 1, 1, 2, 2], [1, 1, 2, 2, 3, 3, 3, 3], [4, 4, 4, 4, 5, 5, 5, 5]]
