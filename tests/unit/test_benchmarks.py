"""What benchmarks compute from what they measured, and what they measure in: most are too slow to be run by tests."""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from benchmarks import dqn, dqn_peers, growth, pauses, ppo_peers, ppo_tasks, results, sb3
from benchmarks.comparison import median_of
from benchmarks.cpu_meter import CpuMeter
from benchmarks.learning_table import Outcome, line_of, line_of_group, markdown, mean_of, shown
from benchmarks.pauses import PiecesInPauses
from benchmarks.ppo import COMMAND, ratios
from benchmarks.ppo_programs import Point, figures_of
from benchmarks.ppo_tasks import RLLIB, SB3, TASKS
from benchmarks.processes import add_peer_options, found_peers, in_own_process, installed_version, run_command
from rlexp.compare.group import SettingsReader, groups_of
from rlexp.config.load import load_plan
from rlexp.runs.record import RunRecord, Status

POINTS = [
    Point(0.0, 0, None, 10.0),
    Point(1.0, 100, 20.0, 10.5),
    Point(2.0, 200, 60.0, 11.0),
    Point(4.0, 400, 50.0, 12.0),
]


def test_median_of_counts_what_was_never_reached_as_more_than_all() -> None:
    assert median_of([3.0, None, 1.0]) == 3
    assert median_of([None, None, 1.0]) is None


def test_figures_of_a_run_that_reached_its_goal() -> None:
    figures = figures_of(POINTS, 55)
    assert (figures["goal_s"], figures["goal_steps"]) == (2, 200)
    assert (figures["train_s"], figures["steps"], figures["reward"]) == (4, 400, 50)
    assert figures["steps_per_s"] == 100
    assert figures["steps_per_cpu_s"] == 200


def test_figures_of_a_run_without_its_first_iteration() -> None:
    figures = figures_of(POINTS[1:], 100)
    assert figures["goal_s"] is None
    assert figures["steps_per_s"] == 100
    assert figures["steps_per_cpu_s"] == 200


def test_ratios_are_of_the_peers_that_were_measured() -> None:
    ours = {"goal_s": None, "goal_steps": 30.0, "steps_per_s": 900.0, "steps_per_cpu_s": 800.0, "command_s": 5.0}
    peers = {"goal_s": 20.0, "goal_steps": 60.0, "steps_per_s": 300.0, "steps_per_cpu_s": None, "command_s": 20.0}
    (line,) = ratios(TASKS[0], {SB3: peers, COMMAND: ours})
    assert (line["program"], line["peer"], line["goal_s"], line["steps_per_cpu_s"]) == (COMMAND, SB3, None, None)
    assert (line["goal_steps"], line["steps_per_s"]) == (0.5, pytest.approx(3.0))
    assert not ratios(TASKS[0], {RLLIB: peers})


BUSY = "import time\nwhile time.process_time() < 0.6: pass\n"
"""A program that needs more than half a CPU second, however busy the machine is."""


def test_work_is_done_in_a_process_of_its_own() -> None:
    assert in_own_process(60, os.getpid) != os.getpid()


def test_cpu_meter_counts_children_of_children_after_their_parent() -> None:
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BUSY!r}])"
    with CpuMeter() as meter:
        subprocess.run([sys.executable, "-c", parent], check=True, timeout=60)
    assert 0.3 < meter.total_s < 3
    assert meter.at(0.0) == 0
    assert 0 < meter.at(1e9) == meter.total_s


def test_cpu_meter_leaves_out_what_began_before() -> None:
    with subprocess.Popen([sys.executable, "-c", BUSY]) as before, CpuMeter() as meter:
        before.wait(60)
    assert meter.total_s == 0


def test_run_command_returns_its_events_and_its_end() -> None:
    printing = """print('{"event": "row", "steps": 3}', flush=True)"""
    row, end = run_command([sys.executable, "-c", printing], 60)
    assert (row.kind, row.fields["steps"], end.kind) == ("row", 3, "exit")
    assert row.seconds <= end.seconds


