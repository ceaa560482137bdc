"""An LSTM in torch over sequences of rows, for learning; ``memory`` has its step in NumPy, for acting.

A learner's rows are flat ``[N, ...]``, sequence after sequence. So there is no padding that a loss could see.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from rlexp.models.memory import PREVIOUS, SEQUENCE_STARTS, STATE_IN
from rlexp.models.network_config import MemoryConfig


@dataclass(frozen=True)
class Sequences:
    """How N rows are divided into C sequences, and what a memory starts each of them with."""

    lengths: Tensor
    """Rows ``[C]`` of each sequence, at least 1; int64, on the CPU."""
    states: Tensor
    """States ``[C, 2 H]`` before the first row of each."""
    previous: Tensor | None = None
    """Numbers ``[N, P]`` of the step before each row: see ``PreviousStep``."""

    @property
    def starts(self) -> Tensor:
        """The first row ``[C]`` of each sequence, on the CPU."""
        return self.lengths.cumsum(0) - self.lengths

    def part(self, chosen: Tensor) -> tuple[Tensor, Sequences]:
        """Return the rows ``[n]`` of the ``chosen [c]`` sequences, and these sequences."""
        chosen = chosen.cpu()
        lengths = self.lengths[chosen]
        begins = (self.starts[chosen] - (lengths.cumsum(0) - lengths)).repeat_interleave(lengths)
        rows = (begins + torch.arange(len(begins))).to(self.states.device)
        previous = None if self.previous is None else self.previous.index_select(0, rows)
        return rows, Sequences(lengths, self.states.index_select(0, chosen.to(self.states.device)), previous)


def sequences_of(columns: Mapping[str, Tensor]) -> Sequences | None:
    """Return the sequences that ``memory_columns`` of rows ``[N]`` describe; None if there are none."""
    if SEQUENCE_STARTS not in columns:
        return None
    starts = columns[SEQUENCE_STARTS]
    first = starts.nonzero().squeeze(1)
    lengths = torch.diff(first.cpu(), append=torch.tensor([len(starts)]))
    return Sequences(lengths, columns[STATE_IN].index_select(0, first), columns.get(PREVIOUS))


class LSTM(nn.Module):
    """Maps features of rows, and of the step before each, to outputs ``[N, H]`` that depend on all earlier rows."""

    def __init__(self, num_features: int, config: MemoryConfig) -> None:
        super().__init__()
        self.num_features = config.cell_size
        self.sees_previous = config.num_previous > 0
        self.lstm = nn.LSTM(num_features + config.num_previous, config.cell_size)

    def forward(self, features: Tensor, sequences: Sequences) -> tuple[Tensor, Tensor]:
        """Return the outputs ``[N, H]`` for ``features [N, F]``, and the states ``[C, 2 H]`` after each sequence."""
        order, sizes, rank = _packed_order(sequences.lengths)
        order, rank = order.to(features.device), rank.to(features.device)
        seen = features if sequences.previous is None else torch.cat([features, sequences.previous], dim=1)
        first = sequences.states.index_select(0, rank.argsort())
        output, cell = first.chunk(2, dim=1)
        packed = PackedSequence(seen.index_select(0, order), sizes)
        outputs, (last_output, last_cell) = self.lstm(packed, (output[None].contiguous(), cell[None].contiguous()))
        last = torch.cat([last_output[0], last_cell[0]], dim=1).index_select(0, rank)
        return outputs.data.index_select(0, order.argsort()), last

    def step(self, features: Tensor, previous: Tensor | None, states: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs ``[B, H]`` of one row for each of B sequences, and the next states ``[B, 2 H]``."""
        seen = features if previous is None else torch.cat([features, previous], dim=1)
        output, cell = states.chunk(2, dim=1)
        of_seen, of_output, seen_bias, output_bias = self.lstm.all_weights[0]
        gates = nn.functional.linear(seen, of_seen, seen_bias) + nn.functional.linear(output, of_output, output_bias)
        let_in, forget, new, let_out = gates.chunk(4, dim=1)
        cell = forget.sigmoid() * cell + let_in.sigmoid() * new.tanh()
        output = let_out.sigmoid() * cell.tanh()
        return output, torch.cat([output, cell], dim=1)


def unpacked(packed: Tensor, rewards: Tensor | None, num_action_numbers: int) -> tuple[Tensor, Tensor | None]:
    """Return the states ``[B, 2 H]`` and the previous step ``[B, P]`` of a memory ``[B, S]`` that EpisodeMemory packed.

    ``rewards [B]`` are of the actions before; None if the network does not see them.
    """
    size = packed.shape[1] - num_action_numbers
    action = packed[:, size:]
    if rewards is not None:
        return packed[:, :size], torch.cat([action, rewards.unsqueeze(1)], dim=1)
    return packed[:, :size], action if num_action_numbers else None


def _packed_order(lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return how torch packs C sequences: all first rows, then all second rows, and so on, the longest sequence first.

    The results are the rows ``[N]`` in that order, how many rows have each place in their sequence, and the rank
    ``[C]`` of each sequence by length.
    """
    by_length = lengths.argsort(descending=True, stable=True)
    rank = by_length.argsort()
    starts = lengths.cumsum(0) - lengths
    place = torch.arange(int(lengths.sum())) - starts.repeat_interleave(lengths)
    sizes = place.bincount()
    order = (place * len(lengths) + rank.repeat_interleave(lengths)).argsort()
    return order, sizes, rank
