"""The keys of R2D2 (Kapturowski et al. 2019): DQN with an LSTM, on sequences of replay; alone and in Ape-X's data path.

Defaults are RLlib 1.4's unless a docstring says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from rlexp.config.keys.apex import ApexKeys
from rlexp.config.keys.common import ReplayNeeds, SequenceNeeds
from rlexp.config.keys.dqn import DQNConfig
from rlexp.config.keys.experiment import Experiment
from rlexp.config.keys.fields import Conflict, Count, CountOrZero, Fraction, Positive, PositiveOrZero, defaults_of
from rlexp.config.keys.model import RecurrentModelConfig

_SEQUENCE_KEYS = ("burn_in", "replay_sequence_length", "zero_init_states")


class MemoryModelConfig(RecurrentModelConfig):
    """The network of an agent that needs an LSTM."""

    use_lstm: bool = True


class R2D2Config(DQNConfig):
    """What is under ``config:`` for ``run: R2D2``."""

    ROLLOUT_KEYS = DQNConfig.ROLLOUT_KEYS | {*_SEQUENCE_KEYS}
    KEPT_BY_PBT = (*DQNConfig.KEPT_BY_PBT, *_SEQUENCE_KEYS)

    num_workers: CountOrZero = 2
    batch_mode: Literal["truncate_episodes", "complete_episodes"] = "complete_episodes"
    lr: Positive = 1e-4
    gamma: Fraction = 0.997
    adam_epsilon: Positive = 1e-3
    train_batch_size: Count = 1280
    buffer_size: Count = 100_000
    prioritized_replay: bool = False
    target_network_update_freq: CountOrZero = 2500

    model: MemoryModelConfig = defaults_of(MemoryModelConfig)
    """The network between the observation and the heads, with an LSTM."""

    burn_in: CountOrZero = 0
    """Observations before each sequence, from which the LSTM only computes its state: they are not learned. Fewer at an
    episode's start."""

    replay_sequence_length: Count | None = None
    """Steps of a sequence in replay, ``burn_in`` included. Null: ``burn_in`` + ``model.max_seq_len``.

    A sequence is of one episode, and the next one begins where it ends, so that each step is learned in one of them.
    """

    zero_init_states: bool = True
    """Start each sequence from the LSTM state 0. False: from the state that the worker had there."""

    use_h_function: bool = True
    """Learn h(Q) instead of Q, which makes large values smaller: h(x) = sign(x) (sqrt(abs(x) + 1) - 1) + epsilon x."""

    h_function_epsilon: PositiveOrZero = 1e-3
    """The epsilon of ``use_h_function``."""

    @property
    def learned_length(self) -> int:
        """Steps of a sequence that are learned; at least 1 without conflicts."""
        if self.replay_sequence_length is None:
            return self.model.max_seq_len
        return max(self.replay_sequence_length - self.burn_in, 1)

    @property
    def replay(self) -> ReplayNeeds:
        """Replay of sequences."""
        return replace(
            super().replay, sequences=SequenceNeeds(self.learned_length, self.burn_in, not self.zero_init_states)
        )

    def ineffective_keys(self) -> Iterator[tuple[str, str]]:
        yield from super().ineffective_keys()
        if self.replay_sequence_length is not None:
            yield "model.max_seq_len", "replay_sequence_length is given"
        if not self.use_h_function:
            yield "h_function_epsilon", "use_h_function is false"

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        if not self.model.use_lstm:
            yield Conflict(("model.use_lstm",), "model.use_lstm is false, but R2D2 needs an LSTM", "use DQN")
        if self.num_atoms > 1:
            hint = "leave num_atoms out, or use DQN"
            yield Conflict(
                ("num_atoms",), f"{self.stated('num_atoms')}, but R2D2 learns means, not distributions", hint
            )
        if self.parameter_noise:
            hint = "noisy: true explores by noise in the heads"
            yield Conflict(
                ("parameter_noise",), "parameter_noise is true, but R2D2 does not have noise on all weights", hint
            )
        if self.replay_sequence_length is not None and self.replay_sequence_length <= self.burn_in:
            length = self.stated("replay_sequence_length")
            message = f"{length}, so that no step is left to be learned after burn_in: {self.burn_in}"
            yield Conflict(("replay_sequence_length",), message, "raise replay_sequence_length or lower burn_in")


class ApexR2D2Config(ApexKeys, R2D2Config):
    """What is under ``config:`` for ``run: APEX_R2D2``."""

    worker_side_prioritization: bool = True
    prioritized_replay: bool = True
    n_step: Count = 5

    # These are R2D2's: a key that ApexKeys inherits would win over it.
    batch_mode: Literal["truncate_episodes", "complete_episodes"] = "truncate_episodes"
    lr: Positive = 1e-4
    gamma: Fraction = 0.997
    adam_epsilon: Positive = 1e-3
    train_batch_size: Count = 1280
    grad_norm_clipping: Positive | None = 40.0
    model: MemoryModelConfig = defaults_of(MemoryModelConfig)

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        if self.replay_storage == "shared_memory":
            message = f"{self.stated('replay_storage')}, which has room for single transitions only"
            yield Conflict(("replay_storage",), message, "leave replay_storage out")


class R2D2Experiment(Experiment):
    """An experiment with R2D2."""

    AGENT = "rlexp.agents.r2d2.agent:R2D2Agent"
    POLICIES = "rlexp.agents.r2d2.policy:R2D2Policies"
    run: Literal["R2D2"]
    config: R2D2Config = defaults_of(R2D2Config)


class ApexR2D2Experiment(R2D2Experiment):
    """An experiment with R2D2 in the data path of Ape-X."""

    AGENT = "rlexp.agents.r2d2.agent:ApexR2D2Agent"
    run: Literal["APEX_R2D2"]  # type: ignore[assignment]
    config: ApexR2D2Config = defaults_of(ApexR2D2Config)
