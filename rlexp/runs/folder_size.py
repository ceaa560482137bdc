"""How much is in a folder: of a run, a checkpoint, or what a killed command has left."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from pathlib import Path


def size_below(folder: Path, most_entries: float = math.inf) -> tuple[int, bool]:
    """Return the bytes of the files below ``folder``, and whether these are all.

    With more than ``most_entries`` files and folders they are not. Those that are removed meanwhile or cannot be read
    are left out, and links are not followed.
    """
    total = number = 0
    folders = [str(folder)]
    while folders:
        with suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                number += 1
                if number > most_entries:
                    return total, False
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                    continue
                with suppress(OSError):
                    total += entry.stat(follow_symlinks=False).st_size
    return total, True
