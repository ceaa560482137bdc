"""Which commit a run was started from: read without any program that the repository names.

A repository's configuration and hooks name programs that git runs: ``core.fsmonitor``, filters, ``textconv``. A folder
may be a stranger's, so git is never shown that configuration: it gets a folder of ours in place of ``.git``, with the
repository's objects and its index.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from rlexp.files import read_regular

_TIMEOUT_S: Final = 5.0
_MOST_BYTES: Final = 16 << 20
"""Of a file of git's that is read; packed-refs of a large repository has some MB."""
_HASH: Final = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_REF: Final = re.compile(r"refs/[\w./+@#=-]+")
_SHA256_LENGTH: Final = 64
_CHANGED: Final = 1
"""The exit code of ``git diff --quiet`` where files differ."""
_WITH_SHA256: Final = "[core]\n\trepositoryformatversion = 1\n[extensions]\n\tobjectFormat = sha256\n"


def git_commit(directory: Path) -> str | None:
    """Return the commit checked out in ``directory``, ``-dirty`` after it where tracked files differ, else None."""
    for tree in (directory.absolute(), *directory.absolute().parents):
        folder = _git_folder(tree / ".git")
        if folder is not None:
            commit = _head(folder)
            return commit if commit is None or not _is_dirty(tree, folder, commit) else f"{commit}-dirty"
    return None


def _git_folder(path: Path) -> Path | None:
    """Return the folder of git that ``path`` is, or names: that of a worktree is elsewhere."""
    if path.is_dir():
        return path
    named = (_text(path) or "").partition("gitdir:")[2].strip()
    folder = path.parent / named
    return folder if named and folder.is_dir() else None


def _head(folder: Path) -> str | None:
    """Return the commit of HEAD, None where it cannot be read: there is none yet, or refs are kept in another way."""
    head = (_text(folder / "HEAD") or "").strip()
    if _HASH.fullmatch(head):
        return head
    ref = head.removeprefix("ref:").strip()
    if not _REF.fullmatch(ref) or ".." in ref:
        return None
    common = _common(folder)
    for place in dict.fromkeys((folder, common)):
        commit = (_text(place / ref) or "").strip()
        if _HASH.fullmatch(commit):
            return commit
    lines = (line.split(" ") for line in (_text(common / "packed-refs") or "").splitlines())
    packed = next((words[0] for words in lines if words[1:] == [ref]), "")
    return packed if _HASH.fullmatch(packed) else None


def _common(folder: Path) -> Path:
    """Return where the refs and objects are that a worktree shares with others."""
    named = (_text(folder / "commondir") or "").strip()
    return folder / named if named else folder


def _is_dirty(tree: Path, folder: Path, commit: str) -> bool:
    """Return whether tracked files differ from ``commit``; False where that cannot be found out."""
    index, objects = folder / "index", _common(folder) / "objects"
    if not index.is_file() or not objects.is_dir():
        return False
    with tempfile.TemporaryDirectory(prefix="rlexp-git-") as own:
        Path(own, "refs").mkdir()
        Path(own, "HEAD").write_text(f"{commit}\n", encoding="ascii")
        Path(own, "config").write_text(_WITH_SHA256 if len(commit) == _SHA256_LENGTH else "", encoding="ascii")
        places = {"GIT_DIR": own, "GIT_WORK_TREE": tree, "GIT_OBJECT_DIRECTORY": objects, "GIT_INDEX_FILE": index}
        words = ("diff", "--quiet", "--no-ext-diff", "--no-textconv", "--ignore-submodules=all", commit)
        try:
            done = subprocess.run(
                ["git", "--no-optional-locks", *words, "--"],
                cwd=tree,
                env=_environment() | {name: str(place) for name, place in places.items()},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_TIMEOUT_S,
            )
        except (OSError, subprocess.SubprocessError):
            return False
    return done.returncode == _CHANGED


def _environment() -> dict[str, str]:
    """Return the environment without what configures git: no file of this user's or of the system names programs."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return kept | {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "GIT_TERMINAL_PROMPT": "0"}


def _text(path: Path) -> str | None:
    """Return a small regular file as text, None where it is none."""
    try:
        return read_regular(path, _MOST_BYTES).decode("utf-8", errors="replace")
    except (OSError, ValueError):
        return None
