"""What a trial leaves for other programs to read: JSON lines, CSV and TensorBoard events, each row at once."""

from rlexp.runs.recorders.line_files import CsvRecorder, JsonRecorder
from rlexp.runs.recorders.tensorboard_recorder import TensorBoardRecorder
from rlexp.runs.recorders.trial_recorder import TrialRecorder

__all__ = ["CsvRecorder", "JsonRecorder", "TensorBoardRecorder", "TrialRecorder"]
