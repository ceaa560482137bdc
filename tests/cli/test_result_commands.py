"""``rlexp compare``, ``ls`` and ``tensorboard`` as their user meets them: processes, output and exit codes.

What ``rlexp export`` refuses before it loads anything.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import urllib.request
from importlib.machinery import ModuleSpec
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from rlexp.cli import app
from rlexp.commands import results
from rlexp.errors import CheckpointError, ResumeError, UsageError
from rlexp.runs.tensorboard import TensorBoardRecorder
from tests.cli import forked_commands
from tests.cli.forked_commands import rlexp_in_new_process
from tests.lab.run_folders import MadeTrial, make_run, row


def refused(*words: object) -> UsageError:
    done = CliRunner().invoke(app, ["export", *map(str, words)])
    assert isinstance(done.exception, UsageError), done.output
    return done.exception


@pytest.fixture
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "_NEEDED", ())


def test_missing_extra_is_named_before_anything_else(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = importlib.util.find_spec

    def without(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name in {"onnxscript", "onnxruntime"} else found(name, package)

    monkeypatch.setattr(results, "_NEEDED", ("json", "onnxscript", "onnxruntime"))
    monkeypatch.setattr(importlib.util, "find_spec", without)
    error = refused("nowhere", "--onnx", tmp_path / "policy.onnx")
    assert error.message == "export needs onnxscript and onnxruntime, which are not installed"
    assert error.hint == "pip install 'rlexp[onnx]'"


@pytest.mark.usefixtures("_installed")
def test_target_is_checked_before_the_checkpoint(tmp_path: Path) -> None:
    there = tmp_path / "policy.onnx"
    there.write_text("mine")
    assert refused("nowhere", "--onnx", there).hint == "--overwrite replaces it"
    assert "is a directory" in refused("nowhere", "--onnx", tmp_path).message
    assert "there is no directory" in refused("nowhere", "--onnx", tmp_path / "no" / "policy.onnx").message
    assert there.read_text() == "mine"


@pytest.mark.usefixtures("_installed")
def test_no_checkpoint_no_file(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["export", str(tmp_path / "nowhere"), "--onnx", str(tmp_path / "policy.onnx")])
    assert isinstance(done.exception, CheckpointError | ResumeError)
    assert list(tmp_path.iterdir()) == []


def rlexp(*arguments: object, cwd: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
    return forked_commands.rlexp(*arguments, cwd=cwd, **{"COLUMNS": "80", "LINES": "24", **environ})


@pytest.fixture
def run(tmp_path: Path) -> Path:
    trials = [MadeTrial([10.0 * n + seed for n in range(20)], seed, {"lr": lr}) for seed in (1, 2) for lr in (0.1, 0.2)]
    return make_run(tmp_path / "results" / "grid", trials)


def test_compare(run: Path) -> None:
    done = rlexp("compare", run, "--goal", "100")
    assert (done.returncode, done.stderr) == (0, "")
    assert "A  lr=0.1" in done.stdout
    assert "reached 100" in done.stdout
    assert len(done.stdout.splitlines()) < 24
    again = rlexp_in_new_process("compare", run, "--goal", "100", COLUMNS="80", LINES="24", PYTHONHASHSEED="1")
    assert again.stdout == done.stdout, "it depends on no seed"


def test_compare_writes_a_report_beside_json(run: Path, tmp_path: Path) -> None:
    done = rlexp("compare", f"one={run}", run, "--by", "time", "--json", "--html", tmp_path / "report.html")
    assert done.returncode == 0
    printed = json.loads(done.stdout)
    assert (printed["by"], [group["name"] for group in printed["groups"]]) == (
        "time",
        ["one", "grid lr=0.1", "grid lr=0.2"],
    )
    assert f"wrote {tmp_path / 'report.html'}" in done.stderr
    assert (tmp_path / "report.html").read_text().endswith("</html>\n")


def test_a_picture_does_not_depend_on_settings_in_the_current_folder(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    pictures = []
    for settings in ("", "savefig.facecolor: black\nlines.linewidth: 9\n"):
        (tmp_path / "matplotlibrc").write_text(settings)
        done = rlexp("compare", run, "--png", tmp_path / "curves.png", cwd=tmp_path)
        assert (done.returncode, "wrote" in done.stderr) == (0, True)
        pictures.append((tmp_path / "curves.png").read_bytes())
    assert pictures[0] == pictures[1]


@pytest.mark.parametrize(
    "arguments",
    [
        ["compare"],
        ["compare", "nowhere"],
        ["compare", "results/grid", "--by", "day"],
        ["compare", "results/grid", "--html", "missing/report.html"],
        ["ls", "nowhere"],
        ["tensorboard", "results/grid"],
        ["tensorboard", "results/grid", "--port", "99999"],
    ],
)
def test_wrong_input_is_reported_with_exit_code_2(run: Path, tmp_path: Path, arguments: list[str]) -> None:
    done = rlexp(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "rror: " in done.stderr
    assert "hint: " in done.stderr or "for help" in done.stderr
    assert "Traceback" not in done.stderr


def test_ls(run: Path, tmp_path: Path) -> None:
    done = rlexp("ls", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    header, line = done.stdout.splitlines()
    assert header.split()[:2] == ["run", "status"]
    assert line.split()[:4] == ["grid", "(4", "trials)", "TERMINATED"]
    assert rlexp("ls", RLEXP_OUT=str(run.parent)).stdout == done.stdout
    assert len(rlexp("ls", run).stdout.splitlines()) == 5
    assert json.loads(rlexp("ls", run.parent, "--json").stdout)["runs"][0]["trials"] == 4


def test_ls_of_hundreds_of_runs_reads_no_results(tmp_path: Path) -> None:
    for number in range(200):
        trial = make_run(tmp_path / f"run-{number:03d}", [MadeTrial([1.0])]) / "00000-DQN-CartPole-v1"
        (trial / "result.json").write_text("x" * 100)
        os.truncate(trial / "result.json", 2**30)  # all of them could not be read in time
    done = rlexp("ls", tmp_path)
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 201


def test_letters_outside_the_encoding_are_replaced(run: Path) -> None:
    done = rlexp_in_new_process("compare", run, COLUMNS="80", PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert "A  lr=0.1" in done.stdout


@pytest.mark.parametrize(("ending", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_tensorboard_serves_this_machine_and_ends_with_all_it_started(run: Path, ending: int, code: int) -> None:
    recorder = TensorBoardRecorder(run / "00000-DQN-CartPole-v1", {})
    recorder.record(row(1, 5.0))
    recorder.close()
    command = [sys.executable, "-m", "rlexp", "tensorboard", str(run), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address, _, tab = process.stdout.readline().strip().partition("#")
            assert address.startswith("http://127.0.0.1:")
            assert tab == "custom_scalars"
            with urllib.request.urlopen(f"{address}data/environment", timeout=20) as answer:
                assert json.load(answer)["data_location"] == str(run)
            with urllib.request.urlopen(f"{address}data/plugin/custom_scalars/layout", timeout=20) as answer:
                layout = json.load(answer)
            first = layout["category"][0]["chart"][0]
            assert first["multiline"]["tag"] == [r"^ray/tune/episode_reward_mean$"]
            with urllib.request.urlopen(f"{address}data/runs", timeout=20) as answer:
                assert json.load(answer) == ["00000-DQN-CartPole-v1"]
            family = psutil.Process(process.pid).children(recursive=True)
            process.send_signal(ending)
            _, errors = process.communicate(timeout=20)
            assert (process.returncode, errors) == (code, "")
            _, alive = psutil.wait_procs(family, timeout=5)
            assert not alive
        finally:
            process.kill()
