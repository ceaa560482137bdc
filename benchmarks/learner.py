"""How many updates a second a DQN learner does, beside a floor: the same network and loss in a plain torch loop.

The loop has its tensors ready and does what every torch program does: forward, backward, clipping, fused
Adam over the single parameters. Both take turns, so that a busy machine slows them alike, in one process, so
that both have the memory that the learner lets it keep. The ratio is the learner's speed over the loop's.

    python benchmarks/learner.py [--repeats 7] [--threads 1] [--slow] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rlexp.agents.dqn.learner import COLUMNS, DQNLearner, DQNLearnerConfig
from rlexp.agents.dqn.objective import row_losses
from rlexp.config.dqn import DQNConfig
from rlexp.config.model import ModelConfig
from rlexp.models import HeadConfig, QNetworkConfig, torso_config_of
from rlexp.models.q_network import QNetwork
from rlexp.sample_batch import ACTIONS, DISCOUNTS, NEW_OBS, OBS, REWARDS, WEIGHTS, Array, SampleBatch
from rlexp.schedules import PiecewiseSchedule

LR, ADAM_EPSILON, MAX_NORM = 5e-4, 1e-8, 40.0
NUM_BATCHES = 4
"""Batches that take turns, so that none stays in the processor's caches."""
SECONDS = 0.3
"""How long either is measured at a time."""

Update = Callable[[int], object]
"""Learns once, on the batch of this number."""


@dataclass(frozen=True)
class Case:
    """A network, dueling and with double Q-learning, and how many rows it learns from at once."""

    name: str
    observation_shape: tuple[int, ...]
    num_actions: int
    hiddens: tuple[int, ...]
    batch_size: int
    num_atoms: int = 1
    noisy: bool = False
    slow: bool = False

    def network(self) -> QNetworkConfig:
        head = HeadConfig((), True, self.noisy, sigma0=0.5, num_atoms=self.num_atoms, v_min=-10.0, v_max=10.0)
        model = ModelConfig(fcnet_hiddens=self.hiddens, fcnet_activation="relu")
        return QNetworkConfig(self.observation_shape, self.num_actions, torso_config_of(DQNConfig(model=model)), head)


CARTPOLE = ((4,), 2, (256, 256))
ATARI = ((84, 84, 4), 6, ())
CASES = (
    Case("mlp 64-64", (3,), 5, (64, 64), 32),
    Case("mlp 256-256", *CARTPOLE, 64),
    Case("mlp 256-256", *CARTPOLE, 512),
    Case("mlp 256-256, 51 atoms", *CARTPOLE, 64, num_atoms=51),
    Case("mlp 256-256, 51 atoms", *CARTPOLE, 512, num_atoms=51),
    Case("mlp 256-256, noisy", *CARTPOLE, 64, noisy=True),
    Case("mlp 256-256, noisy", *CARTPOLE, 512, noisy=True),
    Case("images 84x84x4", *ATARI, 32),
    Case("images 84x84x4", *ATARI, 512, slow=True),
)


def make_batch(case: Case, rng: np.random.Generator) -> SampleBatch:
    size = case.batch_size

    def observations() -> Array:
        if len(case.observation_shape) > 1:
            return rng.integers(256, size=(size, *case.observation_shape), dtype=np.uint8)
        return rng.standard_normal((size, *case.observation_shape), np.float32)

    columns = {
        OBS: observations(),
        ACTIONS: rng.integers(case.num_actions, size=size),
        REWARDS: rng.standard_normal(size, np.float32),
        DISCOUNTS: np.full(size, 0.97, np.float32),
        NEW_OBS: observations(),
        WEIGHTS: rng.random(size, np.float32),
    }
    assert set(columns) == set(COLUMNS)
    return SampleBatch(columns)


def learner_update(case: Case, batches: list[SampleBatch]) -> Update:
    schedule = PiecewiseSchedule(((0, LR),))
    target_period = 100 * case.batch_size
    config = DQNLearnerConfig(schedule, ADAM_EPSILON, MAX_NORM, True, target_period, True, "cpu")
    learner = DQNLearner(case.network(), config, seed=0)
    return lambda number: learner.learn_on_batch(batches[number])


def plain_update(case: Case, batches: list[SampleBatch]) -> Update:
    online, target = QNetwork(case.network()), QNetwork(case.network()).requires_grad_(False)
    parameters = list(online.parameters())
    adam = torch.optim.Adam(parameters, LR, eps=ADAM_EPSILON, fused=True)
    all_rows = [{name: torch.from_numpy(column) for name, column in batch.columns.items()} for batch in batches]
    noise = torch.Generator().manual_seed(0)

    def update(number: int) -> None:
        if case.noisy:
            online.resample_noise(noise)
            target.resample_noise(noise)
        rows = all_rows[number]
        losses = row_losses(online, target, rows, double_q=True).losses
        adam.zero_grad()
        (rows[WEIGHTS] * losses).mean().backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(parameters, MAX_NORM)
        adam.step()

    return update


def updates_per_second(update: Update) -> float:
    """Learn for SECONDS, at least once, and return how many updates that makes a second."""
    start, count = time.perf_counter(), 0
    while not count or time.perf_counter() - start < SECONDS:
        update(count % NUM_BATCHES)
        count += 1
    return count / (time.perf_counter() - start)


def compare(case: Case, repeats: int) -> dict[str, Any]:
    """Return one line of the table, of the medians of interleaved repeats."""
    rng = np.random.default_rng(0)
    batches = [make_batch(case, rng) for _ in range(NUM_BATCHES)]
    candidates = {"learner": learner_update(case, batches), "plain": plain_update(case, batches)}
    speeds: dict[str, list[float]] = {name: [] for name in candidates}
    for repeat in range(repeats + 1):
        for name, update in candidates.items():
            speed = updates_per_second(update)
            if repeat:  # the first one warms up
                speeds[name].append(speed)
    ours, floor = statistics.median(speeds["learner"]), statistics.median(speeds["plain"])
    return {
        "network": case.name,
        "batch_size": case.batch_size,
        "updates_per_s": ours,
        "rows_per_s": ours * case.batch_size,
        "ms_per_update": 1e3 / ours,
        "plain_updates_per_s": floor,
        "ratio": ours / floor,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1, help="threads that torch may use")
    parser.add_argument("--slow", action="store_true", help="images at batch 512 as well, for a minute")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if not args.json:
        print(f"{'network':<24}{'batch':>6}{'updates/s':>11}{'rows/s':>10}{'ms':>9}{'plain/s':>10}{'ratio':>7}")
    for case in CASES:
        if case.slow and not args.slow:
            continue
        line = compare(case, args.repeats)
        if args.json:
            print(json.dumps(line), flush=True)
            continue
        speed = f"{line['updates_per_s']:>11.1f}{line['rows_per_s']:>10.0f}{line['ms_per_update']:>9.2f}"
        print(
            f"{line['network']:<24}{line['batch_size']:>6}{speed}"
            f"{line['plain_updates_per_s']:>10.1f}{line['ratio']:>7.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
