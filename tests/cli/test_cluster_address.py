"""Commands look at the cluster that the environment or an option names before they create anything."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from rlexp.processes.family import SESSION
from tests.cli import forked_commands

ADDRESS = "127.0.0.1:9"  # nothing listens at the discard port
EXPERIMENT = "a: {run: DQN, env: CartPole-v1, stop: {timesteps_total: 100}, config: {num_workers: 0}}\n"


def rlexp(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    (folder / "a.yaml").write_text(EXPERIMENT)
    return forked_commands.rlexp(*words, cwd=folder, **{SESSION: None, **variables})


@pytest.mark.parametrize(
    "words",
    [["run", "a.yaml"], ["sweep", "a.yaml", "--sweep", "lr=1,2"], ["train", "-f", "a.yaml"], ["check", "a.yaml"]],
    ids=lambda words: words[0],
)
def test_command_looks_for_the_cluster_of_the_environment(words: list[str], tmp_path: Path) -> None:
    done = rlexp(tmp_path, *words, RAY_ADDRESS=ADDRESS)
    assert done.returncode == 4
    error, hint = done.stderr.splitlines()[-2:]
    assert error == f"error: no Ray cluster at {ADDRESS}: Connection refused"
    assert hint == "hint:  check --address; --address local trains in a Ray of its own on this machine"
    assert [path.name for path in tmp_path.iterdir()] == ["a.yaml"]


@pytest.mark.parametrize("words", [["run", "a.yaml"], ["doctor"], ["resume", "results/a"]], ids=lambda words: words[0])
def test_address_of_a_client_is_refused(words: list[str], tmp_path: Path) -> None:
    done = rlexp(tmp_path, *words, "--ray-address", "ray://head:10001")
    assert done.returncode == 2
    command = "ray job submit --address http://head:8265 -- rlexp run FILE --address auto"
    assert f"hint:  with rlexp[cluster] installed here and on the head: {command}\n" in done.stderr


def test_local_is_this_machine(tmp_path: Path) -> None:
    done = rlexp(tmp_path, "check", "a.yaml", "--address", "local", RAY_ADDRESS=ADDRESS)
    assert done.returncode == 0, done.stderr
