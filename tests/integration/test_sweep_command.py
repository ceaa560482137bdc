"""``rlexp sweep`` as a user meets it: real processes, Ray and Tune, real files."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rlexp.runs.checkpoints import list_checkpoints, read_checkpoint
from tests.integration.test_run_command import REPOSITORY, rlexp

pytestmark = pytest.mark.ray

SMALL = """
    num_cpus_for_driver: 0.25
    timesteps_per_iteration: 40
    min_iter_time_s: 0
    learning_starts: 40
    train_batch_size: 8
    buffer_size: 1000
    hiddens: [8]
    model: {fcnet_hiddens: [8]}
    seed: 3
"""
FATES = f"""
fates:
  run: DQN
  env: tests.sweep_envs:FatefulEnv
  stop: {{timesteps_total: 400}}
  search: {{hang_timeout_s: 15}}
  config:
    prioritized_replay: false
    env_config: {{fate: {{grid_search: [none, raise, nan, hang]}}}}
{SMALL}
"""
POPULATION = f"""
population:
  run: DQN
  env: tests.sweep_envs:FatefulEnv
  stop: {{timesteps_total: 1200}}
  search: {{scheduler: pbt, searcher: grid, pbt: {{perturbation_interval: 400, resample_probability: 0}}}}
  config:
    horizon: {{grid_search: [10, 2]}}
    lr: {{grid_search: [1e-3]}}
{SMALL}
"""
PAYS = [8, 5, 7, 1, 6, 2, 4, 3]
EIGHT = f"""
eight:
  run: DQN
  env: tests.sweep_envs:FatefulEnv
  stop: {{timesteps_total: 240}}
  search: {{max_concurrent: 2, scheduler: asha, asha: {{grace_period: 120, reduction_factor: 2}}}}
  config:
    prioritized_replay: false
    env_config: {{pay: {{grid_search: {PAYS}}}}}
{SMALL}
"""


def swept(tmp_path: Path, text: str, *arguments: object) -> tuple[Any, Path]:
    (tmp_path / "sweep.yaml").write_text(text)
    done = rlexp("sweep", tmp_path / "sweep.yaml", "--out", tmp_path, "--name", "out", *arguments)
    return done, tmp_path / "out"


@pytest.mark.slow
def test_a_sweep_outlives_trials_that_raise_diverge_and_hang(tmp_path: Path) -> None:
    started = time.monotonic()
    done, path = swept(tmp_path, FATES, "--allow-failures", 3)
    assert time.monotonic() - started < 120
    assert done.returncode == 0, done.stdout + done.stderr
    run = json.loads((path / "run.json").read_text())
    assert [trial["status"] for trial in run["trials"]] == ["TERMINATED", "ERROR", "ERROR", "ERROR"]
    assert run["status"] == "TERMINATED"
    reasons = [trial["error"]["summary"] for trial in run["trials"][1:]]
    assert reasons[0].startswith(
        "env tests.sweep_envs:FatefulEnv: tests/sweep_envs.py:26 in step: RuntimeError: this env raises"
    )
    assert reasons[1].startswith("the env returned a reward of nan")
    assert reasons[2].startswith("no result for 15 s: ")
    assert "3 of 4 trials failed:" in done.stdout
    assert all(reason in done.stdout for reason in reasons)
    assert "Traceback" not in done.stdout + done.stderr
    assert "fate: none" in (path / "best.yaml").read_text()
    again = rlexp("run", path / "best.yaml", "--dry-run")
    assert again.returncode == 0, again.stderr
    assert not list(tmp_path.rglob("*.pkl")), "Tune's pickles stay nowhere"
    refused = rlexp("resume", path)
    assert refused.returncode == 3
    assert f"every trial of {path} has ended" in refused.stderr


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("-o", "search.pbt.synch=true", "--max-concurrent", "1")])
def test_pbt_copies_weights_and_keys(options: tuple[str, ...], tmp_path: Path) -> None:
    done, path = swept(tmp_path, POPULATION, "--json", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    exploits = json.loads((path / "sweep.json").read_text())["exploits"]
    assert exploits
    first = exploits[0]
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert any(event["event"] == "note" and "copies" in event["text"] for event in events)
    donors = read_checkpoint(path / first["checkpoint"])
    (copy,) = [each for each in list_checkpoints(path / first["trial"]) if each.name == donors.path.name]
    for name, weights in read_checkpoint(copy).arrays["weights"].items():
        assert (weights == donors.arrays["weights"][name]).all()
    if exploits[-1]["trial"] == first["trial"]:
        first = exploits[-1]
    params = json.loads((path / first["trial"] / "params.json").read_text())
    assert params["horizon"] == first["after"]["horizon"]
    rows = [json.loads(line) for line in (path / first["trial"] / "result.json").read_text().splitlines()]
    assert rows[-1]["timesteps_total"] >= 1200


@pytest.mark.slow
def test_killed_sweep_is_resumed(tmp_path: Path) -> None:
    """Nothing that is over runs again, all eight are ranked, and what was over still counts at its rungs."""
    (tmp_path / "sweep.yaml").write_text(EIGHT)
    path, ended = tmp_path / "out", []
    command = [sys.executable, "-m", "rlexp", "sweep", tmp_path / "sweep.yaml", "--out", tmp_path, "--name", "out"]
    with subprocess.Popen([*map(str, command), "--json"], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            event = json.loads(line)
            if event["event"] == "trial_end":
                ended.append(event["trial"])
            if len(ended) == 3:
                process.kill()  # more may end before it is dead
    before = {trial: (path / trial / "result.json").read_text() for trial in ended}
    done = rlexp("resume", path, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    begun = [event["trial"] for event in events if event["event"] == "trial_start"]
    assert len(begun) == 8 - len(ended)
    assert not set(begun) & set(ended)
    assert before == {trial: (path / trial / "result.json").read_text() for trial in ended}
    saved = json.loads((path / "sweep.json").read_text())
    assert sorted(each["point"]["env_config.pay"] for each in saved["configurations"]) == sorted(PAYS)
    assert {each["status"] for each in saved["configurations"]} == {"TERMINATED", "PRUNED"}
    assert len(saved["early_stopping"][0]["values"]) == 8
    assert "pay: 8" in (path / "best.yaml").read_text()
