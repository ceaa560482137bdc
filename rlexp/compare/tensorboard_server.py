"""TensorBoard on a run, in this process, so that it ends with the command."""

from __future__ import annotations

import errno
import importlib.util
import io
import os
import signal
import socket
from collections.abc import Callable
from contextlib import redirect_stderr, suppress
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from rlexp.errors import UsageError
from rlexp.files import open_regular
from rlexp.processes.signals import SignalHandlers
from rlexp.runs.record import hint_to_runs

_EVENT_FILES: Final = "*tfevents*"
_USUAL_PORTS: Final = range(6006, 6106)
"""TensorBoard's default port, and the ports that it tries next."""
_REWARD_TAB: Final = "#custom_scalars"
_LAYOUT_TAG: Final = b"custom_scalars__config__"
_START_BYTES: Final = 2**16
_FILES_LOOKED_AT: Final = 20
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


def run_tensorboard(path: Path, host: str, port: int | None, announce: Callable[[str], None]) -> int:
    """Serve the event files below ``path`` until Ctrl-C or SIGTERM; return the exit code of that signal.

    ``announce`` is called with the address as soon as it answers: the tab with the reward, if the files have one.
    Without a port, the first free one of the usual ports is used. Raises UsageError if there are no event files,
    TensorBoard is not installed or the address cannot be used.
    """
    _check(path)
    port = _free_port(host) if port is None else _checked_port(host, port)
    received: SimpleQueue[int] = SimpleQueue()
    with SignalHandlers(_SIGNALS, lambda number, frame: received.put(number)):
        announce(_serve(path, host, port) + (_REWARD_TAB if _has_layout(path) else ""))
        return 128 + received.get()


def _has_layout(path: Path) -> bool:
    """Return whether a run below ``path`` has a layout for the Custom Scalars tab; our runs begin with one."""
    for file in islice(path.rglob(_EVENT_FILES), _FILES_LOOKED_AT):
        with suppress(OSError), open_regular(file, None) as content:
            if _LAYOUT_TAG in content.read(_START_BYTES):
                return True
    return False


def _serve(path: Path, host: str, port: int) -> str:
    from tensorboard import program

    board = program.TensorBoard()
    try:
        with redirect_stderr(io.StringIO()):  # its messages about a data server are not useful here
            board.configure(logdir=str(path), host=host, port=port)
            return str(board.launch())
    except program.TensorBoardServerException as error:
        raise UsageError(f"TensorBoard cannot start: {error.msg}") from None


def _check(path: Path) -> None:
    if not os.path.exists(path):
        raise UsageError(f"path {path} does not exist", hint_to_runs(path))
    if not path.is_dir():
        raise UsageError(f"{path} is a file", f"name the directory of a run, for example {path.parent}")
    if next(path.rglob(_EVENT_FILES), None) is None:
        raise UsageError(f"{path} has no TensorBoard event files", "a run has them after its first iteration")
    if importlib.util.find_spec("tensorboard") is None:
        raise UsageError("TensorBoard is not installed", "pip install tensorboard")


def _checked_port(host: str, port: int) -> int:
    """Return ``port`` if a server can listen there; if none can, TensorBoard itself would end the process."""
    error = _refusal(host, port)
    if error is None:
        return port
    if error.errno == errno.EADDRINUSE:
        hint = f"--port 0 takes any free one; without --port, the first free one from {_USUAL_PORTS[0]} on"
        raise UsageError(f"port {port} of {host} is in use", hint)
    hint = "--host takes an address of this machine; ports below 1024 may need privileges"
    raise UsageError(f"cannot listen at {host}, port {port}: {error.strerror}", hint)


def _free_port(host: str) -> int:
    """Return the first usual port that is not in use; raises UsageError if all are."""
    for port in _USUAL_PORTS[:-1]:
        error = _refusal(host, port)
        if error is None or error.errno != errno.EADDRINUSE:
            return _checked_port(host, port)
    return _checked_port(host, _USUAL_PORTS[-1])


def _refusal(host: str, port: int) -> OSError | None:
    """Return why no server can listen there; None if one can."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)
    except OSError as error:
        return error
    return None
