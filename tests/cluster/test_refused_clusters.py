"""Clusters that a command cannot use: one line says why, exit 4, and nothing is created."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.cluster import TestCluster
from tests.cluster.nodes import nodes
from tests.cluster.scene import apex, open_rlexp

pytestmark = [pytest.mark.cluster_slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestCluster]:
    with nodes(2, tmp_path_factory.mktemp("nodes"), cpus=2, token="a" * 40) as made:
        yield made


def refused(cluster: TestCluster, folder: Path, *words: str, workers: int = 2, **environ: str) -> str:
    """Return the line of the error of a run that is refused."""
    file = apex(folder, "timesteps_total: 1000", workers=workers)
    run = ["run", str(file), "--out", str(folder / "results"), *words]
    done = open_rlexp(cluster, 1, *run, folder=folder, **environ).wait()
    lines = done.stderr.splitlines()
    errors = [line for line in lines if line.startswith("error:")]
    assert (done.returncode, len(errors)) == (4, 1), done.stderr
    assert any(line.startswith("hint:") for line in lines), done.stderr
    assert "Traceback" not in done.stderr
    assert not (folder / "results").exists() or not list((folder / "results").iterdir())
    return errors[0]


def test_experiment_that_no_node_holds(cluster: TestCluster, tmp_path: Path) -> None:
    error = refused(cluster, tmp_path, "--address", cluster.address, workers=9)
    assert "10" in error, "the CPUs that it needs"


def test_wait_for_room_has_an_end(cluster: TestCluster, tmp_path: Path) -> None:
    assert refused(cluster, tmp_path, "--address", cluster.address, "--wait", "5s", workers=9)


def test_wrong_token(cluster: TestCluster, tmp_path: Path) -> None:
    assert "token" in refused(cluster, tmp_path, "--address", cluster.address, RAY_AUTH_TOKEN="b" * 40)


def test_no_token(cluster: TestCluster, tmp_path: Path) -> None:
    words = ["--address", cluster.address]
    assert "token" in refused(cluster, tmp_path, *words, RAY_AUTH_MODE="disabled", RAY_AUTH_TOKEN="")


def test_no_cluster_there(cluster: TestCluster, tmp_path: Path) -> None:
    address = f"{cluster.ip(1)}:1"
    assert address in refused(cluster, tmp_path, "--address", address)


def test_doctor_lists_every_node(cluster: TestCluster, tmp_path: Path) -> None:
    done = cluster.rlexp(1, "doctor", "--address", cluster.address, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert all(cluster.ip(node) in done.stdout for node in (1, 2)), done.stdout
