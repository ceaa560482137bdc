"""The process of a command: its help and colours, what it imports, Ctrl-C before it answers, and readers that leave.

What is piped into a program that stops reading, as ``head`` does, ends quietly.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from rlexp import cli
from rlexp.cli import COMMANDS, app, command_of
from tests.cli.forked_commands import loaded_by
from tests.lab.event_writing import scalar, write
from tests.lab.run_folders import MadeTrial, make_run

TIMEOUT_S = 60.0


def helped(*arguments: str, columns: int = 80) -> str:
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": str(columns)})
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_called_without_the_app_has_the_option_too(command: str) -> None:
    command_of.cache_clear()
    assert command_of(command).main(["-h"], standalone_mode=False) in (None, 0)
    assert helped(command, "-h") == helped(command, "--help")


@pytest.mark.parametrize("columns", [40, 80, 160])
def test_help_sentences_are_not_cut(columns: int) -> None:
    listed = helped("-h", columns=columns)
    assert "..." not in listed.replace("[ARGS]...", "")
    sentences = " ".join(listed.split())
    for name in COMMANDS:
        first, _, _ = str(command_of(name).help).partition("\n")
        assert f"{name} {first}" in sentences


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_explained(command: str) -> None:
    options = command_of(command).params
    assert [option.name for option in options if not (getattr(option, "help", "") or "").endswith((".", "..."))] == []


PANELS = ["What to train", "What to search", "Where results go", "Limits", "Machines", "Boards", "Output"]


@pytest.mark.parametrize(("command", "missing"), [("run", {"What to search", "Limits"}), ("sweep", {"Boards"})])
def test_options_are_in_panels(command: str, missing: set[str]) -> None:
    lines = helped(command, "-h").splitlines()
    headings = [line.removesuffix(":") for line in lines if line.endswith(":") and line[0] != " "]
    assert headings == ["Arguments", *(panel for panel in PANELS if panel not in missing)]
    options = [option for each in command_of(command).params for option in each.opts if option.startswith("--")]
    names = [line.strip().partition("  ")[0] for line in lines if line.startswith("  -")]
    shown = [word.strip(",") for name in names for word in name.split() if word.startswith("--")]
    assert sorted(shown) == sorted([*(each for each in options if each != "--board" or command == "run"), "--help"])


def test_few_options_are_together() -> None:
    assert "\nOptions:\n" in helped("prune", "-h")
    assert "\nOutput:\n" not in helped("prune", "-h")


def test_commands_are_in_panels() -> None:
    listed = helped("-h")
    places = [listed.index(f"\n{title}:\n") for title in cli.PANELS]
    assert places == sorted(places)
    assert len(COMMANDS) == sum(map(len, cli.PANELS.values()))


def test_commands_of_boards_are_also_below_board() -> None:
    for name in ("join", "submit", "tasks", "cancel"):
        assert helped("board", name, "-h") == helped(name, "-h").replace(f"root {name}", f"root board {name}")


@pytest.mark.parametrize("arguments", [["--nope"], ["run", "nowhere.yaml"], ["compare", "nowhere"]])
def test_errors_in_a_file_have_no_colours(arguments: list[str]) -> None:
    forced = {"FORCE_COLOR": "1", "GITHUB_ACTIONS": "true", "PY_COLORS": "1", "TERM": "xterm-256color"}
    command = [sys.executable, "-m", "rlexp", *arguments]
    done = subprocess.run(command, capture_output=True, env={**os.environ, **forced}, timeout=TIMEOUT_S)
    assert done.returncode == 2
    assert done.stderr
    assert b"\x1b" not in done.stderr + done.stdout


HEAVY = {"torch", "ray", "gymnasium", "tensorboard", "matplotlib", "jinja2"}
NO_EXPERIMENTS = {"yaml", "numpy", "rlexp.config.keys.common", "rlexp.user_code"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an experiment file, a run and an event file."""
    folder = tmp_path_factory.mktemp("folder")
    (folder / "a.yaml").write_text("a: {run: DQN, env: CartPole-v1, config: {num_workers: 0}}\n")
    make_run(folder / "run", [MadeTrial([1.0, 2.0, 3.0], seed) for seed in (1, 2)])
    write(folder / "events", [scalar("loss", 0, 1.0)])
    return folder


