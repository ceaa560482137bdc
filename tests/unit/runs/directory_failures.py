"""What may happen to a directory that is in use."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


def deleted(path: Path) -> None:
    shutil.rmtree(path)


def moved(path: Path) -> None:
    path.rename(path.with_name("moved"))


def replaced(path: Path) -> None:
    shutil.rmtree(path)
    path.mkdir()  # which gets the same inode on some file systems, unless the first one is kept open


LOSSES = pytest.mark.parametrize("lose", [deleted, moved, replaced])
Lose = Callable[[Path], None]
