"""Fetching checkpoints from a run's storage, where its own directory has none any more; every byte is verified."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rlexp.errors import CheckpointError, DamagedCheckpointError, ResourceError
from rlexp.files import read_regular
from rlexp.processes.threads import Progress, bounded
from rlexp.runs.checkpoints.trial import (
    hidden_folder,
    is_checkpoint_name,
    iteration_of,
    list_checkpoints,
    publish_verified,
)
from rlexp.runs.record import RunRecord, TrialRecord
from rlexp.runs.storage import StoragePlace, said
from rlexp.text import MASK, masked

STALL_S: Final = 30.0
"""How long a download may come no further."""
_RESOLVED_FILE: Final = "resolved.yaml"
_STORAGE_LINE: Final = re.compile(r"^\s*storage:\s*['\"]?(\S+?)['\"]?\s*$", re.MULTILINE)


def folder_of(record: RunRecord) -> str:
    """Return the folder of a run in its storage: runs of other machines may have the same name."""
    return f"{record.name}-{re.sub('[^0-9]', '', record.started)[:14]}"


def fetch_missing(run: Path, record: RunRecord, urls: Mapping[str, str]) -> list[str]:
    """Fetch the newest good checkpoint of each trial that has none; return a sentence about each.

    ``urls`` has the storage of trials, by name. Raises ResourceError where a storage cannot be reached.
    """
    notes = []
    for trial in record.trials:
        url, directory = urls.get(trial.name), run / trial.directory
        if url is None or not trial.iterations or not directory.is_dir() or list_checkpoints(directory):
            continue
        found = _fetch(directory, url, folder_of(record), None)
        notes.append(f"{trial.name}: {'no checkpoint' if found is None else found.name} from {masked(url)}")
    return notes


def fetched_checkpoint(run: Path, record: RunRecord, trial: TrialRecord, name: str | None) -> Path | None:
    """Return the checkpoint ``name`` of a trial, or its newest, from its storage; None where that does not have it.

    It is in the trial's directory then. Raises ResourceError where the storage cannot be reached.
    """
    if trial.storage is None or not (run / trial.directory).is_dir():
        return None
    return _fetch(run / trial.directory, unmasked(run, trial.storage), folder_of(record), name)


def _fetch(directory: Path, url: str, folder: str, name: str | None) -> Path | None:
    """Fetch a checkpoint to a trial's directory, the newest good one unless it is named."""

    def work(progress: Progress) -> Path | None:
        trial = StoragePlace.at(url).below(folder, directory.name)
        names = [each for each in trial.names() if is_checkpoint_name(each) and name in (None, each)]
        for each in sorted(names, key=lambda each: iteration_of(Path(each)), reverse=True):
            progress()
            try:
                with hidden_folder(directory / each) as hidden:
                    trial.below(each).get(hidden, progress)
                    return publish_verified(hidden, directory / each)
            except DamagedCheckpointError:
                continue  # an older one may be whole
        return None

    try:
        return bounded(work, STALL_S, f"storage {masked(url)}")
    except OSError as error:
        message = f"cannot fetch checkpoints of {directory.name} from {masked(url)}: {said(error, url)}"
        raise ResourceError(message, "look at the network and at the credentials") from None


def unmasked(run: Path, url: str) -> str:
    """Return the URL with the secrets that only ``resolved.yaml`` has; raises CheckpointError where they are gone."""
    if MASK not in url:
        return url
    try:
        text = read_regular(run / _RESOLVED_FILE).decode()
    except (OSError, ValueError):
        text = ""
    for found in _STORAGE_LINE.findall(text):
        if masked(found) == url:
            return str(found)
    raise CheckpointError(f"the credentials of {url} are not in {run / _RESOLVED_FILE} any more")
