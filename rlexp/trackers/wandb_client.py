"""The client of Weights & Biases; the only file that imports wandb, in the tracker's process."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, cast

import wandb

from rlexp.config.keys.experiment import DEFAULT_PROJECT
from rlexp.errors import UsageError
from rlexp.processes.threads import without_current_folder
from rlexp.runs.record import Status
from rlexp.trackers.client import Note, TrackedRow, TrackedRun, TrackedTrial, TrialState

INIT_TIMEOUT_S: Final = 20.0
"""Seconds that the server may take to begin a run; then the run is recorded offline."""
FINISH_TIMEOUT_S: Final = 25.0
"""Seconds that the end of a run waits for the server; less than the command waits for this process."""
STEPS: Final = "timesteps_total"
"""The column that is the x axis of all charts."""
_Mode = Literal["online", "offline", "disabled", "shared"]
_ONLINE: Final = "online"
_OFFLINE: Final = "offline"
_LONGEST_TAG: Final = 64
_NOT_IN_AN_ARTIFACT: Final = re.compile(r"[^A-Za-z0-9._-]+")


class WandbClient:
    """The TrackerClient of wandb. Rows have an axis of their own, since wandb refuses a step lower than its last."""

    def __init__(self, note: Note) -> None:
        self._note = note
        with without_current_folder():  # wandb/settings there may name a server, which would get the account's key
            wandb.setup()

    def places(self, options: Sequence[Mapping[str, Any]]) -> list[str]:
        return [self._place(each) for each in options]

    def begin(self, trial: TrackedTrial, state: TrialState) -> TrackedRun:
        """Begin or continue the run; if the server does not answer, begin another one offline.

        The id of the first stays in use, as wandb keeps trying to send it.
        """
        state.id = state.id or _new_id()
        # Copies of checkpoints that wait to be sent lie beside the run that they belong to, not in a home directory.
        os.environ.setdefault("WANDB_DATA_DIR", str(Path(trial.run_folder, "wandb")))
        mode = _mode(trial.options)
        try:
            run = _opened(trial, state.id, mode)
        except Exception as error:  # its own classes of errors are many
            if mode != _ONLINE:
                raise
            offline_id = _new_id()
            run = _opened(trial, offline_id, _OFFLINE)
            if not state.rows:  # nothing was recorded under the other one
                state.id = offline_id
            what = f"{trial.name} is recorded offline in {Path(run.dir).parent}; wandb sync sends it"
            self._note(f"wandb: the server cannot be used ({_first_line(error)}); {what}")
        return WandbRun(run, trial, state.rows)

    def _place(self, options: Mapping[str, Any]) -> str:
        project, mode = _project(options), _mode(options)
        if mode != _ONLINE:
            return f"project {project}, {mode}, nothing is sent"
        try:
            is_known = wandb.login(verify=False)
        except Exception as error:  # without a terminal it cannot ask for a key
            raise UsageError(f"track: wandb has no account: {_first_line(error)}", _LOGIN) from error
        if not is_known:
            raise UsageError("track: wandb has no account", _LOGIN)
        entity = options["entity"] or os.environ.get("WANDB_ENTITY") or "of the account"
        return f"project {project}, entity {entity}, at {wandb.setup().settings.base_url}"


_LOGIN: Final = "wandb login, or WANDB_MODE=offline to send nothing"


class WandbRun:
    """One run of wandb; see TrackedRun."""

    def __init__(self, run: wandb.Run, trial: TrackedTrial, rows: int) -> None:
        """``rows``: the number of rows that earlier commands recorded."""
        self._run, self._trial = run, trial
        self._next = rows
        """wandb's own step, which only grows."""
        self._remove_links()
        run.define_metric(STEPS)
        run.define_metric("*", step_metric=STEPS)
        self.update(trial)

    def update(self, trial: TrackedTrial) -> None:
        origin = {"run": trial.run, "trial": trial.name, "versions": trial.versions, "git_commit": trial.git_commit}
        config = {**trial.config, "varied": trial.varied, "rlexp": origin}
        self._run.config.update(config, allow_val_change=True)

    def record(self, row: TrackedRow) -> None:
        self._log({**row.values, STEPS: row.steps})

    def send_checkpoint(self, path: Path) -> None:
        name = _NOT_IN_AN_ARTIFACT.sub("-", f"{self._trial.name}-{self._run.id}")
        artifact = wandb.Artifact(name, type="checkpoint")
        artifact.add_dir(str(path))
        self._run.log_artifact(artifact, aliases=["latest", path.name])

    def send_video(self, path: Path, steps: int) -> None:
        self._log({"video": wandb.Video(str(path)), STEPS: steps})

    def end(self, status: Status | None, summary: Mapping[str, float]) -> None:
        self._run.summary.update({**summary, "status": "INTERRUPTED" if status is None else str(status)})
        self._run.finish(exit_code=0 if status in (Status.TERMINATED, Status.PRUNED, Status.STOPPED) else 1)
        self._remove_links()

    def _log(self, values: Mapping[str, Any]) -> None:
        step = max(self._next, self._run.step)
        self._run.log(dict(values), step=step)
        self._next = step + 1

    def _remove_links(self) -> None:
        """Remove the links among its files, to a log in another folder: a run of rlexp with links is not resumed."""
        for path in Path(self._run.settings.sync_dir).rglob("*"):
            if path.is_symlink():
                path.unlink(missing_ok=True)


def _opened(trial: TrackedTrial, run_id: str, mode: _Mode) -> wandb.Run:
    options = trial.options
    settings = wandb.Settings(
        console="off",  # this process prints nothing that belongs there
        disable_git=True,  # git runs programs that the configuration of the current folder names
        finish_timeout=FINISH_TIMEOUT_S,
        init_timeout=float(os.environ.get("WANDB_INIT_TIMEOUT") or INIT_TIMEOUT_S),
        root_dir=os.environ.get("WANDB_DIR") or trial.run_folder,
        save_code=False,
        silent=True,
        symlink=False,  # see _remove_links
    )
    return wandb.init(
        project=_project(options),
        entity=options["entity"],
        group=options["group"] or os.environ.get("WANDB_RUN_GROUP") or trial.run,
        name=trial.name,
        id=run_id,
        resume="allow",
        tags=[tag[:_LONGEST_TAG] for tag in dict.fromkeys((trial.agent, trial.env, *options["tags"]))],
        mode=mode,
        reinit="create_new",  # the trials of a run are recorded at the same time
        settings=settings,
    )


def _new_id() -> str:
    return secrets.token_hex(4)


def _project(options: Mapping[str, Any]) -> str:
    return str(options["project"] or os.environ.get("WANDB_PROJECT") or DEFAULT_PROJECT)


def _mode(options: Mapping[str, Any]) -> _Mode:
    return cast(_Mode, options["mode"] or os.environ.get("WANDB_MODE") or _ONLINE)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
