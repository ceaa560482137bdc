"""``rlexp run``, ``sweep`` and ``resume`` as a user meets them: real processes, Ray, Tune and wandb, real files."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from rlexp.runs.checkpoint_contents import read_checkpoint
from rlexp.runs.checkpoints import list_checkpoints
from rlexp.runs.rows import scalars
from tests.lab.agent_packages import install_agent
from tests.lab.trials import needs_wandb, wandb_logs

pytestmark = pytest.mark.ray

REPOSITORY = Path(__file__).parents[2]

TINY = """
  stop: {training_iteration: 2}
  checkpoint_at_end: true
  config: &config
    timesteps_per_iteration: 100
    min_iter_time_s: 0
    learning_starts: 50
    buffer_size: 1000
    train_batch_size: 16
    seed: 3
    model: {fcnet_hiddens: [16]}
    hiddens: [16]
"""
NINE_TRIALS = f"""
grid:
  run: DQN
  env: CartPole-v1
  num_samples: 2
{TINY.replace("&config", "")}
    lr: {{grid_search: [1e-3, 1e-4]}}
    n_step: {{grid_search: [1, 3]}}
single:
  run: APEX
  env: CartPole-v1
{TINY.replace("&config", "")}
    num_workers: 2
    num_cpus_per_worker: 0.5
    optimizer: {{num_replay_buffer_shards: 2}}
"""


def rlexp(*arguments: object, folder: Path = REPOSITORY, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rlexp", *map(str, arguments)]
    return subprocess.run(
        command, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True, timeout=150, check=False
    )


def rows(trial: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (trial / "result.json").read_text().splitlines()]


def test_a_run_without_a_file_keeps_one_and_names_it(tmp_path: Path) -> None:
    words = ["--algo", "ppo", "--env", "CartPole-v1", "--stop", "iterations=1", "--seed", "3"]
    done = rlexp("run", *words, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[0] == "settings: the example cartpole-ppo"
    file = tmp_path / "out" / "cartpole-ppo" / "experiment.yaml"
    assert done.stdout.splitlines()[-1] == f"to change settings: edit {file}, then: rlexp run {file}"
    assert "training_iteration: 1" in file.read_text()
    again = rlexp("run", file, "--dry-run")
    assert (again.returncode, again.stderr) == (0, "")


@pytest.mark.slow
def test_every_variant_and_sample_runs_to_its_stop(tmp_path: Path) -> None:
    file = tmp_path / "nine.yaml"
    file.write_text(NINE_TRIALS)
    arguments = ("run", file, "--out", tmp_path / "out", "--json")
    done = rlexp(*arguments, RAY_ADDRESS="127.0.0.1:1", RLEXP_ADDRESS="local")  # nothing may try to join the first
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert sum(event["event"] == "result" for event in events) == 18
    run = json.loads((tmp_path / "out/nine/run.json").read_text())
    assert len(run["trials"]) == 9
    assert {trial["status"] for trial in run["trials"]} == {"TERMINATED"}
    assert len({json.dumps(trial["varied"], sort_keys=True) + str(trial["seed"]) for trial in run["trials"]}) == 9
    for trial in run["trials"]:
        directory = tmp_path / "out/nine" / trial["directory"]
        assert [row["training_iteration"] for row in rows(directory)] == [1, 2]
        assert rows(directory)[-1]["timesteps_total"] >= 200
        assert rows(directory)[-1]["info"]["num_updates"] > 0
        params = json.loads((directory / "params.json").read_text())
        assert {key: params[key] for key in trial["varied"]} == trial["varied"]
        assert len((directory / "progress.csv").read_text().splitlines()) == 3
        assert any(directory.glob("events.out.tfevents.*"))
        assert read_checkpoint(directory / "checkpoint_000002").state["iteration"] == 2
    assert not list((tmp_path / "out").rglob("*.pkl")), "Tune's pickles stay nowhere"


def test_ctrl_c_saves_a_checkpoint_and_leaves_nothing_running_and_resume_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "endless.yaml"
    endless = NINE_TRIALS[NINE_TRIALS.index("single:") :].replace("training_iteration: 2", "training_iteration: 100000")
    endless = endless.replace("num_workers: 2", "num_workers: 1")
    file.write_text(endless.replace("min_iter_time_s: 0", "min_iter_time_s: 0.2"))
    command = [sys.executable, "-m", "rlexp", "run", str(file), "--out", str(tmp_path), "--json"]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if json.loads(line)["event"] == "result":
                break
        family = psutil.Process(process.pid).children(recursive=True)
        asked = time.monotonic()
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.wait(timeout=20) == 130
    assert time.monotonic() - asked < 10
    _, alive = psutil.wait_procs(family, timeout=5)
    assert not alive
    run = json.loads((tmp_path / "single/run.json").read_text())
    assert run["status"] == run["trials"][0]["status"] == "STOPPED"
    trial = tmp_path / "single" / run["trials"][0]["directory"]
    last = rows(trial)[-1]
    assert read_checkpoint(trial / f"checkpoint_{last['training_iteration']:06d}").state["iteration"] >= 1

    done = rlexp("resume", tmp_path / "single", "-o", f"stop.training_iteration={last['training_iteration'] + 2}")
    assert done.returncode == 0, done.stderr
    phases = ("starting Ray", "waiting for the first result", "ending Ray")
    assert [phase for phase in phases if phase not in done.stderr] == []
    assert f"finished: training_iteration reached {last['training_iteration'] + 2}" in done.stdout
    assert not list((tmp_path / "single").rglob(".phase"))
    iterations = [row["training_iteration"] for row in rows(trial)]
    assert iterations == list(range(1, last["training_iteration"] + 3))
    steps = [row["timesteps_total"] for row in rows(trial)]
    assert steps == sorted(steps)


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
  env: tests.lab.envs:FatefulEnv
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
  env: tests.lab.envs:FatefulEnv
  stop: {{timesteps_total: 1200}}
  search: {{scheduler: pbt, searcher: grid, pbt: {{perturbation_interval: 400, resample_probability: 0}}}}
  config:
    horizon: {{grid_search: [10, 2]}}
    lr: {{grid_search: [1e-3]}}
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
    raised = r"env tests\.lab\.envs:FatefulEnv: tests/lab/envs\.py:\d+ in step: RuntimeError: this env raises"
    assert re.match(raised, reasons[0])
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


@needs_wandb
@pytest.mark.slow
def test_a_tracked_run_and_its_resume_are_one_run_of_wandb_with_the_rows_of_result_json(tmp_path: Path) -> None:
    file, run = tmp_path / "small.yaml", tmp_path / "out" / "small"
    file.write_text(f"small:\n  run: DQN\n  env: CartPole-v1\n{TINY}")
    home = str(tmp_path)
    first = rlexp("run", file, "--out", tmp_path / "out", "--track", "wandb", WANDB_MODE="offline", HOME=home)
    assert first.returncode == 0, first.stderr
    assert "tracks with wandb: project rlexp, offline, nothing is sent" in first.stderr
    second = rlexp("resume", run, "-o", "stop.training_iteration=3", WANDB_MODE="offline", HOME=home)
    assert second.returncode == 0, second.stderr
    (results,) = run.glob("*/result.json")
    expected = [dict(scalars(json.loads(line))) for line in results.read_text().splitlines()]
    logs = wandb_logs(run)
    history = [row for log in logs for row in log.history]
    assert [{key: value for key, value in row.items() if not key.startswith("_")} for row in history] == expected
    assert len(expected) == 3
    assert len({log.id for log in logs}) == 1
    assert [log.group for log in logs] == ["small", "small"]
    assert [log.summary["status"] for log in logs] == ["TERMINATED", "TERMINATED"]
    assert not Path.cwd().joinpath("wandb").exists()


TORSO = '''
from torch import nn


class Torso(nn.Sequential):
    """One layer, which is found in the folder of the experiment's file."""

    def __init__(self, observation_space, width):
        super().__init__(nn.Linear(observation_space.shape[0], width), nn.ReLU())
        self.num_features = width
