"""Preflight: envs are tried in a separate process, the command gets an error in time, and nothing else changes.

What a run does before it exists: ``cluster_for``, without the process that tries the envs.

While a cluster is looked at or waited for, a signal ends the command only after what it began there.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from gymnasium.spaces import Box, Dict

from rlexp.cluster.room.machine import Machine
from rlexp.config.load import Plan, load_plan
from rlexp.config.yaml.reader import to_yaml
from rlexp.errors import ConfigError, ResourceError
from rlexp.processes.child import Message
from rlexp.processes.family import has_ended
from rlexp.terminal.checking import EnvReport
from rlexp.terminal.displays import PlainDisplay
from rlexp.tuning import preflight, run
from rlexp.tuning.preflight import try_envs
from rlexp.tuning.request import TrainingRequest
from rlexp.tuning.run import first_processes
from tests.lab.envs import COUNTING_ENV, IMAGE_ENV, PIXEL_ENV, CountingEnv

OPTIONS = TrainingRequest("run")
ROOMY = Machine(cpus=8, gpus=0, memory_total=2**36, memory_available=2**36)


def plan_of(folder: Path, *entries: dict[str, Any], **config: Any) -> Plan:
    """Return the plan of ``wild.yaml`` with an experiment for each entry, DQN if it does not say, and ``config``."""
    experiments = {
        f"e{number}": {"run": "DQN", **entry, "config": {**config, **entry.get("config", {})}}
        for number, entry in enumerate(entries)
    }
    file = folder / "wild.yaml"
    file.write_text(to_yaml(experiments), encoding="utf-8")
    return load_plan([file])


def tried(
    folder: Path,
    *entries: dict[str, Any],
    machine: Machine = ROOMY,
    copies_trials: bool = False,
    plays_episodes: bool = False,
    **config: Any,
) -> list[EnvReport]:
    """Try the envs of such a plan."""
    plan = plan_of(folder, *entries, **config)
    return try_envs(plan.trials, plan.modules, machine, plan.env_places, copies_trials, plays_episodes)


@pytest.mark.parametrize(
    ("agent", "phase"), [("PPO", "trying each env"), ("DQN", "trying each env, and measuring the memory of its replay")]
)
def test_cluster_for_says_what_it_measures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, agent: str, phase: str
) -> None:
    plan = plan_of(tmp_path, {"run": agent, "env": "CartPole-v1"}, num_workers=0)
    monkeypatch.setattr(run, "try_envs", lambda *arguments: [])
    shown = StringIO()
    run.cluster_for(plan, plan.trials, PlainDisplay(shown, shown), OPTIONS)
    assert shown.getvalue().rstrip().endswith(f" {phase}")


SCRIPT = """
import os, signal, time
signal.signal(signal.SIGINT, signal.SIG_DFL)  # as in rlexp run, until trials can save
from rlexp.tuning.run import signals_leave_nothing
with signals_leave_nothing():
    try:
        os.kill(os.getpid(), {number})
        time.sleep(600)
    finally:
        print("removed", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_the_command_after_the_end_of_the_body(number: signal.Signals) -> None:
    words = [sys.executable, "-c", SCRIPT.format(number=int(number))]
    done = subprocess.run(words, capture_output=True, text=True, timeout=150, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-number, "removed\n", "")


@pytest.mark.parametrize(
    ("num_workers", "num_cpus", "expected"), [(0, 4, 1), (2, 2, 3), (2, 16, 3), (3, 1, 2), (400, 8, 16)]
)
def test_ray_starts_few_processes_ahead(tmp_path: Path, num_workers: int, num_cpus: int, expected: int) -> None:
    plan = plan_of(tmp_path, {"run": "APEX", "env": "CartPole-v1"}, num_workers=num_workers)
    assert first_processes(plan.everything, num_cpus) == expected


def test_ray_starts_a_process_for_each_cpu_where_as_many_trials_need_one(tmp_path: Path) -> None:
    lr = {"grid_search": [1e-3, 1e-4, 1e-5, 1e-6]}
    trials = plan_of(tmp_path, {"env": "CartPole-v1"}, num_workers=0, lr=lr).everything
    assert [first_processes(trials, num_cpus) for num_cpus in (1, 3, 16)] == [1, 3, 4]


TIMEOUT_S = 20.0
GRID = {"grid_search": [1e-3, 1e-4]}
WILD_ENV = "tests.unit.tuning.test_preflight:WildEnv"


class WildEnv(CountingEnv):
    """Does to its process what an env should not."""

    def __init__(self, habit: str, file: str = "") -> None:
        super().__init__()
        self.habit, self.file = habit, Path(file)
        if habit == "starts processes":
            own = subprocess.Popen(["sleep", "1000"])
            apart = subprocess.Popen(["sleep", "1000"], start_new_session=True)
            self.file.write_text(f"{os.getpid()} {own.pid} {apart.pid}", encoding="utf-8")
        elif habit == "changes its process":
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
            os.chdir("/")
            os.environ["RLEXP_OUT"] = "/"
            sys.path.insert(0, "/")
        elif habit == "prints":
            for _ in range(2000):
                os.write(1, b"a line of text that nobody wants to read\n" * 50)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if self.habit == "hangs":
            if self.file.name:
                self.file.write_text(str(os.getpid()), encoding="utf-8")
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
            time.sleep(1000)
        if self.habit == "exits":
            os.write(2, b"could not open the display\n")
            os._exit(7)
        if self.habit == "crashes":
            os.kill(os.getpid(), signal.SIGSEGV)
        return super().reset(seed=seed, options=options)


class EndlessEnv(CountingEnv):
    def step(self, action: int) -> Any:
        obs, reward, *_ = super().step(action)
        return obs * 0, reward, False, False, {}


class LargeImageEnv(CountingEnv):
    def __init__(self) -> None:
        super().__init__()
        self.observation_space = Box(0, 255, (240, 320, 3), np.uint8)

    def _observation(self) -> Any:
        return np.zeros((240, 320, 3), np.uint8)


class ImageWithSpeedEnv(LargeImageEnv):
    def __init__(self) -> None:
        super().__init__()
        self.observation_space = Dict(picture=self.observation_space, speed=Box(0, 1, (1,), np.float32))

    def _observation(self) -> Any:
        return {"picture": super()._observation(), "speed": np.zeros(1, np.float32)}


@pytest.mark.parametrize(
    ("config", "copies_trials", "is_noticed"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"checkpoint_replay": True}, True, False),
        ({"buffer_size": 1000}, True, False),
    ],
)
def test_replay_too_large_for_checkpoints_has_a_notice_where_trials_copy_them(
    config: dict[str, Any], copies_trials: bool, is_noticed: bool, tmp_path: Path
) -> None:
    keys = {"buffer_size": 200_000, "compress_observations": False, "env_config": {"size": 32}, **config}
    (report,) = tried(tmp_path, {"env": PIXEL_ENV, "config": keys}, copies_trials=copies_trials)
    found = [notice for notice in report.notices if "starts with an empty replay" in notice]
    assert len(found) == is_noticed
    assert all("set config.checkpoint_replay: true, or a smaller config.buffer_size" in notice for notice in found)


