"""Exports a checkpoint: reads it, makes the model, checks it, and only then writes the file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rlexp import __version__
from rlexp.agents.evaluator import evaluation_env
from rlexp.agents.export.observations import drawn_observations, played_observations
from rlexp.agents.export.onnx_model import onnx_model
from rlexp.agents.export.policy_graph import GreedyPolicy
from rlexp.agents.export.verification import Verification, Verifier, refuse_unplayed_actions
from rlexp.agents.loaded_checkpoint import LoadedCheckpoint
from rlexp.files import replace_bytes
from rlexp.runs.trust import run_of
from rlexp.user_code.import_guard import hides_what_is_beside
from rlexp.user_code.trusted_code import NOTHING_ALLOWED, TrustedCode

NUM_OBSERVATIONS: Final = 1000
"""On which a model is compared with its checkpoint, half of them from episodes."""
_TRACED_ROWS: Final = 2


@dataclass(frozen=True)
class Export:
    """A file that was written."""

    file: Path
    num_bytes: int
    checkpoint: Path
    metadata: dict[str, str]
    """As the file has them."""
    verification: Verification


@hides_what_is_beside
def export_checkpoint(checkpoint: Path, file: Path, trusted: TrustedCode = NOTHING_ALLOWED) -> Export:
    """Write the greedy policy of ``checkpoint`` to ``file`` as an ONNX model; one that is there is replaced.

    Raises CheckpointError where there is no good checkpoint, UsageError where its env cannot be made, ExportError where
    the model does not compute what the checkpoint plays. Then nothing was written.
    """
    loaded = LoadedCheckpoint.load(checkpoint, trusted=trusted)
    with loaded.errors_of_weights():
        policy = GreedyPolicy.of(loaded)
        metadata = _metadata(loaded, policy)
        model = onnx_model(policy.graph(), policy.example(_TRACED_ROWS), policy.output_names, metadata)
        verification = _verified(model, policy, loaded)
    replace_bytes(file, model)
    return Export(file, len(model), checkpoint, metadata, verification)


def _verified(model: bytes, policy: GreedyPolicy, loaded: LoadedCheckpoint) -> Verification:
    restored, half = policy.restored, NUM_OBSERVATIONS // 2
    env_config = evaluation_env(loaded.env_config, loaded.experiment.config.evaluation_config)
    player = restored.filters.applied_to(restored.policy)
    played = played_observations(player, env_config, half, loaded.seed("evaluation", None))
    drawn = drawn_observations(restored.observation_space, NUM_OBSERVATIONS - half, loaded.seed("export", None))
    observations = {"of its episodes": played, "drawn from the space": drawn}
    refuse_unplayed_actions(policy, observations)
    return Verifier(model, policy).verify(observations)


def _metadata(loaded: LoadedCheckpoint, policy: GreedyPolicy) -> dict[str, str]:
    """Return what the file says of where it is from; no path of this machine."""
    restored = policy.restored
    return {
        "rlexp_version": __version__,
        "agent": loaded.experiment.run,
        "env": loaded.experiment.env,
        "experiment": loaded.experiment.name,
        "run": run_of(loaded.checkpoint.path).name,
        "checkpoint": loaded.checkpoint.path.resolve().name,
        "training_iteration": str(loaded.checkpoint.sequence),
        "observation_space": str(restored.observation_space),
        "observations": "as the agent sees them: images [height, width, channels], anything else as one flat vector",
        "action_space": str(restored.action_space),
    }
