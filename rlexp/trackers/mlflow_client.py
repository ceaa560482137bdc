"""The client of MLflow; the only file that imports mlflow, in the tracker's process."""

from __future__ import annotations

import getpass
import importlib.util
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote

from mlflow import MlflowClient
from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException

from rlexp.config.keys.experiment import DEFAULT_PROJECT
from rlexp.errors import UsageError
from rlexp.files import to_json
from rlexp.runs.record import Status
from rlexp.runs.rows import flatten
from rlexp.text import masked
from rlexp.trackers.client import Note, TrackedRow, TrackedRun, TrackedTrial, TrialState

T = TypeVar("T")
DATABASE: Final = "mlflow.db"
"""The database beside the runs, used unless MLFLOW_TRACKING_URI names another place."""
ARTIFACTS: Final = "mlruns"
"""The folder of the artifacts of that database."""
STATUSES: Final[Mapping[Status | None, str]] = {
    Status.TERMINATED: "FINISHED",
    Status.PRUNED: "FINISHED",
    Status.STOPPED: "KILLED",
    Status.ERROR: "FAILED",
    None: "KILLED",
}
"""How a run of MLflow ends, by how its trial has; None: the command died."""
_BATCH: Final = 100
"""The most parameters that MLflow takes in one call."""
_LONGEST_VALUE: Final = 6000
_NOT_IN_A_NAME: Final = re.compile(r"[^\w\-. /:]", re.ASCII)


class MlflowTracker:
    """The TrackerClient of MLflow."""

    def __init__(self, out: Path, note: Note) -> None:
        """``out``: the directory that contains the run."""
        self._out, self._note = out, note
        self._uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{out / DATABASE}"
        self._client: MlflowClient | None = None
        self._experiments: dict[str, str] = {}

    def places(self, options: Sequence[Mapping[str, Any]]) -> list[str]:
        needed = ("sqlalchemy", "alembic") if self._uri.startswith("sqlite:") else ()
        missing = [name for name in needed if importlib.util.find_spec(name) is None]
        if missing:
            raise UsageError(f"track: mlflow needs {' and '.join(missing)}", "pip install 'rlexp[mlflow]'")
        return [f"experiment {_experiment(each)}, in {masked(self._uri)}" for each in options]

    def begin(self, trial: TrackedTrial, state: TrialState) -> TrackedRun:
        if self._client is None:
            self._client = MlflowClient(tracking_uri=self._uri)
        if state.id and not self._is_there(self._client, state.id):
            self._note(f"mlflow has no run {state.id} in {masked(self._uri)}: {trial.name} gets a new one")
            state.id, state.sent = "", {}
        if state.id:
            self._client.update_run(state.id, status="RUNNING")
        else:
            experiment = self._experiment_id(self._client, _experiment(trial.options))
            state.id = self._client.create_run(experiment, run_name=trial.name, tags=_tags(trial)).info.run_id
        return MlflowRun(self._client, state.id, trial)

    def _is_there(self, client: MlflowClient, run_id: str) -> bool:
        try:
            return bool(client.get_run(run_id).info.lifecycle_stage == "active")
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return False
            raise

    def _experiment_id(self, client: MlflowClient, name: str) -> str:
        if name not in self._experiments:
            known = client.get_experiment_by_name(name)
            self._experiments[name] = known.experiment_id if known else self._new_experiment(client, name)
        return self._experiments[name]

    def _new_experiment(self, client: MlflowClient, name: str) -> str:
        own = not os.environ.get("MLFLOW_TRACKING_URI")
        place = f"{(self._out / ARTIFACTS).as_uri()}/{quote(name, safe='')}" if own else None
        try:
            return str(client.create_experiment(name, artifact_location=place))
        except MlflowException:
            known = client.get_experiment_by_name(name)  # another command was faster
            if known is None:
                raise
            return str(known.experiment_id)


class MlflowRun:
    """One run of MLflow; see TrackedRun. Parameters of MLflow never change: one that does becomes a tag."""

    def __init__(self, client: MlflowClient, run_id: str, trial: TrackedTrial) -> None:
        self._client, self._run_id = client, run_id
        self._steps, self._time_ms = 0, 0
        self.update(trial)

    def update(self, trial: TrackedTrial) -> None:
        known = self._client.get_run(self._run_id).data.params
        now = dict(_parameters(trial))
        new = [Param(name, value) for name, value in now.items() if name not in known]
        for params in _batches(new):
            self._client.log_batch(self._run_id, params=params)
        for name in now.keys() & known.keys():
            if now[name] != known[name]:
                self._client.set_tag(self._run_id, f"changed.{name}", now[name])

    def record(self, row: TrackedRow) -> None:
        self._steps, self._time_ms = row.steps, int(row.time_s * 1000)
        self._log(row.values)

    def send_checkpoint(self, path: Path) -> None:
        self._client.log_artifacts(self._run_id, str(path), f"checkpoints/{path.name}")

    def send_video(self, path: Path, steps: int) -> None:
        self._client.log_artifact(self._run_id, str(path), "videos")

    def end(self, status: Status | None, summary: Mapping[str, float]) -> None:
        self._log(summary)
        self._client.set_tag(self._run_id, "rlexp.status", "INTERRUPTED" if status is None else str(status))
        self._client.set_terminated(self._run_id, STATUSES[status])

    def _log(self, values: Mapping[str, float]) -> None:
        numbers = ((_NOT_IN_A_NAME.sub("_", name), value) for name, value in values.items())
        metrics = (Metric(name, value, self._time_ms, self._steps) for name, value in numbers)
        for batch in _batches(metrics):
            self._client.log_batch(self._run_id, metrics=batch)


def _experiment(options: Mapping[str, Any]) -> str:
    return str(options["experiment"] or os.environ.get("MLFLOW_EXPERIMENT_NAME") or DEFAULT_PROJECT)


def _tags(trial: TrackedTrial) -> dict[str, str]:
    own = {"run": trial.run, "trial": trial.name, "agent": trial.agent, "env": trial.env}
    tags = {f"rlexp.{name}": value for name, value in own.items()}
    tags |= {f"version.{name}": value for name, value in trial.versions.items() if value is not None}
    tags |= {"mlflow.user": getpass.getuser(), "mlflow.source.name": "rlexp"}
    if trial.git_commit is not None:
        tags["mlflow.source.git.commit"] = trial.git_commit
    return tags | dict(trial.options["tags"])


def _parameters(trial: TrackedTrial) -> Iterator[tuple[str, str]]:
    """Yield the keys as ``-o`` spells them, and varied keys again as ``varied.KEY``; without those that are null."""
    varied = {f"varied.{key}": value for key, value in trial.varied.items()}
    for key, value in flatten({**trial.config, **varied}).items():
        if value is not None:
            text = value if isinstance(value, str) else to_json(value)
            yield _NOT_IN_A_NAME.sub("_", key.replace("/", ".")), text[:_LONGEST_VALUE]


def _batches(items: Iterable[T]) -> Iterator[list[T]]:
    remaining = iter(items)
    while batch := list(islice(remaining, _BATCH)):
        yield batch
