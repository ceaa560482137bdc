"""How fast the whole of Ape-X is: `rlexp run` on CartPole-v1, over workers x envs a worker x batch size.

Each second the run is paused, and its ceilings are measured: one of its workers alone, and its learner alone on
one batch, each in a process of its own. "of the cores" is what the run did between the pauses, at the speed of
these, as a share of the cores that its processes can use; the rest went into replay, messages and waiting, and
into caches and memory that processes share. A setting is WORKERSxENVSxBATCH,
with @INTENSITY where the ratio of trained to sampled steps is held, else both are free. The first fifth of
a run does not count. Settings take turns; the whole takes about a minute for each and repeat. With --pong
it is Pong from pixels instead, with the network of experiments/pong-apex.yaml, on the CPU; that needs ale-py.

    python benchmarks/apex_throughput.py [--pong] [--grid 2x8x512 2x8x512@4 ...] [-o KEY=VALUE] [--seconds 25]
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.comparison import Column, Table, Work, conditions, in_turns, options
from benchmarks.pauses import PiecesInPauses
from benchmarks.pieces import Pieces, learning, sampling
from benchmarks.processes import run_experiment, unwind_on_sigterm
from rlexp.cluster.room.machine import available_cpus
from rlexp.config.keys.apex import ApexConfig
from rlexp.config.load import load_plan

EXPERIMENT = """\
apex-throughput:
  run: APEX
  env: CartPole-v1
  config:
    seed: 0
    num_cpus_per_worker: 0   # reserves nothing, so that any grid runs on any machine
    learning_starts: 1000
    buffer_size: 250000
    target_network_update_freq: 50000
    timesteps_per_iteration: 0
    min_iter_time_s: 1
    hiddens: []
    model: {fcnet_hiddens: [256, 256], fcnet_activation: relu}
    optimizer: {num_replay_buffer_shards: 2}
"""
PONG = """\
apex-throughput:
  run: APEX
  env: PongNoFrameskip-v4
  config:
    seed: 0
    num_cpus_per_worker: 0.5   # what --fit makes of it on two cores; the learner uses no more than is reserved
    sample_batch_size: 20
    learning_starts: 1000
    buffer_size: 20000
    target_network_update_freq: 50000
    timesteps_per_iteration: 0
    min_iter_time_s: 1
    hiddens: [256]
    optimizer: {num_replay_buffer_shards: 2, max_weight_sync_delay: 400}