def test_run_command_has_the_environment_given() -> None:
    printing = "import os, json; print(json.dumps({'event': 'row', 'there': 'THERE' in os.environ}))"
    row, _ = run_command([sys.executable, "-c", printing], 60, {**os.environ, "THERE": "1"})
    assert row.fields["there"]


def test_run_command_that_fails_raises() -> None:
    with pytest.raises(subprocess.CalledProcessError):
        run_command([sys.executable, "-c", "raise SystemExit(3)"], 60)


def test_installed_version_of_another_python() -> None:
    assert installed_version(sys.executable, "pytest") == pytest.__version__
    assert installed_version(sys.executable, "no-such-package") is None
    assert installed_version("no-such-python", "pytest") is None


def test_peers_are_found_by_the_package_that_their_python_has(capsys: pytest.CaptureFixture[str]) -> None:
    parser, peers = argparse.ArgumentParser(), {"Some-Peer": "pytest", "other": "no-such-package", "none": "pytest"}
    add_peer_options(parser, peers)
    options = parser.parse_args(["--some-peer", sys.executable])
    options.none = None
    assert found_peers(options, peers) == {"Some-Peer": sys.executable}
    assert capsys.readouterr().err.count("left out") == 2


def test_each_peer_of_a_task_has_a_program() -> None:
    tasks = [*TASKS, ppo_tasks.published(Path("file"))]
    peers = {peer for task in tasks for peer in task.peers}
    assert peers == ppo_tasks.PACKAGES.keys()
    assert {peer.lower() for peer in peers} == ppo_peers.TRAIN.keys()
    assert {peer for task in dqn.TASKS for peer in task.peers} == dqn.MODULES.keys() == dqn_peers.TRAIN.keys()


def test_tasks_are_experiments_that_rlexp_accepts(tmp_path: Path) -> None:
    for task in TASKS:
        (trial,) = load_plan([task.file(tmp_path)]).trials
        assert task.goal is None or trial.experiment.stop["episode_reward_mean"] == task.goal


def test_output_of_cleanrl_becomes_rows_until_the_goal() -> None:
    rows = io.StringIO()
    task = {"goal": 9, "max_steps": 1000, "max_s": 60, "settings": {"num-envs": 2, "num-steps": 8}}
    output = ppo_peers.CleanRLOutput(task, rows)
    output.write("global_step=4, episodic_return=[7.]\nSPS: 3\nglobal_")
    output.write("step=20, episodic_return=12.0\n" + 99 * "global_step=20, episodic_return=[9.]\n")
    with pytest.raises(ppo_peers.GoalReachedError):
        output.write("SPS: 3\n")
    steps = [(row["steps"], row["reward"]) for row in map(json.loads, rows.getvalue().splitlines())]
    assert steps == [(0, None), (16, None), (32, 9.03)]


def test_pieces_are_measured_in_pauses_of_a_run_which_goes_on_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pauses, "RUNNING_S", 0.05)
    monkeypatch.setattr(pauses, "MEASURED_S", 0.02)
    with PiecesInPauses({"ones": partial(partial, int, "1")}, 60) as measured:
        with pytest.raises(SystemExit, match="before its first pause"):
            measured.per_second("ones")
        began = time.monotonic()
        run = subprocess.Popen([pauses.TRAINING, "-c", "while True: pass"], executable=sys.executable)
        seen = set()
        while psutil.STATUS_STOPPED not in seen and time.monotonic() < began + 30:
            seen.add(psutil.Process(run.pid).status())
        time.sleep(0.2)
    try:
        assert run.poll() is None
        assert psutil.Process(run.pid).status() != psutil.STATUS_STOPPED
    finally:
        run.kill()
        run.wait(60)
    assert psutil.STATUS_STOPPED in seen
    assert measured.per_second("ones") > 0
    assert 0 < measured.paused_s(began, time.monotonic()) < time.monotonic() - began
    assert measured.paused_s(began - 2, began - 1) == 0


EXPERIMENTS = Path(__file__).parents[2] / "experiments"


def outcome(greedy: float, **changes: Any) -> Outcome:
    return Outcome(
        **{"env": "A-v1", "steps": 1000.0, "seconds": 7.0, "cpu_s": None, "training": 1.0, **changes}, greedy=greedy
    )


