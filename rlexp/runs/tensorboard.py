"""TensorBoard event files: scalars as ``ray/tune/...`` over the environment steps, and the hyperparameters at once.

The files are written with TensorBoard's own record format and messages, so neither torch nor TensorFlow is needed.
Writing is synchronous, so no thread can lose the last rows.
"""

from __future__ import annotations

import math
import os
import re
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.custom_scalar import metadata as custom_scalar_metadata
from tensorboard.plugins.custom_scalar.layout_pb2 import Category, Chart, Layout, MultilineChartContent
from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2
from tensorboard.plugins.hparams.summary_v2 import HParam, Metric, hparams_config_pb, hparams_pb
from tensorboard.summary.writer.record_writer import RecordWriter
from tensorboard.util.tensor_util import make_tensor_proto

from rlexp.files import plain, to_json
from rlexp.runs.rows import SCORE_TAG, TAG_PREFIX, flatten, scalars

EVENT_FILE_PREFIX: Final = "events.out.tfevents."
_SEED: Final = "seed"
_FILE_VERSION: Final = "brain.Event:2"
_CHARTS: Final[Mapping[str, dict[str, tuple[str, ...]]]] = {
    "reward": {
        "mean episode reward": ("episode_reward_mean",),
        "lowest, mean and highest episode reward": ("episode_reward_min", "episode_reward_mean", "episode_reward_max"),
        "mean episode length": ("episode_len_mean",),
        "mean episode reward in evaluations": ("evaluation/episode_reward_mean",),
    },
    "training": {
        "loss": ("info/learner/loss", "info/learner/total_loss"),
        "steps per second": ("info/sample_throughput", "info/train_throughput"),
    },
}
"""Categories, their charts and the columns in each; every chart has a line for each trial."""


class TensorBoardRecorder:
    """Owns one event file of one trial. A resumed trial gets another file, which TensorBoard joins to the first."""

    def __init__(self, trial_directory: Path, hyperparameters: Mapping[str, Any], metrics: Sequence[str] = ()) -> None:
        """Open the file and write what the tabs show, so that HParams has a trial that has just begun.

        ``metrics`` are the tags of its columns there; if empty, all tags are.
        """
        path, is_first = _new_event_file(trial_directory)
        self._file = path.open("xb")
        self._step: float = 0 if is_first else math.inf
        """Step of the last point; after all points if another file has them."""
        self._writer = RecordWriter(self._file)
        self._write(Event(wall_time=time.time(), file_version=_FILE_VERSION))
        # With the run's name: trials of two runs in one log directory have equal names and would share a row.
        session = f"{trial_directory.parent.name}/{trial_directory.name}"
        values = _hparams(hyperparameters)
        columns = flatten(hyperparameters)  # also columns that this trial does not have
        summaries = [hparams_pb(values, trial_id=session), custom_scalars(TAG_PREFIX)]
        for summary in [*([hparams_columns(columns, metrics)] if metrics else []), *summaries]:
            self._write(Event(wall_time=time.time(), summary=summary))
        self._file.flush()

    def end(self, succeeded: bool, score: float | None) -> None:
        """Write the trial's end for the HParams tab, and a sweep's score as SCORE_TAG."""
        if score is not None:
            self._write(_score_event(score, int(self._step) if math.isfinite(self._step) else 0))
        self._write(Event(wall_time=time.time(), summary=session_end(succeeded)))
        self._file.flush()

    def record(self, row: Mapping[str, Any]) -> None:
        """Add a point at step ``timesteps_total`` for every number in ``row``; a list gives one tag per item.

        If the iteration began before the last point, the points after its beginning are removed first.
        """
        begin = row["timesteps_total"] - row["timesteps_this_iter"]
        if begin < self._step:
            restart = Event(wall_time=time.time(), step=begin + 1, session_log=SessionLog(status=SessionLog.START))
            self._write(restart)
        values = [Summary.Value(tag=TAG_PREFIX + name, simple_value=value) for name, value in scalars(row)]
        self._step = row["timesteps_total"]
        event = Event(wall_time=time.time(), step=row["timesteps_total"], summary=Summary(value=values))
        self._write(event)
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _write(self, event: Event) -> None:
        self._writer.write(event.SerializeToString())


