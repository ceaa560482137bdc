"""Checkpoints in S3, at a local server: copied, fetched, and refused where the server is wrong."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from rlexp.errors import ResourceError
from rlexp.runs.checkpoint_contents import verify_checkpoint
from rlexp.runs.checkpoints import checkpoint_directory, remove_checkpoint, write_checkpoint
from rlexp.runs.record import RunRecord, TrialRecord
from rlexp.runs.storage import CheckpointCopies, check_storage, fetch_missing, folder_of
from rlexp.text import masked
from tests.lab.brokers import free_port

SERVER = Path(__file__).parents[2] / ".venv-s3" / "bin" / "moto_server"
START_TIMEOUT_S = 120.0
STEP_S = 0.2
TRIAL = "00000-DQN"

pytestmark = [
    pytest.mark.cluster_slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not SERVER.exists(), reason=f"{SERVER} is not installed; make cluster installs it"),
]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server with a bucket ``checkpoints``."""
    found = f"127.0.0.1:{free_port()}"
    host, port = found.split(":")
    with (tmp_path_factory.mktemp("s3") / "log").open("wb") as log:
        process = subprocess.Popen([str(SERVER), "-H", host, "-p", port], stdout=log, stderr=log)
        try:
            make_bucket(found, process)
            yield found
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()


def make_bucket(address: str, process: subprocess.Popen[bytes]) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            request = urllib.request.Request(f"http://{address}/checkpoints", method="PUT")
            with urllib.request.urlopen(request, timeout=START_TIMEOUT_S):
                return
        except OSError:
            assert process.poll() is None, "the server has ended"
            assert time.monotonic() < deadline_s, "the server does not start"
            time.sleep(STEP_S)


def url_of(address: str, bucket: str = "checkpoints") -> str:
    return f"s3://name:word@{bucket}/runs?scheme=http&endpoint_override={address}"


def test_checkpoints_are_copied_and_fetched(address: str, tmp_path: Path) -> None:
    url, run = url_of(address), tmp_path / "run"
    check_storage(url)
    (run / TRIAL).mkdir(parents=True)
    arrays = {"weights": {"w": np.arange(3_000_000.0)}}  # 24 MB: several parts
    written = write_checkpoint(checkpoint_directory(run / TRIAL, 1), arrays, {"steps": 1}, {})
    before = {path.name: path.read_bytes() for path in written.iterdir()}
    trial = TrialRecord(TRIAL, TRIAL, 0, {}, iterations=1, storage=masked(url))
    record = RunRecord("run", [], {}, None, "host", 2, "2026-01-02T03:04:05+00:00", trials=[trial])
    copies = CheckpointCopies(folder_of(record))
    copies.follow(run / TRIAL, url)
    assert copies.finish(START_TIMEOUT_S) == []
    copies.close()
    remove_checkpoint(written)
    assert len(fetch_missing(run, record, {TRIAL: url})) == 1
    assert {path.name: path.read_bytes() for path in written.iterdir()} == before
    assert verify_checkpoint(written).sequence == 1


@pytest.mark.parametrize("where", ["another bucket", "no server", "silent server"])
def test_storage_that_cannot_be_used_is_refused_in_a_line_without_secrets(where: str, address: str) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        if where == "silent server":
            silent.listen()
        other = f"127.0.0.1:{silent.getsockname()[1]}"
        url = url_of(address, "nowhere") if where == "another bucket" else url_of(other)
        with pytest.raises(ResourceError) as caught:
            check_storage(url)
    assert "word" not in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.exit_code == 4