def peer(folder: Path, seed: int, last: dict[str, Any]) -> None:
    trial = folder / f"a-{seed}"
    trial.mkdir(parents=True)
    (trial / "params.json").write_text(json.dumps({"run": "SB3 DQN", "env": "A-v1", "seed": seed}))
    rows = [{"timesteps_total": 50, "time_total_s": 1.0, "episode_reward_mean": 3.0}, last]
    (trial / "result.json").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_interval_is_students_t() -> None:
    # Three values with deviation 1: 4.303 / sqrt(3).
    mean = mean_of([9.0, 10.0, 11.0])
    assert mean.value == 10
    assert mean.margin == pytest.approx(2.484, abs=1e-3)
    assert str(mean) == "10.0 ± 2.48"
    assert mean_of([5.0]).margin is None


def test_returns_have_as_many_digits_as_say_something() -> None:
    assert [shown(value) for value in (-145.2, 99.94, -3.456)] == ["-145", "99.9", "-3.46"]


def test_line_has_medians_of_what_was_spent_and_means_of_returns() -> None:
    seeds = [outcome(10.0, seconds=5.0), outcome(30.0, seconds=9.0, training=4.0), outcome(20.0, seconds=6.0)]
    line = line_of("dqn", seeds)
    assert (line["seconds"], line["cpu_s"], line["training"], line["greedy"]) == (6, None, 2, 20)
    assert markdown(line).startswith("| A-v1 | dqn | 3 | 1,000 | 6 | - | 2.00 ± ")
    assert markdown(line).endswith(" | 10.0 · 30.0 · 20.0 |")


def test_group_of_a_peer_is_read_from_its_last_rows(tmp_path: Path) -> None:
    for seed, greedy in enumerate((100.0, 200.0)):
        last = {"timesteps_total": 100, "time_total_s": 4.0, "cpu_total_s": 3.0, "episode_reward_mean": 5.0}
        peer(tmp_path, seed, {**last, "evaluation": {"episode_reward_mean": greedy}})
    (group,) = groups_of([f"sb3={tmp_path}/a-*"], SettingsReader())
    line = line_of_group(group, 20)
    assert (line["agent"], line["seeds"], line["steps"], line["cpu_s"]) == ("sb3", 2, 100, 3)
    assert (line["training"], line["greedy_by_seed"]) == (5, [100, 200])


def test_trial_whose_final_weights_were_not_played_is_named(tmp_path: Path) -> None:
    peer(tmp_path, 0, {"timesteps_total": 100, "time_total_s": 4.0, "episode_reward_mean": 5.0})
    (group,) = groups_of([f"sb3={tmp_path}/a-0"], SettingsReader())
    with pytest.raises(SystemExit, match="a-0 has neither a checkpoint nor an evaluation"):
        line_of_group(group, 20)


@pytest.mark.parametrize("name", ["pendulum", "taxi"])
def test_peer_has_the_settings_of_the_file_where_the_zoo_has_none(name: str) -> None:
    (trial,) = load_plan([EXPERIMENTS / f"{name}-dqn.yaml"], seed=0).trials
    config: Any = trial.experiment.config
    task = sb3.TASKS[name]
    settings = task.settings
    assert (task.env, task.steps) == (trial.experiment.env, trial.experiment.stop["timesteps_total"])
    assert task.torques == config.discretize_actions
    assert settings["learning_rate"] == (config.lr_schedule[0][1] if config.lr_schedule else config.lr)
    assert settings["batch_size"] == config.train_batch_size
    assert settings["buffer_size"] == config.buffer_size
    assert settings["learning_starts"] == config.learning_starts
    assert settings["gamma"] == config.gamma
    assert settings["target_update_interval"] == config.target_network_update_freq
    steps_per_update = config.sample_batch_size * config.num_envs_per_worker
    assert settings["train_freq"] / settings["gradient_steps"] == steps_per_update
    annealed = config.epsilon_timesteps or config.exploration_fraction * config.schedule_max_timesteps
    assert settings["exploration_fraction"] * task.steps == pytest.approx(annealed)
    assert settings["exploration_final_eps"] == config.exploration_final_eps
    assert settings["net_arch"] == list(config.model.fcnet_hiddens)


