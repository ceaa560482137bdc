"""What TensorBoard's Custom Scalars tab shows: the charts to look at first, where the other tabs have fifty.

TensorBoard's helper for it needs TensorFlow; the messages are public.
"""

from __future__ import annotations

import re
from typing import Final

from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.custom_scalar import metadata
from tensorboard.plugins.custom_scalar.layout_pb2 import Category, Chart, Layout, MultilineChartContent
from tensorboard.util.tensor_util import make_tensor_proto

_CHARTS: Final = {
    "reward": {
        "mean episode reward": ("episode_reward_mean",),
        "lowest, mean and highest episode reward": ("episode_reward_min", "episode_reward_mean", "episode_reward_max"),
        "mean episode length": ("episode_len_mean",),
        "mean episode reward in evaluations": ("evaluation/episode_reward_mean",),
    },
    "training": {
        "loss": ("info/learner/loss",),
        "steps per second": ("info/sample_throughput", "info/train_throughput"),
    },
}
"""Categories, their charts and the columns in each; every chart has a line for each trial."""


def custom_scalars(tag_prefix: str) -> Summary:
    """Return the message with the layout; columns are tags behind ``tag_prefix``."""
    layout = Layout(category=[_category(title, charts, tag_prefix) for title, charts in _CHARTS.items()])
    summary = Summary()
    summary.value.add(
        tag=metadata.CONFIG_SUMMARY_TAG,
        metadata=metadata.create_summary_metadata(),
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