def write_score(trial_directory: Path, score: float, step: int) -> None:
    """Write the score of a trial after all trials of a sweep ended, as it depends on the others."""
    path, _ = _new_event_file(trial_directory)
    with path.open("xb") as file:
        writer = RecordWriter(file)
        for event in (Event(wall_time=time.time(), file_version=_FILE_VERSION), _score_event(score, step)):
            writer.write(event.SerializeToString())


def _score_event(score: float, step: int) -> Event:
    value = Summary.Value(tag=SCORE_TAG, simple_value=score)
    return Event(wall_time=time.time(), step=step, summary=Summary(value=[value]))


def _new_event_file(directory: Path) -> tuple[Path, bool]:
    """Return a name that sorts after the files in ``directory``, and whether there are none.

    TensorBoard reads files in that order, and clocks may jump.
    """
    seconds = [
        int(path.name.removeprefix(EVENT_FILE_PREFIX).split(".")[0]) for path in directory.glob(f"{EVENT_FILE_PREFIX}*")
    ]
    newest = max([int(time.time()), *(second + 1 for second in seconds)])
    return directory / f"{EVENT_FILE_PREFIX}{newest:010d}.{socket.gethostname()}.{os.getpid()}.0", not seconds


def _hparams(hyperparameters: Mapping[str, Any]) -> dict[str, bool | int | float | str]:
    """Return values for the HParams plugin: scalars unchanged, lists as JSON, unset values left out.

    A seed is text, as the tab would round a number and offer ranges of it.
    """
    flat = {name: plain(value) for name, value in flatten(hyperparameters).items() if value is not None}
    return {
        name: to_json(value) if isinstance(value, list) else str(value) if name == _SEED else value
        for name, value in flat.items()
        if value is not None
    }


def session_end(succeeded: bool) -> Summary:
    """Return the message for the end of a trial."""
    status = api_pb2.STATUS_SUCCESS if succeeded else api_pb2.STATUS_FAILURE
    info = plugin_data_pb2.SessionEndInfo(status=status, end_time_secs=time.time())
    data = plugin_data_pb2.HParamsPluginData(session_end_info=info, version=metadata.PLUGIN_DATA_VERSION)
    summary = Summary()
    summary.value.add(
        tag=metadata.SESSION_END_INFO_TAG,
        metadata=metadata.create_summary_metadata(data),
        tensor=metadata.NULL_TENSOR,
    )
    return summary


def hparams_columns(hyperparameters: Iterable[str], metrics: Sequence[str]) -> Summary:
    """Return the tab's columns by tags, so that it does not show every tag.

    Each trial has it: TensorBoard takes the first one that it finds, and would show a file of the run's own as a run.
    """
    summary: Summary = hparams_config_pb(
        [HParam(name) for name in hyperparameters],
        [Metric(tag, display_name=tag.rpartition("/")[2]) for tag in metrics],
    )
    return summary


def custom_scalars(tag_prefix: str) -> Summary:
    """Return the message with the layout; columns are tags with the prefix ``tag_prefix``."""
    layout = Layout(category=[_category(title, charts, tag_prefix) for title, charts in _CHARTS.items()])
    summary = Summary()
    summary.value.add(
        tag=custom_scalar_metadata.CONFIG_SUMMARY_TAG,
        metadata=custom_scalar_metadata.create_summary_metadata(),
        tensor=make_tensor_proto(layout.SerializeToString()),
    )
    return summary


def _category(title: str, charts: dict[str, tuple[str, ...]], tag_prefix: str) -> Category:
    return Category(
        title=title,
        chart=[
            Chart(
                title=chart,
                multiline=MultilineChartContent(tag=[f"^{re.escape(tag_prefix + column)}$" for column in columns]),
            )
            for chart, columns in charts.items()
        ],
    )