'''
PACKAGED = """
own:
  run: TwiceDQN
  env: CartPole-v1
  stop: {training_iteration: 2}
  config:
    reward_factor: 4.0
    num_workers: 1
    num_cpus_per_worker: 0.5
    model: {custom_model: {own_torso_of_test: {width: 12}}}
    timesteps_per_iteration: 100
    min_iter_time_s: 0
    learning_starts: 50
    buffer_size: 1000
    train_batch_size: 16
    hiddens: [8]
    seed: 3
""".replace("own_torso_of_test", "'own_torso_of_test:Torso'")


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_agent_and_torso_of_the_users_own_run_and_resume(tmp_path: Path) -> None:
    site, folder = install_agent(tmp_path / "site"), tmp_path / "work"
    folder.mkdir()
    (folder / "own_torso_of_test.py").write_text(TORSO)
    (folder / "own.yaml").write_text(PACKAGED)
    path = os.pathsep.join((str(REPOSITORY), str(site)))
    run = rlexp("run", "own.yaml", "--out", "results", "--quiet", folder=folder, PYTHONPATH=path)
    assert run.returncode == 0, run.stdout + run.stderr
    evaluated = rlexp("evaluate", "results/own", "--episodes", "2", "--json", folder=folder, PYTHONPATH=path)
    assert evaluated.returncode == 0, evaluated.stdout + evaluated.stderr
    words = ("resume", "results/own", "-o", "stop.training_iteration=3", "--quiet")
    resumed = rlexp(*words, folder=folder, PYTHONPATH=path)
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    (result,) = (folder / "results/own").glob("*/result.json")
    found = rows(result.parent)
    assert [row["training_iteration"] for row in found] == [1, 2, 3]
    assert {row["info"]["reward_factor"] for row in found} == {4.0}
    assert found[2]["info"]["num_updates"] > found[1]["info"]["num_updates"] > 0
