"""How many updates a second a DQN learner does, beside a floor: the same network and loss in a plain torch loop.

The loop has its tensors ready and does what every torch program does: forward, backward, clipping, fused
Adam over the single parameters. Both take turns, so that a busy machine slows them alike, in one process, so
that both have the memory that the learner lets it keep. The ratio is the learner's speed over the loop's.

With ``--device`` it is the Nature network at batch 512 on that device, in a LearnerThread whose queue is never empty,
and the share of its time in which that thread had no batch. ``--graphs`` compares the updates of other agents on a GPU
with and without CUDA graphs, in turns.

    python benchmarks/learner.py [--repeats 7] [--threads 1] [--slow] [--json]
    python benchmarks/learner.py --device cuda [--precision bfloat16] [--seconds 10]
    python benchmarks/learner.py --graphs [--repeats 7]
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np
import torch

from benchmarks.comparison import Column, Line, Table, conditions, in_turns, options, per_second
from rlexp.agents.agent import Agent
from rlexp.agents.ddpg.agent import DDPGAgent
from rlexp.agents.dqn.learner import DQNLearner, DQNLearnerConfig
from rlexp.agents.dqn.loss import COLUMNS, row_losses
from rlexp.agents.ppo.agent import PPOAgent
from rlexp.agents.pqn.agent import PQNAgent
from rlexp.agents.sac.agent import SACAgent
from rlexp.agents.torch.device import CapturedWork, Precision
from rlexp.cluster.pool.pool import InlineTaskPool
from rlexp.config.keys.common import CommonConfig
from rlexp.config.keys.ddpg import DDPGConfig, TD3Config
from rlexp.config.keys.dqn import DQNConfig
from rlexp.config.keys.fields import ConvFilter
from rlexp.config.keys.model import ModelConfig
from rlexp.config.keys.ppo import PPOConfig
from rlexp.config.keys.pqn import PQNConfig
from rlexp.config.keys.sac import SACConfig
from rlexp.models.network_config import HeadConfig, QNetworkConfig, torso_config_of
from rlexp.models.networks import QNetwork
from rlexp.optimizers.learner_thread import LearnerThread
from rlexp.rollout.folds import ADVANTAGES, DIST_INPUTS, LOGP, VALUE_TARGETS, VF_PREDS
from rlexp.sample_batch import ACTIONS, DISCOUNTS, IMPORTANCE_WEIGHTS, NEW_OBS, OBS, REWARDS, Array, SampleBatch
from rlexp.schedules import PiecewiseSchedule

LR, ADAM_EPSILON, MAX_NORM = 5e-4, 1e-8, 40.0
NUM_BATCHES = 4
"""Batches that take turns, so that none stays in the processor's caches."""
SECONDS = 0.3
"""How long either is measured at a time."""

COLUMNS_SHOWN = (
    Column("network", "network", 21),
    Column("batch_size", "batch", 5),
    Column("updates_per_s", "updates/s", 9, ",.1f"),
    Column("rows_per_s", "rows/s", 7, ",.0f"),
    Column("ms_per_update", "ms", 7, ".2f"),
    Column("plain_updates_per_s", "plain/s", 7, ",.1f"),
    Column("ratio", "ratio", 5, ".2f"),
)

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
    conv_filters: tuple[ConvFilter, ...] | None = None
    post_fcnet_hiddens: tuple[int, ...] = ()

    def network(self) -> QNetworkConfig:
        head = HeadConfig((), True, self.noisy, sigma0=0.5, num_atoms=self.num_atoms, v_min=-10.0, v_max=10.0)
        model = ModelConfig(
            fcnet_hiddens=self.hiddens,
            fcnet_activation="relu",
            conv_filters=self.conv_filters,
            post_fcnet_hiddens=self.post_fcnet_hiddens,
            post_fcnet_activation="relu",
        )
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

NATURE = Case(
    "Nature",
    *ATARI,
    512,
    conv_filters=((32, (8, 8), 4), (64, (4, 4), 2), (64, (3, 3), 1)),
    post_fcnet_hiddens=(512,),
)
"""The network of Mnih et al. 2015."""
COLUMNS_OF_DEVICES = (
    Column("device", "device", 6),
    Column("precision", "precision", 9),
    Column("updates_per_s", "updates/s", 9, ",.1f"),
    Column("rows_per_s", "rows/s", 8, ",.0f"),
    Column("wait_share", "waiting", 7, ".1%"),
)


