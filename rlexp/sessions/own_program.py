"""Processes that run a module of this package: nothing is imported from the folder where the command runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import rlexp

_PACKAGES: Final = str(Path(rlexp.__file__).parents[1])


def own_program(module: str, *words: str) -> list[str]:
    """Return the command that runs a module; ``-m`` alone would search the current folder for every module first."""
    return [sys.executable, "-P", "-m", module, *words]


def own_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment in which ``own_program`` finds this package, wherever it lies."""
    paths = (_PACKAGES, environment.get("PYTHONPATH", ""))
    return {**environment, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