@pytest.mark.parametrize(
    ("words", "unused"),
    [
        (["--help"], {"pydantic", "yaml", "numpy", "rich", "rlexp.commands.training"}),
        (["--version"], {"numpy", "rich"}),
        (["explain", "lr"], {"psutil", "filelock", "rlexp.config.load", "rlexp.cluster.room"}),
        (["examples"], {*NO_EXPERIMENTS, "rich"}),
        (["examples", "taxi-dqn", "--print"], {*NO_EXPERIMENTS, "rich"}),
        (["ls", "."], NO_EXPERIMENTS),
        (["ls", "run"], NO_EXPERIMENTS),
        (["evaluate", "-h"], NO_EXPERIMENTS),
        (["run", "-h"], NO_EXPERIMENTS),
        (["prune", "-h"], NO_EXPERIMENTS),
        (["board", "-h"], {"numpy", "rich", "optuna"}),
        (["check", "--lr", "0.001"], {"numpy", "rich"}),
        (["explain", "discount"], {"numpy", "rich", "psutil"}),
        (["compare", "run"], set()),
        (["logs", "events"], {"tensorflow", "google.protobuf"}),
        (["compare", "-h"], {"rlexp.compare.comparison"}),
        (["check", "a.yaml"], {"numpy", "rich", "filelock", "rlexp.cluster.room.packing", "rlexp.config.convert"}),
        (["check", "a.yaml", "lr=0"], {"numpy", "rich"}),
    ],
)
def test_light_commands_import_only_what_they_need(words: list[str], unused: set[str], folder: Path) -> None:
    assert not loaded_by(*words, cwd=folder) & (unused | HEAVY)


EXPERIMENT = "a: {run: DQN, env: CartPole-v1, stop: {timesteps_total: 100}, config: {num_workers: 0}}\n"


@pytest.mark.parametrize(
    "words",
    [["check", "a.yaml"], ["schema"], ["doctor"], ["ls", "--json", "."], ["compare", "run"], ["--help"]],
    ids=" ".join,
)
def test_command_whose_reader_has_left_ends_silently(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(EXPERIMENT)
    make_run(tmp_path / "run", [MadeTrial([1.0, 2.0])])
    script = 'exec 3>&1; { "$@"; echo $? >&3; } | true'
    program = [sys.executable, "-m", "rlexp", *words]
    done = subprocess.run(
        ["bash", "-c", script, "bash", *program], cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    errors = [line for line in done.stderr.splitlines() if not line.startswith("notice:")]
    assert (done.stdout, errors) == ("141\n", [])


def test_command_without_standard_streams_runs(tmp_path: Path) -> None:
    script = '"$@" <&- >&- 2>&-; echo $?'
    words = [sys.executable, "-m", "rlexp", "explain", "lr"]
    done = subprocess.run(["bash", "-c", script, "bash", *words], capture_output=True, text=True, timeout=TIMEOUT_S)
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_full_disk_behind_stdout_is_an_error(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        words = [sys.executable, "-m", "rlexp", "explain", "lr"]
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 1
    assert done.stderr.startswith("error: cannot write: No space left on device\n")
    assert "Exception" not in done.stderr


STUBBORN = """
import os, pathlib, time
try:
    pathlib.Path("importing.tmp").write_text(str(os.getpid()))
    os.rename("importing.tmp", "importing")
    time.sleep(600)
except BaseException:  # as libraries do around what they could do without
    pass
time.sleep(600)
"""


@pytest.mark.parametrize("command", [["run"], ["sweep", "--sweep", "lr=1e-3,1e-4"]])
def test_ctrl_c_ends_a_command_whatever_an_imported_module_does(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    (tmp_path / "a.yaml").write_text(EXPERIMENT)
    words = [sys.executable, "-m", "rlexp", *command, "a.yaml", "--import", "stubborn", "--out", "out"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    with subprocess.Popen(
        words, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            importing = importer(tmp_path / "importing", process)
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=TIMEOUT_S)
        finally:
            process.kill()
    assert process.returncode == -signal.SIGINT  # for a shell that is 130
    assert "Traceback" not in said
    assert not (tmp_path / "out").exists()
    psutil.wait_procs([importing], timeout=TIMEOUT_S)
    assert not importing.is_running()


def importer(file: Path, command: subprocess.Popen[str]) -> psutil.Process:
    """Return the process that imports the module, as soon as it does."""
    deadline = time.monotonic() + TIMEOUT_S
    while not file.exists():
        assert time.monotonic() < deadline
        assert command.poll() is None
        time.sleep(0.01)
    return psutil.Process(int(file.read_text()))


def test_sigint_stays_ignored_where_a_shell_has_it_ignored() -> None:
    script = (
        "import signal, sys\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "sys.argv = ['rlexp', 'schema']\n"
        "from rlexp.__main__ import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN, file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.stderr == "True\n"
