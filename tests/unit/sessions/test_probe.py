"""What a command says where the process that looks at a cluster cannot connect, dies, or is refused."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlexp.errors import ResourceError
from rlexp.sessions import probe

CONNECTING = 'send("loaded")\n    '
DIES = 'raise SystemExit("libray.so is missing")'
IS_REFUSED = 'print("Unauthenticated: InvalidAuthToken", flush=True); time.sleep(600)'
HAS_OTHER_VERSION = (
    'send("failed", error="Version mismatch: The cluster was started with:\\n    Ray: 2.1.0\\n    Python: 3.9.1\\n'
    'This process was started with:\\n    Ray: 2.60.0\\n    Python: 3.11.7")'
)
IS_NO_NODE = 'send("failed", error="Failed to connect\\nNo node info found when trying to resolve node to connect to.")'


@pytest.fixture
def address() -> Iterator[str]:
    """Of a server that accepts connections."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        (DIES, "cannot join the cluster at {0}: the process that asks it ended with exit code 1: libray.so is missing"),
        (CONNECTING + DIES, "the process that asks it ended with exit code 1: libray.so is missing"),
        (CONNECTING + IS_REFUSED, "the cluster at {0} does not accept the token that was found here"),
        (CONNECTING + HAS_OTHER_VERSION, "the cluster at {0} has Ray 2.1.0 with Python 3.9.1, this machine has Ray "),
        (CONNECTING + IS_NO_NODE, "this machine is no node of the cluster at {0}"),
    ],
    ids=["dies at once", "dies while connecting", "is refused", "another version", "is no node"],
)
def test_error_names_the_cause(
    behaviour: str, message: str, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "process_in_its_place.py").write_text(
        "import time\nfrom rlexp.sessions.child_process import answer\n"
        f"def serve(request, send):\n    {behaviour}\nanswer(serve)\n"
    )
    monkeypatch.setattr(probe, "_MODULE", "process_in_its_place")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "wrong")
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    with pytest.raises(ResourceError) as caught:
        probe.probe_cluster(address)
    assert message.format(address) in caught.value.message