ROWS = 256
"""Rows of an update with ``--graphs``, and of a minibatch of PPO and PQN."""
MINIBATCHES = 16
"""Minibatches of their train batches."""
_OF_CRITICS = {"actor_hiddens": [256, 256], "critic_hiddens": [256, 256], "train_batch_size": ROWS}
_OF_SAC = {key: {"fcnet_hiddens": [256, 256]} for key in ("policy_model_config", "q_model_config")}
_OF_EPOCHS = {"train_batch_size": ROWS * MINIBATCHES, "sgd_minibatch_size": ROWS, "num_sgd_iter": 4}
GRAPHS: Mapping[str, tuple[type[Agent[Any]], type[CommonConfig], str, Mapping[str, Any]]] = {
    "SAC": (SACAgent, SACConfig, "Pendulum-v1", {**_OF_SAC, "train_batch_size": ROWS}),
    "TD3": (DDPGAgent, TD3Config, "Pendulum-v1", _OF_CRITICS),
    "DDPG": (DDPGAgent, DDPGConfig, "Pendulum-v1", _OF_CRITICS),
    "PPO": (PPOAgent, PPOConfig, "Pendulum-v1", _OF_EPOCHS),
    "PQN": (PQNAgent, PQNConfig, "CartPole-v1", {**_OF_EPOCHS, "model": {"fcnet_hiddens": [256, 256]}}),
}
"""The agents that ``--graphs`` measures, with their keys."""
COLUMNS_OF_GRAPHS = (
    Column("agent", "agent", 5),
    Column("single_ms", "one by one, ms", 14, ".2f"),
    Column("graph_ms", "graph, ms", 9, ".2f"),
    Column("ratio", "ratio", 5, ".1f"),
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
        IMPORTANCE_WEIGHTS: rng.random(size, np.float32),
    }
    assert set(columns) == set(COLUMNS)
    return SampleBatch(columns)


def make_learner(case: Case, device: str = "cpu", precision: Precision = "float32") -> DQNLearner:
    schedule = PiecewiseSchedule(((0, LR),))
    target_period = 100 * case.batch_size
    config = DQNLearnerConfig(schedule, ADAM_EPSILON, MAX_NORM, True, target_period, True, device, precision)
    return DQNLearner(case.network(), config, seed=0)


def learner_update(case: Case, batches: list[SampleBatch]) -> Update:
    learner = make_learner(case)
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
        (rows[IMPORTANCE_WEIGHTS] * losses).mean().backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(parameters, MAX_NORM)
        adam.step()

    return update


def timed(update: Update) -> Callable[[], float]:
    """Return what learns for SECONDS and returns how many updates that makes a second."""
    numbers = cycle(range(NUM_BATCHES))

    def once() -> int:
        update(next(numbers))
        return 1

    return partial(per_second, once, SECONDS)


def compare(case: Case, repeats: int) -> Line:
    """Return one line of the table, of the medians of repeats."""
    rng = np.random.default_rng(0)
    batches = [make_batch(case, rng) for _ in range(NUM_BATCHES)]
    measures = {"learner": timed(learner_update(case, batches)), "plain": timed(plain_update(case, batches))}
    speeds = in_turns(measures, repeats + 1)  # the first one warms up
    medians = {name: statistics.median(runs[1:]) for name, runs in speeds.items()}
    return {
        "network": case.name,
        "batch_size": case.batch_size,
        "updates_per_s": medians["learner"],
        "rows_per_s": medians["learner"] * case.batch_size,
        "ms_per_update": 1e3 / medians["learner"],
        "plain_updates_per_s": medians["plain"],
        "ratio": medians["learner"] / medians["plain"],
    }


