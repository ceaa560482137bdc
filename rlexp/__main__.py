"""The entry point of ``rlexp`` and ``python -m rlexp``."""

from __future__ import annotations

import gc
import os
import sys


def main() -> None:
    """Run the command line. Until a command can handle Ctrl-C, it ends this process at once.

    Python would raise KeyboardInterrupt in the middle of an import, where a library may handle it as a failure
    and continue.
    """
    _leave_current_folder()
    from rlexp.processes.signals import let_ctrl_c_end

    let_ctrl_c_end()
    from rlexp.processes.threads import few_collections

    with few_collections():
        from rlexp.cli import main as run_command

    try:
        run_command()
    finally:
        # Otherwise the interpreter searches all imports three times for garbage before it ends anyway: a sixth of the
        # CPU time of a light command.
        gc.freeze()


def _leave_current_folder() -> None:
    """Undo that ``python -m`` searches the current folder for every module, unless it contains rlexp itself."""
    try:
        here = os.getcwd()
    except FileNotFoundError:
        sys.exit("error: the current folder was deleted\nhint: cd to another folder")
    if sys.path[:1] == [here] and not os.path.samefile(here, os.path.dirname(os.path.dirname(__file__))):
        del sys.path[0]


if __name__ == "__main__":
    main()
