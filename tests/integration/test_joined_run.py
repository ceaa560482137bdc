"""A run with a real Redis as its board, and actors in processes of their own: ``rlexp run --board``, ``rlexp join``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.brokers import running_redis

TIMEOUT_S = 170.0
PASSWORD = "geheim-4711"
EXPERIMENT = """
joined:
  run: APEX
  env: CartPole-v1
  stop: {timesteps_total: 4000, num_updates: 100000}
  config:
    num_workers: 0
    num_envs_per_worker: 4
    seed: 1
    learning_starts: 500
    train_batch_size: 64
    buffer_size: 10000
    timesteps_per_iteration: 1000
    min_iter_time_s: 0
    hiddens: [16]
    model: {fcnet_hiddens: [16]}
    optimizer: {num_replay_buffer_shards: 1}
    board: {actors: 2, min_actors: 2}
"""


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_run_reaches_its_stop_with_joined_actors_alone_and_they_end_with_it(tmp_path: Path) -> None:
    pytest.importorskip("redis")
    (tmp_path / "joined.yaml").write_text(EXPERIMENT)
    with running_redis(PASSWORD) as server:
        environment = {
            **os.environ,
            "RLEXP_BOARD": f"redis://127.0.0.1:{server.port}",
            "RLEXP_BOARD_PASSWORD": PASSWORD,
        }
        commands = [["run", "joined.yaml"], ["join", "--once"], ["join", "--once"]]
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", "rlexp", *words],
                cwd=tmp_path,
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            for words in commands
        ]
        try:
            said = [process.communicate(timeout=TIMEOUT_S)[1] for process in processes]
        finally:
            for process in processes:
                process.kill()
    assert [process.returncode for process in processes] == [0, 0, 0], said
    (result,) = tmp_path.glob("results/joined/*/result.json")
    row = json.loads(result.read_text().splitlines()[-1])
    board = row["info"]["board"]
    assert row["timesteps_total"] >= 4000
    assert row["info"]["num_updates"] > 0
    assert (board["actors"], board["seats"], board["num_refused"], board["num_lost_leases"]) == (2, 2, 0, 0)
    assert all("the task is over" in text for text in said[1:])
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and PASSWORD.encode() in path.read_bytes()]