@pytest.mark.parametrize("name", sb3.TASKS)
def test_same_settings_are_a_file_with_as_many_updates_and_the_peers_network(name: str, tmp_path: Path) -> None:
    task = sb3.TASKS[name]
    (tmp_path / "same.yaml").write_text(json.dumps({"same": sb3.same_settings(task)}), encoding="utf-8")
    (trial,) = load_plan([tmp_path / "same.yaml"], seed=0).trials
    config: Any = trial.experiment.config
    steps, updates = task.settings["train_freq"], task.settings["gradient_steps"]
    assert config.training_intensity / config.train_batch_size == (1 if updates == -1 else updates / steps)
    assert (config.sample_batch_size, config.num_envs_per_worker, config.num_workers) == (steps, 1, 0)
    assert (config.n_step, config.prioritized_replay) == (1, False)
    assert (config.buffer_size, config.gamma) == (task.settings["buffer_size"], task.settings["gamma"])
    if task.agent == "SAC":
        assert {tuple(task.settings["net_arch"])} == set(config.sizes)
        assert config.pure_exploration_steps == config.learning_starts == task.settings["learning_starts"]
        return
    assert (list(config.model.fcnet_hiddens), config.model.fcnet_activation) == (task.settings["net_arch"], "relu")
    assert (config.double_q, config.dueling) == (False, False)
    assert config.epsilon_timesteps == pytest.approx(task.settings["exploration_fraction"] * task.steps)


def test_peers_rows_are_due_at_equal_steps_and_the_last_one_is_played(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sb3, "make_env", lambda task, seed: None)
    monkeypatch.setattr(sb3.Recorder, "_played", lambda recorder, model: 7.0)
    rows, task = io.StringIO(), sb3.Task("A-v1", 1000, {})
    recorder = sb3.Recorder(task, evaluations=2, seed=0, rows=rows)
    model = SimpleNamespace(ep_info_buffer=[{"r": 1.0}, {"r": 2.0}])
    for steps in range(0, 1000, 8):
        if recorder.is_due(steps):
            recorder.add(model, steps)
    recorder.add(model, 1000)
    written = [json.loads(line) for line in rows.getvalue().splitlines()]
    assert len(written) == sb3.ROWS
    assert [row["timesteps_total"] for row in written if "evaluation" in row] == [504, 1000]
    assert {row["episode_reward_mean"] for row in written} == {1.5}


def test_results_train_what_is_missing_and_go_on_with_what_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(results, "_rlexp", lambda *words: commands.append([str(word) for word in words]))
    for seed, status in enumerate((Status.TERMINATED, Status.STOPPED)):
        (tmp_path / f"flat-{seed}").mkdir()
        RunRecord("flat", [], {}, None, "host", 2, "now", status=status).write(tmp_path / f"flat-{seed}")
    curve = results.Curve("flat net", "flat", 500, ("lr=0.1",), file="cartpole-ppo")

    runs = results.train([curve], range(3), tmp_path)

    assert runs == {"flat net": [tmp_path / f"flat-{seed}" for seed in range(3)]}
    resume, run = commands
    assert resume == ["resume", str(tmp_path / "flat-1")]
    assert (run[0], Path(run[1]).name) == ("run", "cartpole-ppo.yaml")
    assert run[2:6] == ["-o", "stop={timesteps_total: 500}", "-o", "lr=0.1"]
    assert run[6:] == ["--seed", "2", "--name", "flat-2", "--out", str(tmp_path)]


@pytest.mark.slow
def test_curves_of_growth_are_measured_and_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "TRIALS", (2, 4))
    monkeypatch.setattr(growth, "MEMORY", {"CartPole": ("cartpole", "rlexp", (1000, 4000))})
    curves = {"sweep": growth.sweep(), "memory": growth.memory()}
    assert [trials for trials, _ in curves["sweep"]["in all"]] == [2, 4]
    assert growth.slope(curves["memory"]["CartPole"]) == pytest.approx(1, abs=0.05)
    growth.draw(curves, tmp_path / "growth.png")
    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")
