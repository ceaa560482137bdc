"""TensorBoard's event files from any writer: read completely, fast, and in bounded memory.

The path of a scalar, one module per step: its record is found (``framing``) and decoded, alone (``messages``)
or with thousands of the same form (``shapes``); a file returns its scalars in batches (``event_file``). The files
of a run are read in order, without the points that a restart replaced (``runs``), and what is to be shown of each
tag is kept (``gathering``).
"""

from rlexp.compare.event_files.event_file import Batch, EventFile
from rlexp.compare.event_files.gathering import AtStep, Figures, LogGatherer, Series, Summary
from rlexp.compare.event_files.runs import Follower, LogRun, RunContents, TagGlobs, find_runs, read_run
from rlexp.compare.event_files.shapes import POINT

__all__ = [
    "POINT",
    "AtStep",
    "Batch",
    "EventFile",
    "Figures",
    "Follower",
    "LogGatherer",
    "LogRun",
    "RunContents",
    "Series",
    "Summary",
    "TagGlobs",
    "find_runs",
    "read_run",
]
