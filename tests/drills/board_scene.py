"""A drill's board: a real Redis, a run on it, actors that join it; and whether each step has arrived exactly once."""

from __future__ import annotations

import signal
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from rlexp.runs.checkpoint_contents import read_checkpoint
from tests.drills.runs import NEVER, checkpoints_of
from tests.drills.scene import Command, Scene, check
from tests.lab.brokers import RedisServer, running_redis

ENV: Final = "tests.drills.envs:Paced"
LEASE_S: Final = 3
"""Of seats and of the right to train; 15 where a user says nothing."""
ENDS_BY_INTERRUPT: Final = (130, -signal.SIGINT)
"""Of an actor, the second where it had not begun: a shell calls that 130 too."""
STEPS: Final = 32
"""Env steps of a fragment: ``min_fragment_steps``, which is more than ``sample_batch_size`` of two envs."""
EXPERIMENT: Final = """
drill:
  run: APEX
  env: {env}
  stop: {{timesteps_total: {steps}}}
  config:
    seed: 0
    num_workers: 0
    num_envs_per_worker: 2
    env_config: {env_config}
    sample_batch_size: 10
    n_step: 1
    learning_starts: 100
    train_batch_size: 16
    training_intensity: 1
    buffer_size: 300000
    checkpoint_replay: true
    timesteps_per_iteration: 1
    min_iter_time_s: 0.5
    hiddens: [16]
    model: {{fcnet_hiddens: [16]}}
    optimizer: {{num_replay_buffer_shards: 1}}
    board: {board}
"""

APPO_EXPERIMENT: Final = """
drill:
  run: APPO
  env: {env}
  stop: {{timesteps_total: {steps}}}
  config:
    seed: 0
    num_workers: 0
    num_envs_per_worker: 2
    env_config: {env_config}
    sample_batch_size: 10
    train_batch_size: 64
    replay_proportion: 1.0e-9
    replay_buffer_num_slots: 1000000
    timesteps_per_iteration: 1
    min_iter_time_s: 0.5
    model: {{fcnet_hiddens: [16]}}
    board: {board}
"""
"""Its checkpoints have each fragment that it has learned, as one that may be drawn again."""


@dataclass(frozen=True)
class Account:
    """What a trainer has, and what was sent to it."""

    sent: int
    """Env steps that actors say they have played and given to it."""
    stored: int
    """Rows in the replay of its last checkpoint, all of them different."""
    players: Counter[int]
    """Rows by the env that they come from: each of one actor in one seat and epoch."""


class BoardScene:
    """Runs and actors of one drill on one board."""

    def __init__(self, scene: Scene, server: RedisServer) -> None:
        self.scene, self.server = scene, server
        self.step_s = 0.005
        """Of the env."""
        self.env = ENV
        self.experiment = EXPERIMENT
        self.prefix: Sequence[str] = ()
        """Words before the command of the next process: where it runs."""
        self.url = server.url
        """What the next process is given."""
        self.queue: Sequence[str] = ()
        """The words that name the queue to each actor, and to a trainer of submitted tasks; none: Redis has it."""
        self.keys: dict[str, object] = {"actors": 2, "min_actors": 1, "beat_s": 0.5, "lease_s": LEASE_S}
        self.keys |= {"weights_period_s": 0.5, "recovery_period_s": 1}

    def file(self, **keys: object) -> Path:
        """Write the experiment, with changes of ``config.board``."""
        board = ", ".join(f"{name}: {value}" for name, value in {**self.keys, **keys}.items())
        env_config = f"{{step_s: {self.step_s}}}" if self.env == ENV else "{}"
        text = self.experiment.format(env=self.env, steps=NEVER, env_config=env_config, board=f"{{{board}}}")
        return self.scene.write("drill.yaml", text)

    def run(self, *words: object, variables: Mapping[str, str] | None = None, **keys: object) -> Command:
        """Start a run on the board."""
        own = ("run", self.file(**keys), "--out", self.scene.out, "--board", self.url, "--json", *words)
        return self._start(own, variables)

    def join(self, *words: object, variables: Mapping[str, str] | None = None) -> Command:
        """Start an actor."""
        return self._start(("join", self.url, "--allow-env", self.env, "--json", *self.queue, *words), variables)

    def train(self, name: str) -> Command:
        """Start a trainer that waits for one submitted task; its runs are in the folder ``name``."""
        words = ("join", self.url, "--as", "trainer", "--once", "--out", self.scene.folder / name)
        return self._start((*words, "--allow-env", self.env, "--json", *self.queue))

    def submit(self) -> Command:
        """Submit the experiment."""
        return self._start(("submit", self.file(), "--board", self.url, "--out", self.scene.out, "--json"))

    def _start(self, words: Sequence[object], variables: Mapping[str, str] | None = None) -> Command:
        return self.scene.start_behind(self.prefix, *words, **(variables or {}))

    def task(self) -> str:
        """Return the id of the only task on the board."""
        (task,) = self.server.members("SMEMBERS", "rlexp:tasks")
        return task


