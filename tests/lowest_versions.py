"""The lowest versions that pyproject.toml allows, as constraints for pip: ``make test-lowest`` installs them.

torch keeps its version from constraints.txt: 2.10 has no CPU wheel on PyPI, and its CUDA wheel brings gigabytes.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
_REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9_.-]+)(\[[^\]]*\])?>=(?P<version>[0-9.]+)(,<[0-9.]+)?")
_NOT_TESTED = frozenset({"torch", "mypy", "ruff"})
"""mypy and ruff do not run in these tests; for torch see above."""


def lowest_versions() -> dict[str, str]:
    """Return the lower bound of every requirement that has one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    matches = (_REQUIREMENT.fullmatch(text) for texts in (project["dependencies"], *extras) for text in texts)
    return {match["name"]: match["version"] for match in matches if match}


def constraints() -> str:
    """Return a constraints file; raises StopIteration where constraints.txt has no torch."""
    fixed = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    lines = [f"{name}=={version}" for name, version in lowest_versions().items() if name not in _NOT_TESTED]
    return "\n".join([*lines, *(line for line in fixed if line.partition("==")[0] in _NOT_TESTED)]) + "\n"


if __name__ == "__main__":
    sys.stdout.write(constraints())
