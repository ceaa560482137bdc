"""What ``rlexp`` and ``python -m rlexp`` start."""

from __future__ import annotations

import os
import signal


def main() -> None:
    """Run the command line; until a command can answer Ctrl-C, it ends this process at once.

    Python would raise KeyboardInterrupt in the middle of an import, where a library may take it for a failure of
    its own and go on.
    """
    # Not where a shell lets it be ignored; nor as a container's first process, which the system's way would not end.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler and os.getpid() != 1:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from rlexp.cli import main as run_command

    run_command()


if __name__ == "__main__":
    main()
