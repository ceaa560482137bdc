"""Directories of runs: ``OUT/NAME`` made atomically under the run's lock, deleted, and cleaned of what a kill left.

Also the names of runs and trials (which ones a user may choose, and how others are derived), and the owner of a
directory: a run may be a stranger's.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Final

from rlexp.config.keys.trial import Trial
from rlexp.config.load import Plan
from rlexp.errors import ResumeError, UsageError
from rlexp.processes.locks import LOCK_FILE, RUN_FILE, RunLock, in_use, is_in_use
from rlexp.runs.record import hint_to_runs, read_run_record

MAX_NAME_BYTES: Final = 120
"""Room is left below the 255 bytes of a file system for ``-2``, ``.removing`` and the like."""
_FORBIDDEN: Final = re.compile(r"[/\\:\x00-\x1f\x7f]")


def check_name(name: str) -> str:
    """Return ``name`` if it is valid for a directory in OUT; raises UsageError if it could leave OUT or confuse.

    ``:`` is refused because TensorBoard's and other programs' path lists split at it.
    """
    if not name.strip() or name[0] in "-." or _FORBIDDEN.search(name):
        raise UsageError(
            f"{name!r} cannot be the name of a run",
            "a name may not contain '/', '\\' or ':', nor begin with '.' or '-'",
        )
    if len(name.encode()) > MAX_NAME_BYTES:
        raise UsageError(f"the name {name[:24]!r}… is too long", f"a name has at most {MAX_NAME_BYTES} bytes")
    return name


def usual_name(plan: Plan) -> str:
    """Return a run's name without ``--name``: its only experiment's, else the first file's."""
    return plan.experiments[0].name if len(plan.experiments) == 1 else plan.sources[0].stem


def derived_name(text: str) -> str:
    """Return the directory name that is most like ``text``, such as an experiment's name."""
    name = _FORBIDDEN.sub("-", text).lstrip("-. ").rstrip()
    return name.encode()[:MAX_NAME_BYTES].decode(errors="ignore") or "run"


def as_typed(directory: Path) -> Path:
    """Return ``directory`` as a user would type it: relative if it is below the working directory."""
    return directory.relative_to(Path.cwd()) if directory.is_relative_to(Path.cwd()) else directory


_REMAINS: Final = re.compile(r"\..+\.\d+\.removing")
_UNFINISHED: Final = (".*.writing", "*/.*.writing", "*/videos/.*.mp4")
"""Files and checkpoints of a run that are renamed when they are complete."""


def refuse_unwritable(out: Path, name: str | None, *, overwrite: bool) -> None:
    """Raise UsageError if no run can be made in ``out``, or the name is taken; nothing is left there.

    It is asked before what takes long: another process may still take the name meanwhile.
    """
    if name is not None and not overwrite and (out.absolute() / check_name(name)).exists():
        raise _taken(out.absolute() / name)
    folder = out.absolute()
    nearest = next(place for place in (folder, *folder.parents) if os.path.lexists(place))
    if not nearest.is_dir():
        raise _cannot_create(folder, NotADirectoryError(errno.ENOTDIR, f"{nearest} is not a directory"))
    try:
        os.rmdir(tempfile.mkdtemp(prefix=".rlexp-", dir=nearest))
        with suppress(FileNotFoundError):
            folder.stat()  # a name that no folder can have is refused
    except OSError as error:
        raise _cannot_create(folder, error) from error


def require_restored(trials: Iterable[Trial]) -> None:
    """Raise ResumeError if a path that ``restore`` names does not exist; what is there is not read."""
    for path in filter(None, map(restored, trials)):
        if not os.path.lexists(path):
            raise ResumeError(f"restore: path {path} does not exist", hint_to_runs(path))


def restored(trial: Trial) -> Path | None:
    """Return the absolute path that ``restore`` names, or None."""
    restore = trial.experiment.restore
    return None if restore is None else Path(os.path.expanduser(restore)).resolve()


def make_run_directory(out: Path, usual_name: str, name: str | None, *, overwrite: bool) -> tuple[Path, RunLock]:
    """Make and lock a new, empty directory in ``out``; see ``RunDirectory.create``."""
    wanted = check_name(name) if name is not None else derived_name(usual_name)
    out = out.absolute()
    with _created(out):
        remove_remains(out)
        if overwrite:
            _make_room(out / wanted)
        names = iter([wanted]) if name is not None else numbered(wanted)
        path = _first_free(out, names)
        return path, _locked(path)


