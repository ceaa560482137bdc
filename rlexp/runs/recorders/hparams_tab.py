"""What TensorBoard's HParams tab reads beside each trial's own values: how a trial ended, which columns it has.

TensorBoard's helper for how a trial ended needs TensorFlow; the messages are public.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2
from tensorboard.plugins.hparams.summary_v2 import HParam, Metric, hparams_config_pb


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


def hparams_columns(hyperparameters: Iterable[str], metrics: Sequence[str]) -> Summary:
    """Return which columns the tab has, by tags, so that it does not show every one.

    Each trial has it: TensorBoard takes the first that it finds, and a file of the run's own would be shown as a run.
    """
    summary: Summary = hparams_config_pb(
        [HParam(name) for name in hyperparameters],
        [Metric(tag, display_name=tag.rpartition("/")[2]) for tag in metrics],
    )
    return summary