def wild(habit: str, **arguments: Any) -> dict[str, Any]:
    return {"env": WILD_ENV, "config": {"env_config": {"habit": habit, **arguments}}}


@pytest.mark.parametrize(
    ("habit", "timeout_s", "message", "hint"),
    [
        ("exits", 60, "its process ended with exit code 7 in reset", "it printed last: could not open the display"),
        ("crashes", 60, "its process was killed by SIGSEGV in reset", "an env must not end its process"),
        ("hangs", 5, "reset of episode 1 has not ended within 5 s", "sample_timeout_s"),
    ],
)
def test_env_that_ends_or_blocks_its_process_is_an_error_with_its_place(
    habit: str, timeout_s: int, message: str, hint: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        tried(tmp_path, wild(habit), sample_timeout_s=timeout_s)
    (problem,) = caught.value.problems
    assert problem.where == f"{tmp_path / 'wild.yaml'}:3:8"
    assert problem.message.startswith(f"env {WILD_ENV}: ")
    assert message in problem.message
    assert hint in str(problem.hint)


def test_check_plays_episodes_and_reports_all_that_is_wrong(tmp_path: Path) -> None:
    late = {"env": "tests.unit.envs.test_env_check:LateFaultsEnv"}
    (report,) = tried(tmp_path, late, plays_episodes=True, lr=GRID, n_step={"grid_search": [1, 3]})
    assert [problem.where for problem in report.errors] == [f"{tmp_path / 'wild.yaml'}:3:8"] * 3
    assert [problem.message.rpartition("(")[2] for problem in report.errors][-1] == "step 20 of episode 1)"
    assert len(report.warnings) == 1


def test_check_names_the_key_that_cuts_episodes_where_none_ends(tmp_path: Path) -> None:
    entry = {"env": "tests.unit.tuning.test_preflight:EndlessEnv"}
    for horizon, is_said in ((None, True), (10**6, False)):
        (report,) = tried(tmp_path, entry, plays_episodes=True, horizon=horizon)
        assert [("config.horizon cuts episodes" in each) for each in report.warnings] == [True] * is_said


def test_what_an_env_changes_stays_in_its_process(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = (os.getcwd(), dict(os.environ), list(sys.path), signal.getsignal(signal.SIGTERM))
    reports = tried(tmp_path, wild("changes its process"), wild("prints"))
    assert len(reports) == 2
    assert (os.getcwd(), dict(os.environ), list(sys.path), signal.getsignal(signal.SIGTERM)) == before
    assert capfd.readouterr() == ("", "")


def test_processes_started_by_an_env_are_ended(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    tried(tmp_path, wild("starts processes", file=str(file)))
    deadline = time.monotonic() + TIMEOUT_S
    for pid in map(int, file.read_text().split()):
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            while not has_ended(process):  # it was killed, which may take a moment
                assert time.monotonic() < deadline


def test_preflight_process_ends_with_its_command(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    plan_of(tmp_path, wild("hangs", file=str(pids)))
    program = (
        "from rlexp.config.load import load_plan\n"
        "from tests.unit.tuning.test_preflight import ROOMY, try_envs\n"
        f"plan = load_plan([{str(tmp_path / 'wild.yaml')!r}])\n"
        "try_envs(plan.trials, plan.modules, ROOMY, {})\n"
    )
    command = subprocess.Popen([sys.executable, "-c", program])
    deadline = time.monotonic() + 30
    while not (pids.exists() and pids.read_text()):
        assert time.monotonic() < deadline
        assert command.poll() is None
        time.sleep(0.01)
    process = psutil.Process(int(pids.read_text()))
    command.kill()
    command.wait(5)
    psutil.wait_procs([process], timeout=5)
    assert not process.is_running()


def test_equal_envs_are_tried_once(tmp_path: Path) -> None:
    grid = {"env": COUNTING_ENV, "config": {"lr": GRID, "n_step": {"grid_search": [1, 3]}}}
    reports = tried(tmp_path, grid, {"env": "CartPole-v1"})
    assert [(report.env, report.observation_shape) for report in reports] == [
        (COUNTING_ENV, (3,)),
        ("CartPole-v1", (4,)),
    ]
    assert reports[1].action_space == "Discrete(2)"


@pytest.mark.parametrize(
    ("env", "model", "notices"),
    [
        (PIXEL_ENV, {}, []),
        (PIXEL_ENV, {"dim": 24}, ["images of 10x10 pixels are scaled to 24x24 (config.model.dim)"]),
        (IMAGE_ENV, {"dim": 84}, []),
        (
            "tests.unit.tuning.test_preflight:LargeImageEnv",
            {},
            ["images of 240x320 pixels make a large network: set config.model.dim or conv_filters"],
        ),
        (
            "tests.unit.tuning.test_preflight:ImageWithSpeedEnv",
            {},
            ["the image 'picture' becomes part of a vector: only an observation that is one image has convolutions"],
        ),
    ],
)
def test_image_envs_have_notices_about_scaling_and_size(
    env: str, model: dict[str, Any], notices: list[str], tmp_path: Path
) -> None:
    (report,) = tried(tmp_path, {"env": env, "config": {"model": model}}, buffer_size=1000)
    assert list(report.notices) == notices


def test_a_filter_that_does_not_suit_images_is_found_for_each_experiment_of_an_env(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"MeanStdFilter does not suit images") as caught:
        tried(tmp_path, {"run": "PPO", "env": PIXEL_ENV}, {"run": "ES", "env": PIXEL_ENV})
    assert "NoFilter" in str(caught.value.problems[0].hint)


def test_replay_that_does_not_fit_is_a_resource_error(tmp_path: Path) -> None:
    small = Machine(cpus=8, gpus=0, memory_total=2**20, memory_available=2**20)
    with pytest.raises(ResourceError, match=r"e0 would need .* for replay, .* bytes a transition") as caught:
        tried(tmp_path, {"env": COUNTING_ENV}, machine=small)
    assert caught.value.exit_code == 4


def test_replay_is_named_and_measured_only_where_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stages: dict[str, list[str]] = {}
    messages = preflight.PreflightProcess.messages

    def watched(process: preflight.PreflightProcess, timeout_s: float) -> Iterator[Message]:
        for message in messages(process, timeout_s):
            if message["kind"] == "stage":
                stages.setdefault(message["experiment"], []).append(message["stage"])
            yield message

    monkeypatch.setattr(preflight.PreflightProcess, "messages", watched)
    tried(tmp_path, {"env": COUNTING_ENV}, {"run": "PPO", "env": "CartPole-v1"})
    assert [name for name, of_it in stages.items() if any("replay" in stage for stage in of_it)] == ["e0"]


@pytest.mark.parametrize(("how", "message"), [("raises", "shapes do not fit"), ("nan", "returns NaN")])
def test_torso_of_the_users_own_is_tried_in_every_variant(tmp_path: Path, how: str, message: str) -> None:
    good, bad = ({"tests.lab.user_torsos:Bad": {"how": each}} for each in ("good", how))
    model = {"custom_model": {"grid_search": [good, bad]}}
    plan = plan_of(tmp_path, {"run": "PPO", "env": COUNTING_ENV}, model=model)
    assert len(plan.trials) == 2
    with pytest.raises(ConfigError, match=message):
        try_envs(plan.trials, plan.modules, ROOMY, plan.env_places)
    assert try_envs(plan.trials[:1], plan.modules, ROOMY, plan.env_places)


def test_callbacks_that_cannot_be_made_are_found(tmp_path: Path) -> None:
    named = {"tests.lab.user_callbacks:SuccessRate": {"bonsu": 1}}
    with pytest.raises(ConfigError, match=r"SuccessRate: TypeError: .*unexpected keyword argument 'bonsu'"):
        tried(tmp_path, {"env": COUNTING_ENV}, callbacks=named)
