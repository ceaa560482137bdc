"""The command line, as learning tests use it."""

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
TIMEOUT_S = 600


def rlexp(*arguments: object, timeout_s: float = TIMEOUT_S) -> subprocess.CompletedProcess[str]:
    """Run a command from the repository's root, where the modules of tests are found; return what became of it."""
    return subprocess.run(
        [sys.executable, "-m", "rlexp", *map(str, arguments)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