@contextmanager
def board_scene(scene: Scene, password: str = "", folder: Path | None = None) -> Iterator[BoardScene]:
    """Have a Redis for a drill; with ``folder`` it keeps its data there."""
    with running_redis(password, folder) as server:
        yield BoardScene(scene, server)


def grown(command: Command, row: dict[str, Any], steps: int = 400) -> dict[str, Any]:
    """Return a row by which so many steps have come since ``row``."""
    return command.wait_until_it_learns(steps=row["timesteps_total"] + steps)


def leave(*actors: Command) -> int:
    """Let actors leave by Ctrl-C; return the env steps of all that they played in any seat, which the trainer has."""
    for actor in actors:
        actor.process.send_signal(signal.SIGINT)
    for actor in actors:
        code = actor.end()
        check(code in ENDS_BY_INTERRUPT, f"an actor ends with {code}: {actor.stderr[-300:]}")
    seats = [event for actor in actors for event in actor.events_of("left")]
    waiting = sum(seat["num_waiting"] for seat in seats)
    check(not waiting, f"{waiting} fragments were not confirmed when their actors left")
    return sum(seat["num_env_steps"] - STEPS * seat["num_dropped"] for seat in seats)


def finish(board: BoardScene, run: Command, *actors: Command) -> Account:
    """Let actors leave, and then stop the run; return what the one has and the others have sent."""
    sent = leave(*actors)
    run.stop()
    return account_of(board.scene.out / "drill", sent)


def account_of(run: Path, sent: int, is_whole: bool = True) -> Account:
    """Check that no row in the replay of a run is there twice, and that of no player one is missing between others.

    ``is_whole``: nor before them. A trainer that follows another one has none of its replay.
    """
    rows = stored_rows(run)
    steps: dict[int, list[int]] = defaultdict(list)
    for player, step in rows.astype(int).tolist():
        steps[player].append(step)
    for player, own in steps.items():
        twice = len(own) - len(set(own))
        check(not twice, f"{twice} rows of player {player} are stored twice")
        missing = max(own) + 1 - len(own) - (0 if is_whole else min(own))
        check(not missing, f"{missing} rows of player {player} are missing")
    return Account(sent, len(rows), Counter({player: len(own) for player, own in steps.items()}))


def check_exact(account: Account) -> str:
    """Check that a trainer has stored exactly what was sent to it; return that as a sentence."""
    check(account.stored == account.sent, f"{account.sent} steps were sent, {account.stored} rows are stored")
    return f"{account.sent:,} steps sent, {account.stored:,} rows stored, none twice"


def stored_rows(run: Path) -> np.ndarray[Any, Any]:
    """Return player and step of each row in the replay of a run's last checkpoint."""
    replay = read_checkpoint(checkpoints_of(run)[-1]).arrays["replay_0"]
    return np.asarray(replay["storage.obs"])[:, [0, 2]]
