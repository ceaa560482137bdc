"""What a trial leaves for other programs to read: JSON lines, CSV and TensorBoard events, each row at once."""

from rlexp.runs.recorders.columns import COLUMNS, flatten
from rlexp.runs.recorders.csv_recorder import CsvRecorder
from rlexp.runs.recorders.json_recorder import JsonRecorder
from rlexp.runs.recorders.recorder import Recorder
from rlexp.runs.recorders.tensorboard_recorder import TensorBoardRecorder
from rlexp.runs.recorders.trial_recorder import TrialRecorder

__all__ = ["COLUMNS", "CsvRecorder", "JsonRecorder", "Recorder", "TensorBoardRecorder", "TrialRecorder", "flatten"]
