"""What ``rlexp`` and ``python -m rlexp`` start."""

from __future__ import annotations

import gc
import os
import signal
import sys


def main() -> None:
    """Run the command line; until a command can answer Ctrl-C, it ends this process at once.

    Python would raise KeyboardInterrupt in the middle of an import, where a library may handle it as a failure
    and continue.
    """
    _leave_current_folder()
    # Not where a shell lets it be ignored; nor as a container's first process, which the system's way would not end.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler and os.getpid() != 1:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from rlexp.early_imports import few_collections

    with few_collections():
        from rlexp.cli import main as run_command

    try:
        run_command()
    finally:
        # Else the interpreter searches all that was imported three times for garbage, before it ends anyway: a sixth of
        # the CPU time of a light command.
        gc.freeze()


def _leave_current_folder() -> None:
    """Undo that ``python -m`` searches the current folder for every module, except where it contains rlexp itself."""
    here = os.getcwd()
    if sys.path[:1] == [here] and not os.path.samefile(here, os.path.dirname(os.path.dirname(__file__))):
        del sys.path[0]


if __name__ == "__main__":
    main()
