"""Files of a trial: what its process does with the run's directory, on the same disk or from another machine.

``SharedFiles`` has the directory itself. ``SentFiles`` writes to a folder of its own machine and sends the files to
a ``Keeper`` at the driver's node, which verifies them there.
"""

from rlexp.runs.files.keeper import Keeper
from rlexp.runs.files.keeper_link import Answer, KeeperLink, KeeperLostError
from rlexp.runs.files.sent import SentFiles
from rlexp.runs.files.shared import SharedFiles
from rlexp.runs.files.trial_files import ERROR_FILE, MOVE_FILE, STOP_FILE, TrialFiles

__all__ = [
    "ERROR_FILE",
    "MOVE_FILE",
    "STOP_FILE",
    "Answer",
    "Keeper",
    "KeeperLink",
    "KeeperLostError",
    "SentFiles",
    "SharedFiles",
    "TrialFiles",
]
