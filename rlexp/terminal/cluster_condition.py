"""What ``rlexp doctor --address`` prints: the nodes of a cluster, in a table."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from rlexp.cluster.probe import ClusterReport, NodeReport
from rlexp.terminal.lines import aligned, visible

_HEADINGS = ("node", "CPUs", "GPUs", "memory", "Python", "Ray", "torch", "rlexp", "sees OUT", "problems")
_VERSIONS = ("python", "ray", "torch", "rlexp")


def print_nodes(report: ClusterReport, as_json: bool) -> None:
    """Print a row for each node, that of this machine first, and the notices."""
    if as_json:
        print(json.dumps({"address": report.address, "nodes": list(map(asdict, report.nodes))}))
        return
    notices = [*report.notices, *(notice for node in report.nodes for notice in node.notices)]
    lines = [f"cluster at {report.address}", *aligned([_HEADINGS, *map(_row, report.nodes)])]
    lines += (f"notice: {visible(notice)}" for notice in notices)
    sys.stdout.write("\n".join(lines) + "\n")


def _row(report: NodeReport) -> tuple[str, ...]:
    node, machine = report.node, report.node.machine
    return (
        f"{visible(node.name)}{' (here)' if node.is_driver else ''}",
        str(machine.cpus),
        str(machine.gpus),
        f"{machine.memory_total / 2**30:.1f} GiB" if machine.memory_total else "unknown",
        *(visible(report.versions.get(name, "-")) for name in _VERSIONS),
        "yes" if node.sees_out else "no",
        str(len(report.problems) or "none"),
    )
