"""Which node each bundle of this process's trial lies on."""

from __future__ import annotations

import sys
from collections.abc import Mapping


def bundle_nodes() -> Mapping[int, str]:
    """Return the node's id of each bundle of the trial that this process is of; empty in a process of no trial."""
    # Only processes that Ray started for a trial have imported it by then; elsewhere, to ask would start a Ray.
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return {}
    from ray.util import get_current_placement_group, placement_group_table

    group = get_current_placement_group()
    if group is None:
        return {}
    return dict(placement_group_table(group)["bundles_to_node_id"])
