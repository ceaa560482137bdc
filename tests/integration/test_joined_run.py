"""A run with a real Redis as its board, and actors in processes of their own: ``rlexp run --board``, ``rlexp join``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.brokers import running_redis

TIMEOUT_S = 170.0
OPTIONS = ("--keys", "--token", "--token")
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
@pytest.mark.parametrize("has_tokens", [False, True], ids=["password", "tokens"])
def test_run_reaches_its_stop_with_joined_actors_alone_and_they_end_with_it(has_tokens: bool, tmp_path: Path) -> None:
    pytest.importorskip("redis")
    (tmp_path / "joined.yaml").write_text(EXPERIMENT)
    keys = tmp_path.parent / f"{tmp_path.name}-keys"
    commands = [["run", "joined.yaml"], ["join", "--once"], ["join", "--once"]]
    secrets = [PASSWORD]
    if has_tokens:
        files = key_files(keys)
        secrets += [file.read_text().strip() for file in files]
        commands = [[*words, option, f"@{file}"] for words, option, file in zip(commands, OPTIONS, files, strict=True)]
    with running_redis(PASSWORD) as server:
        environment = {
            **os.environ,
            "RLEXP_BOARD": f"redis://127.0.0.1:{server.port}",
            "RLEXP_BOARD_PASSWORD": PASSWORD,
        }
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", "rlexp", *words],
                cwd=tmp_path,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for words in commands
        ]
        try:
            lines = command_lines(processes)
            said = [process.communicate(timeout=TIMEOUT_S) for process in processes]
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
    assert all("the task is over" in errors for _, errors in said[1:])
    written = {str(path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    shown = {f"output {index}": "".join(texts).encode() for index, texts in enumerate(said)}
    found = {**written, **shown, "command lines": lines.encode()}
    assert not [place for place, content in found.items() for secret in secrets if secret.encode() in content]


def key_files(folder: Path) -> list[Path]:
    """Return the files of a master key and of two tokens."""
    words = ["board", "keys", "--out", str(folder), "--actor", "alice", "--actor", "bob"]
    subprocess.run([sys.executable, "-m", "rlexp", *words], check=True, timeout=TIMEOUT_S, stdout=subprocess.DEVNULL)
    return [folder / name for name in ("master.key", "alice.token", "bob.token")]


def command_lines(processes: Sequence[subprocess.Popen[str]]) -> str:
    """Return the command lines of processes and of those that they start, until the trial's process is among them."""
    deadline_s = time.monotonic() + TIMEOUT_S
    seen: set[str] = set()
    while time.monotonic() < deadline_s and all(process.poll() is None for process in processes):
        for process in processes:
            with suppress(psutil.Error):
                parent = psutil.Process(process.pid)
                seen |= {" ".join(each.cmdline()) for each in (parent, *parent.children(recursive=True))}
        if any("ray::" in line for line in seen):
            break
        time.sleep(0.2)
    return "\n".join(seen)
