"""What a raylet of our own has in place of an agent: a process that does nothing, and ends with the raylet.

It is run as a script without site-packages, which takes a fiftieth of the time that an agent takes.
"""

import os
import time

INTERVAL_S = 1.0
RAYLET_PID = "RAY_RAYLET_PID"
"""The variable in which a raylet tells its agents who it is: it may have ended before they can ask."""


def wait_for_end(parent: int) -> None:
    """Return once the process ``parent``, which has started this one, has ended."""
    while os.getppid() == parent:
        time.sleep(INTERVAL_S)


if __name__ == "__main__":
    wait_for_end(int(os.environ.get(RAYLET_PID, os.getppid())))