def measure_thread(device: str, precision: Precision, seconds: float) -> Line:
    """Return how a LearnerThread with a full queue did for ``seconds``, after a fifth of it to warm up."""
    rng = np.random.default_rng(0)
    batches = cycle([make_batch(NATURE, rng) for _ in range(NUM_BATCHES)])
    thread: LearnerThread[None] = LearnerThread(make_learner(NATURE, device, precision), queue_capacity=16)
    thread.start()
    try:
        _feed(thread, batches, seconds / 5)
        waited_s, started = thread.time_s["wait"], time.perf_counter()
        num_rows = _feed(thread, batches, seconds)
        elapsed_s = time.perf_counter() - started
        wait_share = (thread.time_s["wait"] - waited_s) / elapsed_s
    finally:
        thread.stop()
    return {
        "device": device,
        "precision": precision,
        "updates_per_s": num_rows / NATURE.batch_size / elapsed_s,
        "rows_per_s": num_rows / elapsed_s,
        "wait_share": wait_share,
    }


def compare_graphs(run: str, device: str, repeats: int) -> Line:
    """Return the milliseconds of an update of an agent without and with CUDA graphs, medians of repeats in turns."""
    kind, keys, env, settings = GRAPHS[run]
    config = keys.model_validate({"num_workers": 0, "num_gpus": int(device == "cuda"), **settings})
    agent = kind(env, config, InlineTaskPool(), 0)
    batch = _rows(agent.policies.observation_space.shape or (), config.train_batch_size, env == "CartPole-v1")

    def measured(with_graphs: bool) -> Callable[[], float]:
        learner: Any = agent.make_learner()
        for captured in vars(learner).values():
            if isinstance(captured, CapturedWork):
                captured.can_capture &= with_graphs

        def once() -> int:
            before = learner.num_updates
            learner.learn_on_batch(batch)
            return int(learner.num_updates - before)

        return partial(per_second, once, SECONDS)

    speeds = in_turns({"single": measured(False), "graph": measured(True)}, repeats + 1)  # the first one warms up
    agent.stop()
    single, graph = (1e3 / statistics.median(speeds[name][1:]) for name in ("single", "graph"))
    return {"agent": run, "single_ms": single, "graph_ms": graph, "ratio": single / graph}


def _rows(observation_shape: tuple[int, ...], count: int, is_discrete: bool) -> SampleBatch:
    """Return random rows with the columns of every learner; there are two discrete actions, or one number."""
    rng = np.random.default_rng(0)
    names = (REWARDS, DISCOUNTS, IMPORTANCE_WEIGHTS, LOGP, ADVANTAGES, VALUE_TARGETS, VF_PREDS)
    columns: dict[str, Array] = {name: rng.random(count, np.float32) for name in names}
    columns |= {name: rng.standard_normal((count, *observation_shape), np.float32) for name in (OBS, NEW_OBS)}
    columns[ACTIONS] = rng.integers(2, size=count) if is_discrete else rng.random((count, 1), np.float32)
    return SampleBatch({**columns, DIST_INPUTS: rng.standard_normal((count, 2), np.float32)})


def _feed(thread: LearnerThread[None], batches: Iterator[SampleBatch], seconds: float) -> int:
    """Keep the queue full for ``seconds``; return how many rows were learned from."""
    num_rows, until = 0, time.perf_counter() + seconds
    while time.perf_counter() < until:
        while thread.queue_size < thread.queue_capacity:
            thread.put(None, next(batches))
        thread.wait_for_output(0.05)
        num_rows += sum(output.num_rows for output in thread.outputs())
    return num_rows


def main() -> None:
    parser = options(__doc__, repeats=7)
    parser.add_argument("--device", choices=("cpu", "cuda"), help="measure the Nature network on it instead")
    parser.add_argument("--precision", choices=("float32", "tf32", "bfloat16"), default="float32")
    parser.add_argument("--seconds", type=float, default=10.0, metavar="S", help="with --device, how long")
    parser.add_argument("--graphs", action="store_true", help="measure CUDA graphs instead")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="threads that torch may use")
    parser.add_argument("--slow", action="store_true", help="images at batch 512 as well, for a minute")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(conditions(), file=sys.stderr)
    if args.graphs:
        shown = Table(COLUMNS_OF_GRAPHS, args.json)
        for run in GRAPHS:
            shown.add(compare_graphs(run, args.device or "cuda", args.repeats))
        return
    if args.device:
        Table(COLUMNS_OF_DEVICES, args.json).add(measure_thread(args.device, args.precision, args.seconds))
        return
    table = Table(COLUMNS_SHOWN, args.json)
    for case in CASES:
        if args.slow or not case.slow:
            table.add(compare(case, args.repeats))


if __name__ == "__main__":
    main()