def _first_free(out: Path, names: Iterator[str]) -> Path:
    for name in names:
        path = out / name
        try:
            # mkdir decides between two commands that want the same name at the same time.
            path.mkdir()
        except FileExistsError:
            continue
        except OSError as error:
            raise _cannot_create(path, error) from error
        return path
    raise _taken(path)


def _locked(path: Path) -> RunLock:
    try:
        return RunLock(path)
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise


def numbered(name: str) -> Iterator[str]:
    """Yield ``name``, then ``name`` with ``-2``, ``-3`` and so on."""
    yield name
    for number in count(2):
        yield f"{name}-{number}"


def _taken(path: Path) -> UsageError:
    if is_in_use(path):
        raise in_use(path)
    if not (path / RUN_FILE).is_file():
        return UsageError(f"{path} already exists and is not a run of rlexp", "choose another --name or --out")
    return UsageError(
        f"{path} already exists", "use --overwrite to replace it, rlexp resume to continue it, or another --name"
    )


def _make_room(path: Path) -> None:
    if not path.exists() and not path.is_symlink():
        return
    if path.is_symlink() or not (path / RUN_FILE).is_file():
        raise UsageError(f"--overwrite: {path} is not a run of rlexp", "choose another --name or --out")
    try:
        read_run_record(path)
    except ResumeError as error:
        raise UsageError(f"--overwrite: {error.message}", "choose another --name or --out, or delete it") from error
    try:
        with RunLock(path):  # Kept until the end, so that no other command begins to write there.
            remove_run(path)
    except OSError as error:
        raise UsageError(f"--overwrite: cannot delete {path}: {error.strerror}") from error


@contextmanager
def _created(out: Path) -> Iterator[None]:
    """Make ``out`` and its parents; if the body raises, remove the new ones."""
    missing = [path for path in [out, *out.parents] if not os.path.exists(path)]
    try:
        out.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException as error:
        for path in missing:
            with suppress(OSError):
                path.rmdir()
        if isinstance(error, OSError):
            raise _cannot_create(out, error) from error
        raise


def _cannot_create(path: Path, error: OSError) -> UsageError:
    return UsageError(f"cannot create {path}: {error.strerror}", "give a directory that can be written with --out")


def remove_run(path: Path) -> None:
    """Delete the directory of a run that the caller has locked; raises OSError if that fails.

    It is renamed first, so that its name is free at once. Its lock file is deleted last, as the remains of a killed
    deletion are recognised by it.
    """
    _delete(path.rename(path.with_name(f".{path.name}.{os.getpid()}.removing")))


def remove_remains(out: Path) -> None:
    """Delete the remains of an interrupted ``remove_run`` in ``out``, if they are this user's and not in use."""
    for path in out.glob(".*.removing"):
        if _are_remains(path):
            with suppress(ResumeError, OSError), RunLock(path):
                _delete(path)


def remove_unfinished(run: Path) -> None:
    """Delete files that were being written when a run was killed; the caller has its lock."""
    for path in (path for pattern in _UNFINISHED for path in run.glob(pattern)):
        if _is_directory(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _are_remains(path: Path) -> bool:
    with suppress(OSError):
        if _REMAINS.fullmatch(path.name) and _is_directory(path) and path.lstat().st_uid == os.geteuid():
            return (path / LOCK_FILE).is_file() or not any(path.iterdir())
    return False


def _delete(directory: Path) -> None:
    for path in directory.iterdir():
        if _is_directory(path):
            shutil.rmtree(path)
        elif path.name != LOCK_FILE:
            path.unlink()
    shutil.rmtree(directory)


def _is_directory(path: Path) -> bool:
    return stat.S_ISDIR(path.lstat().st_mode)


def refuse_foreign(path: Path) -> None:
    """Raise ResumeError for a path that belongs to another user, or that every user may write."""
    about = path.lstat()
    if about.st_uid != os.geteuid():
        raise ResumeError(f"{path} belongs to another user", "it can name modules to import: copy it if you trust it")
    if about.st_mode & stat.S_IWOTH and not stat.S_ISLNK(about.st_mode):
        raise ResumeError(f"{path} may be written by every user", "chmod -R o-w its folder, if you trust what is in it")


def run_of(checkpoint: Path) -> Path:
    """Return the run of a checkpoint, or the checkpoint itself if it was copied out of a run."""
    run = checkpoint.resolve().parent.parent
    return run if (run / RUN_FILE).is_file() else checkpoint.resolve()