"""
SETTING = re.compile(r"(\d+)x(\d+)x(\d+)(?:@(\d+(?:\.\d+)?))?")
WARM_UP_SHARE = 0.2
START_TIMEOUT_S = 120.0
"""Bound of what starting and ending takes, beyond the seconds that are measured."""

COLUMNS = (
    Column("setting", "setting", 11),
    Column("sampled_per_s", "sampled/s", 9, ",.0f"),
    Column("trained_per_s", "trained/s", 9, ",.0f"),
    Column("ratio", "ratio", 6, ".2f"),
    Column("learner_wait_share", "learner waits", 13, ".1%"),
    Column("bottleneck", "bottleneck", 10),
    Column("worker_alone_per_s", "worker alone/s", 14, ",.0f"),
    Column("learner_alone_per_s", "learner alone/s", 15, ",.0f"),
    Column("share_of_learner", "of learner", 10, ".0%"),
    Column("share_of_cores", "of the cores", 12, ".0%"),
)

Figures = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """A line of the table."""

    name: str
    num_workers: int
    num_envs: int
    batch_size: int
    intensity: float | None
    others: tuple[str, ...] = ()
    """Overrides of all lines, ``config.key=value`` each."""

    @classmethod
    def parse(cls, text: str) -> Setting:
        match = SETTING.fullmatch(text)
        if match is None:
            raise argparse.ArgumentTypeError(f"{text}: must be like 2x8x512, or 2x8x512@4")
        workers, envs, batch, intensity = match.groups()
        return cls(text, int(workers), int(envs), int(batch), None if intensity is None else float(intensity))

    def overrides(self) -> list[str]:
        values = {
            "num_workers": self.num_workers,
            "num_envs_per_worker": self.num_envs,
            "train_batch_size": self.batch_size,
            "training_intensity": "null" if self.intensity is None else self.intensity,
        }
        return [*(f"config.{key}={value}" for key, value in values.items()), *self.others]


GRID = [Setting.parse(text) for text in ("2x8x512", "2x8x512@4", "2x32x512", "1x8x512")]


def measure(setting: Setting, file: Path, seconds: float) -> Figures:
    """Return the figures of one run, and of its pieces alone in its pauses."""
    print(f"{setting.name} for {seconds:.0f} s", file=sys.stderr)
    plan = load_plan([file], setting.overrides())
    config = plan.trials[0].experiment.config
    assert isinstance(config, ApexConfig)
    pieces = Pieces(plan.trials[0].experiment.env, config)
    works = {"worker": partial(worker_alone, pieces), "learner": partial(learner_alone, pieces)}
    with PiecesInPauses(works, START_TIMEOUT_S) as pauses:
        figures = run(setting, file, seconds, pauses)
    worker, learner = map(pauses.per_second, works)
    cores_used = figures["sampled_per_s"] / worker + figures["trained_per_s"] / learner
    return figures | {
        "worker_alone_per_s": worker,
        "learner_alone_per_s": learner,
        "share_of_learner": figures["trained_per_s"] / learner,
        "share_of_cores": cores_used / min(available_cpus(), setting.num_workers + 1),
    }


def run(setting: Setting, file: Path, seconds: float, pauses: PiecesInPauses) -> Figures:
    """Return what one `rlexp run` of ``seconds``, pauses included, reports from the end of its warm-up on."""
    overrides = [*setting.overrides(), f"stop.time_total_s={seconds}"]
    arguments = [word for override in overrides for word in ("-o", override)]
    started = time.monotonic()
    events = run_experiment(file, file.parent / "results", arguments, seconds + START_TIMEOUT_S)
    results = [event for event in events if event.kind == "result"]
    results = [event for event in results if event.fields["result"]["time_total_s"] >= WARM_UP_SHARE * seconds]
    if len(results) < 2:
        raise SystemExit("no iteration began after the warm-up: give it more --seconds")
    first, *others = (event.fields["result"] for event in results)
    began, ended = (started + event.seconds for event in (results[0], results[-1]))
    infos, elapsed_s = [row["info"] for row in others], ended - began - pauses.paused_s(began, ended)
    sampled, trained = (infos[-1][key] - first["info"][key] for key in ("num_steps_sampled", "num_steps_trained"))
    return {
        "sampled_per_s": sampled / elapsed_s,
        "trained_per_s": trained / elapsed_s,
        "ratio": trained / sampled,
        "learner_wait_share": statistics.fmean(info["learner_wait_share"] for info in infos),
        "bottleneck": statistics.mode(info["bottleneck"] for info in infos),
    }


def worker_alone(pieces: Pieces) -> Work:
    """Return what a worker does that waits for nobody."""
    return sampling(pieces.worker())


def learner_alone(pieces: Pieces) -> Work:
    """Return what a learner does that waits for nobody."""
    return learning(pieces.learner(), pieces.batch())


def medians(runs: Sequence[Figures]) -> Figures:
    """Return the median of each figure, and of words the most frequent one."""
    columns = {key: [figures[key] for figures in runs] for key in runs[0]}
    return {
        key: statistics.mode(values) if isinstance(values[0], str) else statistics.median(values)
        for key, values in columns.items()
    }


def main() -> None:
    parser = options(__doc__, repeats=5)
    parser.add_argument(
        "--grid", nargs="+", type=Setting.parse, default=GRID, metavar="SETTING", help="lines of the table"
    )
    parser.add_argument("--pong", action="store_true", help="play Pong from pixels instead of CartPole-v1")
    parser.add_argument("--seconds", type=float, default=25.0, metavar="S", help="how long a run trains")
    about = "lay a value over all of them, such as config.replay_storage=actors; repeatable"
    parser.add_argument("-o", dest="overrides", action="append", default=[], metavar="KEY.PATH=VALUE", help=about)
    args = parser.parse_args()
    unwind_on_sigterm()
    print(conditions(), file=sys.stderr)
    with TemporaryDirectory(prefix="rlexp-benchmark-") as folder:
        file = Path(folder) / "apex-throughput.yaml"
        file.write_text(PONG if args.pong else EXPERIMENT, encoding="utf-8")
        grid = [replace(setting, others=tuple(args.overrides)) for setting in args.grid]
        runs = in_turns({setting: partial(measure, setting, file, args.seconds) for setting in grid}, args.repeats)
    table = Table(COLUMNS, args.json)
    for setting, figures in runs.items():
        table.add({"setting": setting.name, **medians(figures)})


if __name__ == "__main__":
    main()
