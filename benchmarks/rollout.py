"""How many env steps a second one rollout worker takes, beside the ceilings of the same run.

The ceilings are the vector env alone, and the env with a bare forward pass for every step. The worker acts,
steps, folds 3 steps into transitions and computes their priorities. All play at random, since the length of
episodes matters; a step that resets an env counts for nobody. Each line has a process of its own with one
thread, and all three take turns in it. Pong needs ale-py; it is played in ale-py's vectorised env and by the
wrappers that are played where that cannot.

    python benchmarks/rollout.py [--repeats 7] [--seconds 0.5] [--json]
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from typing import Any

from benchmarks.comparison import Column, Table, conditions, in_turns, options, per_second
from benchmarks.pieces import Pieces, sampling, stepping
from benchmarks.processes import in_own_process, unwind_on_sigterm
from rlexp.config.keys.apex import ApexConfig
from rlexp.config.keys.model import ModelConfig

PONG = "ALE/Pong-v5"
WRAPPED: Mapping[str, Any] = {"difficulty": 0}
"""Says what is so anyway, but ale-py's vectorised env takes no such argument: the wrappers play."""
SLOWEST_FRAGMENT_S = 10.0
"""Bound of what one fragment takes, beyond the seconds that are measured."""
START_TIMEOUT_S = 120.0

COLUMNS = (
    Column("env", "env", 21),
    Column("envs", "envs", 4),
    Column("env_steps_per_s", "env alone/s", 11, ",.0f"),
    Column("ceiling_steps_per_s", "env + forward/s", 15, ",.0f"),
    Column("worker_steps_per_s", "worker/s", 9, ",.0f"),
    Column("share_of_ceiling", "of env + forward", 16, ".0%"),
    Column("share_of_env", "of env alone", 12, ".0%"),
)


@dataclass(frozen=True)
class Case:
    """A line of the table: dueling without layers of its own, behind two layers of 256 or the convolutions."""

    env: str
    num_envs: int
    env_config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.env} wrapped" if self.env_config == WRAPPED else self.env

    @property
    def pieces(self) -> Pieces:
        model = ModelConfig(fcnet_hiddens=(256, 256), fcnet_activation="relu")
        config = ApexConfig(
            num_envs_per_worker=self.num_envs, env_config=dict(self.env_config), hiddens=(), model=model
        )
        return Pieces(self.env, config)


CASES = (*(Case("CartPole-v1", num_envs) for num_envs in (8, 32, 128)), Case(PONG, 8), Case(PONG, 8, WRAPPED))


def measure(case: Case, repeats: int, seconds: float) -> dict[str, Any]:
    """Return one line of the table, of the medians of interleaved repeats."""
    pieces = case.pieces
    num_steps, vectors, worker = pieces.config.sample_batch_size, [pieces.vector_env() for _ in "12"], pieces.worker()
    works = {
        "env": stepping(vectors[0], num_steps, policy=None),
        "ceiling": stepping(vectors[1], num_steps, pieces.policy()),
        "worker": sampling(worker),
    }
    for work in works.values():
        work()  # the first time is slower
    runs = in_turns({name: partial(per_second, work, seconds) for name, work in works.items()}, repeats)
    worker.stop()
    for vector in vectors:
        vector.close()
    speeds = {name: statistics.median(speeds) for name, speeds in runs.items()}
    return {
        "env": case.name,
        "envs": case.num_envs,
        **{f"{name}_steps_per_s": speed for name, speed in speeds.items()},
        "share_of_ceiling": speeds["worker"] / speeds["ceiling"],
        "share_of_env": speeds["worker"] / speeds["env"],
    }


def main() -> None:
    parser = options(__doc__, repeats=7)
    parser.add_argument("--seconds", type=float, default=0.5, metavar="S", help="how long each takes at a time")
    args = parser.parse_args()
    unwind_on_sigterm()
    print(conditions(), file=sys.stderr)
    table = Table(COLUMNS, args.json)
    for case in CASES:
        if case.env == PONG and find_spec("ale_py") is None:
            print(f"{PONG} skipped: pip install ale-py", file=sys.stderr)
            continue
        timeout_s = START_TIMEOUT_S + 3 * (args.repeats + 1) * (args.seconds + SLOWEST_FRAGMENT_S)
        table.add(in_own_process(timeout_s, measure, case, args.repeats, args.seconds))


if __name__ == "__main__":
    main()
