"""``rlexp.load_policy`` and ``rlexp.results``: what came of runs; importing this loads nothing but Python's own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rlexp.api.arguments import checked_arguments

if TYPE_CHECKING:
    from rlexp.agents.trained_policy import TrainedPolicy
    from rlexp.run_results.table import Results


@checked_arguments
def load_policy(
    path: str | Path,
    *,
    explore: bool = False,
    seed: int | None = None,
    imports: Sequence[str] = (),
    allow_env: Sequence[str] = (),
    allow_class: Sequence[str] = (),
    allow_storage: Sequence[str] = (),
) -> TrainedPolicy:
    """Return a trained policy, which acts on observations of its env.

    Ray is not loaded, and torch only for networks that are more than fully connected layers.

    Args:
        path: a checkpoint, or a trial or run, of which it is the best checkpoint.
        explore: draw actions as evaluations do that explore; else they are greedy.
        seed: of these draws; None: that of the run, so that each load draws the same.
        imports: modules that register its env. Those that the run names are imported too if they are named here, or
            are files that you have trained with; so are the classes that it names.
        allow_env: envs of modules (``module:Class``) that the run may play.
        allow_class: classes (``module:Class``) that its config may name: wrappers, torsos.
        allow_storage: storages from which its checkpoints may be fetched, if you have not trained with them.

    Raises:
        ResumeError: where there is no run, trial or checkpoint, or it names code that is not allowed.
        CheckpointError: where the checkpoint is damaged.
        UsageError: where its env cannot be made here.

    """
    from rlexp.agents.trained_policy import load_trained_policy
    from rlexp.user_code.trusted_code import TrustedCode

    trusted = TrustedCode.of(imports, allow_env, allow_class, allow_storage)
    return load_trained_policy(Path(path), explore, seed, trusted)


@checked_arguments
def results(*paths: str | Path) -> Results:
    """Return the results of runs or trials as a table: one row for each iteration of each trial.

    Args:
        paths: directories of runs or trials; also of runs that have not ended.

    Raises:
        UsageError: where there is no run or trial.

    """
    from rlexp.run_results.table import read_results

    return read_results([Path(path) for path in paths])
