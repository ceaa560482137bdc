"""The trials of a run that is resumed: which they are, and which of them have ended."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlexp.config.keys.trial import Trial
from rlexp.config.load import Plan
from rlexp.errors import ResumeError
from rlexp.files import to_json
from rlexp.processes.locks import RUN_FILE
from rlexp.runs.last_row import last_row
from rlexp.runs.run_record import RESOLVED_FILE, RunRecord, Status, TrialRecord
from rlexp.runs.secrets import masked
from rlexp.tuning.stop_condition import ended_by


def recorded_trials(path: Path, plan: Plan, record: RunRecord) -> Iterator[Trial]:
    """Yield the trials of ``plan``, read from ``resolved.yaml``, by the names and in the order that they had.

    The file has its keys in another order than the one it was made of, so a grid's trials come in another order
    and with other names; the varied values and the seed identify them. Raises ResumeError for an unknown one.
    """
    names: dict[str, deque[str]] = defaultdict(deque)
    for known in record.trials:
        names[_identity(known.varied, known.seed)].append(known.name)
    found: list[Trial] = []
    for trial in plan.trials:
        called = names[_identity(masked(trial.varied), trial.experiment.config.seed)]
        if not called:
            raise ResumeError(
                f"{path / RESOLVED_FILE} makes a trial {trial.name} that {path / RUN_FILE} does not know",
                "do not change the values of its grid or its seed",
            )
        found.append(replace(trial, name=called.popleft()))
    order = {known.name: index for index, known in enumerate(record.trials)}
    for trial in sorted(found, key=lambda trial: order[trial.name]):
        yield replace(trial, index=order[trial.name])


def _identity(varied: Mapping[str, Any], seed: int | None) -> str:
    return to_json([sorted(varied.items()), seed])


def has_ended(trial: Trial, record: TrialRecord, directory: Path) -> bool:
    """Return whether a trial has reached its ``stop``, which may have changed since, by the last row in ``directory``.

    One that was killed right after its last row has ended too, though ``run.json`` does not say so.
    """
    row = last_row(directory)
    if row is None:
        return record.status is Status.TERMINATED
    is_over = record.status in (Status.TERMINATED, Status.RUNNING, Status.PENDING)
    return is_over and ended_by(trial.experiment.stop, row)
