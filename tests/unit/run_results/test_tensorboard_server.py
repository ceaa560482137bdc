"""Errors before TensorBoard starts; tests/cli has its start and end."""

from __future__ import annotations

import importlib.util
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlexp.compare import tensorboard_server
from rlexp.compare.tensorboard_server import _checked_port, _free_port, run_tensorboard
from rlexp.errors import UsageError


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run" / "trial").mkdir(parents=True)
    (tmp_path / "run" / "trial" / "events.out.tfevents.1.host.2.0").touch()
    return tmp_path / "run"


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(1)
        yield server.getsockname()[1]


def refused(path: Path, host: str = "127.0.0.1", port: int | None = 0) -> UsageError:
    with pytest.raises(UsageError) as caught:
        run_tensorboard(path, host, port, announce=lambda address: pytest.fail(f"it serves at {address}"))
    assert caught.value.hint
    return caught.value


def test_paths_without_event_files(run: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert refused(tmp_path / "nowhere").message.endswith("nowhere does not exist")
    assert "has no TensorBoard event files" in refused(tmp_path / "empty").message
    assert "is a file" in refused(next(run.rglob("events*"))).message


def test_port_in_use(run: Path, taken: int) -> None:
    error = refused(run, port=taken)
    assert error.message == f"port {taken} of 127.0.0.1 is in use"
    assert "--port 0" in str(error.hint)


def test_address_of_another_machine(run: Path) -> None:
    assert refused(run, host="192.0.2.1").message.startswith("cannot listen at 192.0.2.1, port 0: ")


def test_default_port_is_next_free_one(taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        free = other.getsockname()[1]
    monkeypatch.setattr(tensorboard_server, "_USUAL_PORTS", (taken, free))
    assert _free_port("127.0.0.1") == free
    assert _checked_port("127.0.0.1", free) == free


def test_all_usual_ports_in_use(taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorboard_server, "_USUAL_PORTS", range(taken, taken + 1))
    with pytest.raises(UsageError, match=f"port {taken} of 127.0.0.1 is in use"):
        _free_port("127.0.0.1")


def test_missing_tensorboard(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert refused(run).message == "TensorBoard is not installed"
