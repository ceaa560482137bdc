"""What TensorBoard's HParams tab is told beside each trial's own values: how a trial ended, what a sweep varies.

TensorBoard's helpers for these two need TensorFlow or a writer of its own; the messages are public.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2
from tensorboard.plugins.hparams.summary_v2 import HParam, Metric, hparams_config_pb
from tensorboard.summary.writer.record_writer import RecordWriter

EVENT_FILE_PREFIX: Final = "events.out.tfevents."


def session_end(succeeded: bool) -> Summary:
    """Return the message that a trial has ended."""
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


def write_hparams_experiment(run_directory: Path, hyperparameters: Sequence[str], metrics: Sequence[str]) -> None:
    """Write an event file for the run as a whole: which columns the tab has, so that it does not show every tag."""
    path = run_directory / f"{EVENT_FILE_PREFIX}{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.hparams"
    summary = hparams_config_pb(
        [HParam(name) for name in hyperparameters],
        [Metric(tag, display_name=tag.rpartition("/")[2]) for tag in metrics],
    )
    with path.open("xb") as file:
        writer = RecordWriter(file)
        for event in (Event(file_version="brain.Event:2"), Event(summary=summary)):
            event.wall_time = time.time()
            writer.write(event.SerializeToString())
        file.flush()
