"""Starts a training for a program, waits for its end, and returns it as a Run or raises why there is none."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from rlexp.api.child import Ended, train_in_process
from rlexp.api.experiment_sources import source_of
from rlexp.api.finished_run import Run, failed_run
from rlexp.api.request import TrainingRequest
from rlexp.errors import TrialError
from rlexp.processes.locks import RUN_FILE

_OF_SIGNALS: Final = 128
"""Exit codes above it are those of signals."""


def start_training(
    kind: Literal["run", "sweep"],
    experiments: str | Path | Sequence[str | Path] | Mapping[str, Any],
    *,
    out: str | Path,
    overrides: Sequence[str],
    imports: Sequence[str],
    **options: Any,
) -> Run:
    """See :func:`rlexp.run` and :func:`rlexp.sweep`; ``options`` are other fields of a request."""
    return _finished(
        TrainingRequest(
            kind,
            tuple(overrides),
            source_of(experiments),
            out=str(out),
            imports=tuple(imports),
            command=tuple(sys.argv),
            **options,
        )
    )


@dataclass(frozen=True)
class Allowed:
    """What a program lets a run name, see :func:`rlexp.resume`."""

    imports: Sequence[str]
    env: Sequence[str]
    classes: Sequence[str]
    storage: Sequence[str]


def resume_training(
    path: Path, overrides: Sequence[str], allowed: Allowed, address: str | None, quiet: bool, debug: bool
) -> Run:
    """See :func:`rlexp.resume`."""
    request = TrainingRequest(
        "resume",
        tuple(overrides),
        path=str(path),
        imports=tuple(allowed.imports),
        allow_env=tuple(allowed.env),
        allow_class=tuple(allowed.classes),
        allow_storage=tuple(allowed.storage),
        address=address,
        quiet=quiet,
        debug=debug,
    )
    return _finished(request)


def _finished(request: TrainingRequest) -> Run:
    ended = train_in_process(request)
    run = None if ended.directory is None or not (ended.directory / RUN_FILE).is_file() else Run.at(ended.directory)
    if ended.was_interrupted and ended.exit_code > _OF_SIGNALS:
        raise _interrupted(run)
    if ended.exit_code > _OF_SIGNALS:
        raise _stopped(ended, run)
    if run is None:
        raise TrialError("the run has no directory any more", "it was deleted or moved while it was trained")
    if ended.exit_code:
        raise failed_run(run)
    return run


def _interrupted(run: Run | None) -> KeyboardInterrupt:
    error = KeyboardInterrupt()
    if run is not None:
        error.add_note(_how_to_resume(run))
    return error


def _stopped(ended: Ended, run: Run | None) -> TrialError:
    name = signal.Signals(ended.exit_code - _OF_SIGNALS).name
    return TrialError(f"the run was stopped by {name}", None if run is None else _how_to_resume(run))


def _how_to_resume(run: Run) -> str:
    return f"rlexp.resume({str(run.directory)!r}) continues from its checkpoints"
