"""How much memory full replay takes, as far as the file says it."""

from __future__ import annotations

import math

from rlexp.config.keys.common import ReplayNeeds
from rlexp.config.keys.env_ids import has_game_frames
from rlexp.config.keys.experiment import Experiment

_STACKED = 4
"""Frames in one stacked observation."""

_BESIDE_OBSERVATIONS = 128
"""Bytes of a transition beside its frames, at most: action, reward, discount, priority, and which frames it shows."""

_PACKED_SHARE = 1 / 6
"""What LZ4 leaves of a frame, at most: of 24 games played at random, from a fifty-ninth (Pong) to a ninth (UpNDown)."""

_GROWTH = 33 / 32
"""Room for frames beside those that replay holds, at most: it grows by so much at a time."""


def replay_bytes(experiment: Experiment) -> int:
    """Return the bytes that replay may take, an upper bound; 0 without replay, and where only the env knows it."""
    replay, each = experiment.config.replay, bytes_per_transition(experiment)
    return 0 if replay is None or each is None else each * replay.capacity


def bytes_per_transition(experiment: Experiment) -> int | None:
    """Return the bytes of one transition of full replay, an upper bound; None where only the env knows it."""
    config, replay = experiment.config, experiment.config.replay
    is_prepared_only = config.effective_preprocessor_pref == "deepmind" and not config.env_wrappers
    if replay is None or not has_game_frames(experiment.env, config.env_config) or not is_prepared_only:
        return None
    frame, stacked = config.model.atari_dim**2, _STACKED if config.model.framestack else 1
    if replay.on_device and config.num_gpus:
        return _BESIDE_OBSERVATIONS
    if replay.keeps_whole_observations:
        return _BESIDE_OBSERVATIONS + 2 * stacked * frame
    packed = _PACKED_SHARE if replay.storage == "compressed_frames" else 1.0
    return _BESIDE_OBSERVATIONS + math.ceil(
        frame * packed * frames_per_transition(replay, config.fragment_length, stacked)
    )


def frames_per_transition(replay: ReplayNeeds, fragment_length: int, stacked: int) -> float:
    """Return for how many frames of each transition replay has room.

    It is one, and for each fragment whose predecessor went to another shard those that the two share.
    """
    from_elsewhere = 1 - 1 / replay.num_shards
    return _GROWTH * (1 + from_elsewhere * (replay.n_step + stacked - 1) / fragment_length)
