"""TensorBoard's event files, whoever wrote them: read completely, fast, and in bounded memory.

The path of a scalar, a file a step: its record is found (``framing``), checked and understood (``shapes``
for thousands at a time, ``messages`` for one), handed on in batches (``event_file``), a run's files
after one another (``runs``), to what keeps of it what is to be shown (``gathering``).
"""

from rlexp.results.event_files.event_file import EventFile
from rlexp.results.event_files.follow import Follower
from rlexp.results.event_files.gathering import AtStep, Figures, Gatherer, Series, Summary
from rlexp.results.event_files.points import POINT, Batch
from rlexp.results.event_files.runs import Run, RunContents, find_runs, read_run
from rlexp.results.event_files.tag_globs import TagGlobs

__all__ = [
    "POINT",
    "AtStep",
    "Batch",
    "EventFile",
    "Figures",
    "Follower",
    "Gatherer",
    "Run",
    "RunContents",
    "Series",
    "Summary",
    "TagGlobs",
    "find_runs",
    "read_run",
]
