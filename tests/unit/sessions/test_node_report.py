"""What a node finds out about itself, in this process."""

from __future__ import annotations

import socket
from pathlib import Path

from rlexp.cluster.probe_process import measured


def test_packages_that_are_not_installed_and_files_that_are_missing(tmp_path: Path) -> None:
    (tmp_path / "there").touch()
    files = [str(tmp_path / "there"), str(tmp_path / "gone")]
    facts = measured([], ["numpy", "no_such_package", "no_such_package.part"], [], None, {}, files)
    assert facts["failed_imports"] == dict.fromkeys(["no_such_package", "no_such_package.part"], "it is not installed")
    assert facts["missing_files"] == [files[1]]


def test_servers_that_cannot_be_reached_have_a_reason() -> None:
    with socket.create_server(("127.0.0.1", 0)) as there, socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # and does not listen
        servers = {"the board": there.getsockname()[:2], "the queue": silent.getsockname()[:2]}
        assert measured([], [], [], None, servers, [])["unreachable"] == {"the queue": "Connection refused"}
