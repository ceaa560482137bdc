"""What a trial leaves for other programs to read: JSON lines, CSV and TensorBoard events, each row at once."""

from rlexp.tuning.recorders.columns import COLUMNS, flatten
from rlexp.tuning.recorders.csv_recorder import CsvRecorder
from rlexp.tuning.recorders.json_recorder import JsonRecorder
from rlexp.tuning.recorders.recorder import Recorder
from rlexp.tuning.recorders.tensorboard_recorder import TensorBoardRecorder
from rlexp.tuning.recorders.trial_recorder import TrialRecorder

__all__ = ["COLUMNS", "CsvRecorder", "JsonRecorder", "Recorder", "TensorBoardRecorder", "TrialRecorder", "flatten"]
