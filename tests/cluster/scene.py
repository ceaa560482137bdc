"""What tests on several nodes share: small experiments, what a run has written, what is left of it in the cluster."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import psutil

from rlexp.runs.checkpoint_contents import read_checkpoint
from tests.cluster.cluster import Command, TestCluster, wait_until

BOUND_S = 420.0
"""How long anything may take on a machine with other work."""

_APEX = """
{name}:
  run: APEX
  env: {env}
  stop: {{{stop}}}
  checkpoint_freq: {checkpoint_freq}
  checkpoint_at_end: true
  max_failures: 0
  config:
    num_workers: {workers}
    num_cpus_per_worker: 1
    num_envs_per_worker: 2
    timesteps_per_iteration: 100
    min_iter_time_s: {iteration_s}
    learning_starts: 50
    buffer_size: 20000
    train_batch_size: 16
    training_intensity: 1
    seed: 3
    hiddens: [16]
    model: {{fcnet_hiddens: [16]}}
    optimizer: {{num_replay_buffer_shards: 2}}
"""
_FREE = """
import ray, time
ray.init(address="{address}", log_to_driver=False, logging_level="ERROR")
def free():
    return ray.available_resources().get("CPU", 0.0), ray.cluster_resources().get("CPU", 0.0)
end = time.monotonic() + {bound}
while free()[0] != free()[1] and time.monotonic() < end:
    time.sleep(0.5)
print(*free())
"""


def apex(
    folder: Path,
    stop: str,
    workers: int = 6,
    env: str = "CartPole-v1",
    iteration_s: float = 0,
    checkpoint_freq: int = 1,
    name: str = "small",
) -> Path:
    """Write an Ape-X experiment that needs ``1 + workers`` CPUs; an iteration lasts ``iteration_s`` at least."""
    path = folder / f"{name}.yaml"
    path.write_text(_APEX.format(**{key: value for key, value in locals().items() if key not in ("folder", "path")}))
    return path


def open_rlexp(cluster: TestCluster, node: int, *words: object, folder: Path, **environ: str) -> Command:
    """Start rlexp in a node."""
    return cluster.open(node, [sys.executable, "-m", "rlexp", *map(str, words)], folder, **environ)


def rows(run: Path) -> list[dict[str, Any]]:
    """Return the rows of a run with one trial; none where there are none yet."""
    text = "".join(path.read_text() for path in run.glob("0*/result.json"))
    return [json.loads(line) for line in text.splitlines() if line.endswith("}")]


def wait_for_rows(command: Command, run: Path, count: int, what: str = "") -> float:
    """Return after how many seconds the run has ``count`` rows; AssertionError where its command ends before."""

    def has_them() -> bool:
        if command.process.poll() is not None:
            raise AssertionError(f"{what} ended early: {command.wait()}")
        return len(rows(run)) >= count

    return wait_until(has_them, BOUND_S, f"{count} rows {what}")


def wait_for_checkpoint(command: Command, run: Path) -> Path:
    """Return the newest checkpoint of a run as soon as there is one."""
    wait_until(lambda: checkpoints(run) or command.process.poll() is not None, BOUND_S, "a checkpoint")
    assert command.process.poll() is None, command.wait()
    return checkpoints(run)[-1]


def checkpoints(run: Path) -> list[Path]:
    """Return the whole checkpoints of a run with one trial, oldest first."""
    return sorted(path for path in run.glob("0*/checkpoint_*") if path.suffix == "")


def verify(checkpoint: Path) -> None:
    """Read a checkpoint, which compares the SHA-256 of its files with those that the trial's process wrote down."""
    assert read_checkpoint(checkpoint)


def cpus_free(cluster: TestCluster, folder: Path, node: int = 1) -> tuple[float, float]:
    """Return the free CPUs of the cluster and all that it has, once they are equal or time is over."""
    script = _FREE.format(address=cluster.address, bound=60)
    done = cluster.run(node, [sys.executable, "-c", script], folder)
    assert done.returncode == 0, done.stderr
    figures = re.search(r"^([\d.]+) ([\d.]+)$", done.stdout, re.MULTILINE)  # Ray may print of dead nodes, too
    assert figures, done.stdout
    return float(figures[1]), float(figures[2])


def count_processes(cluster: TestCluster, node: int, part: str) -> int:
    """Return how many processes of a node have ``part`` in their command line."""
    return sum(part in command_line(process) for process in cluster.processes(node))


def node_with(cluster: TestCluster, count: int, part: str) -> int:
    """Return the first of ``count`` nodes that runs a process with ``part`` in its command line."""
    found: list[int] = []

    def look() -> bool:
        found.extend(node for node in range(1, count + 1) if count_processes(cluster, node, part))
        return bool(found)

    wait_until(look, BOUND_S, f"a node with {part}")
    return found[0]


def command_line(process: psutil.Process) -> str:
    """Return the command line of a process, empty once it has ended."""
    try:
        return " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return ""
