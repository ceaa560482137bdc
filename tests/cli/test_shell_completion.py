"""Completion as shells ask for it: a process with the words in its environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlexp.cli import COMMANDS, summary_of
from tests.cli.forked_commands import rlexp
from tests.unit.run_results.run_folders import MadeTrial, make_run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_run(tmp_path / "results" / "grid", [MadeTrial([1.0, 2.0], 1, {"lr": 0.1})])
    make_run(tmp_path / "elsewhere" / "other", [MadeTrial([1.0, 2.0], 1, {"lr": 0.1})])
    (tmp_path / "tuned").mkdir()
    (tmp_path / "tuned" / "pong.yaml").write_text("pong: {env: x}\n")
    (tmp_path / "ppo.yaml").write_text("a:\n  run: ppo\n  env: CartPole-v1\n")
    (tmp_path / "sac.yaml").write_text("a:\n  run: SAC\n  env: Pendulum-v1\n")
    (tmp_path / "notes.txt").write_text("")
    return tmp_path


def in_bash(folder: Path, *words: str, **environ: str) -> list[str]:
    """Return what bash is offered for the last of ``words``."""
    asked = {
        "COMP_WORDS": "\n".join(("rlexp", *words)),
        "COMP_CWORD": str(len(words)),
    }
    done = rlexp(cwd=folder, _RLEXP_COMPLETE="complete_bash", **asked, **environ)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["res"], ["resume"]),
        (["run", "p"], ["ppo.yaml"]),
        (["run", "tu"], ["tuned/pong.yaml"]),
        (["check", "no"], []),
        (["run", "ppo.yaml", "-o", "config.clip_p"], ["config.clip_param=", "config.clip_param=0.3"]),
        (["run", "ppo.yaml", "clip_p"], ["clip_param=", "clip_param=0.3"]),
        (["sweep", "ppo.yaml", "clip_p"], ["clip_param=", "clip_param=0.3"]),
        (["run", "ppo.yaml", "-o", "config.double"], []),
        (["run", "sac.yaml", "clip_p"], ["clip_param=", "clip_param=0.3"]),
        (["run", "ppo.yaml", "-o", "batch_mode", "=", "c"], ["complete_episodes"]),
        (["sweep", "ppo.yaml", "batch_mode", "="], ["truncate_episodes", "complete_episodes"]),
        (["resume", "r"], ["results/grid"]),
        (["resume", "results/grid", "num_works"], []),
        (["evaluate", "results/grid/"], ["results/grid/00000/"]),
        (["compare", "results/grid", "res"], ["results/grid"]),
        (["export", "results"], ["results/grid"]),
        (["explain", "logu"], ["loguniform"]),
        (["nonsense", "a"], []),
    ],
)
def test_bash_is_offered(folder: Path, words: list[str], offered: list[str]) -> None:
    found = in_bash(folder, *words)
    if words[-1] == "results/grid/":
        assert [Path(each).parent for each in found] == [Path("results/grid")]
    else:
        assert found == offered


def test_runs_are_looked_for_where_they_are_kept(folder: Path) -> None:
    assert in_bash(folder, "resume", "", RLEXP_OUT="elsewhere") == ["elsewhere/other"]


def test_zsh_and_fish_get_meanings(folder: Path) -> None:
    words = {"_TYPER_COMPLETE_ARGS": "rlexp run ppo.yaml -o config.use_"}
    fish = rlexp(cwd=folder, _RLEXP_COMPLETE="complete_fish", _TYPER_COMPLETE_FISH_ACTION="get-args", **words)
    offered = [line.split("\t") for line in fish.stdout.splitlines()]
    assert [name for name, _ in offered] == ["config.use_gae=", "config.use_critic="]
    assert all(meaning for _, meaning in offered)
    zsh = rlexp(cwd=folder, _RLEXP_COMPLETE="complete_zsh", **words)
    assert '"config.use_gae=":"' in zsh.stdout


def test_names_of_commands_are_completed_with_their_lines_and_import_none(folder: Path) -> None:
    words = {"_TYPER_COMPLETE_ARGS": "rlexp s", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    fish = rlexp(cwd=folder, _RLEXP_COMPLETE="complete_fish", **words)
    starting = [name for name in COMMANDS if name.startswith("s")]
    assert [line.partition("\t")[0] for line in fish.stdout.splitlines() if "\t" in line] == starting
    assert f"schema\t{summary_of('schema')}" in fish.stdout
    program = (
        "import sys\nfrom rlexp.cli import app\n"
        "try:\n    app(prog_name='rlexp')\n"
        "finally:\n    print([name for name in sys.modules if name.startswith('rlexp.commands.')])\n"
    )
    asked = {"COMP_WORDS": "rlexp res", "COMP_CWORD": "1", "_RLEXP_COMPLETE": "complete_bash"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env={**os.environ, **asked}, check=False
    )
    assert done.stdout.split("\n")[0] == "resume"
    assert done.stdout.splitlines()[-1] == "['rlexp.commands.basic_options']", done.stderr


def test_completion_loads_neither_torch_nor_ray(folder: Path) -> None:
    program = (
        "import json, sys\nfrom rlexp.cli import app\n"
        "try:\n    app(prog_name='rlexp')\n"
        "finally:\n    print(json.dumps([name for name in ('torch', 'ray', 'gymnasium') if name in sys.modules]))\n"
    )
    asked = {"COMP_WORDS": "rlexp resume r", "COMP_CWORD": "2", "_RLEXP_COMPLETE": "complete_bash"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, **asked},
        check=False,
    )
    assert json.loads(done.stdout.splitlines()[-1]) == [], done.stderr
    assert "results/grid" in done.stdout
