"""The process that trains for a program: ``python -m rlexp.api.training_process FD``.

Reads a request (a line of JSON) from stdin, trains as the commands do, and writes one line of JSON to the descriptor
FD: ``end`` with the exit code and the directory, or ``error``. When stdin ends, the program has ended: then trials save
and stop, as by SIGTERM.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from dataclasses import replace

from rlexp.api.client import described
from rlexp.cluster.session import choose
from rlexp.commands.training import answer
from rlexp.errors import RlexpError
from rlexp.tuning.request import TrainingRequest


def main() -> None:
    """Answer the one request; the exit code is that of the command."""
    sender = os.fdopen(int(sys.argv[1]), "w", encoding="utf-8")
    request = TrainingRequest.from_json(json.loads(sys.stdin.buffer.readline()))
    threading.Thread(target=_end_with_program, daemon=True).start()
    try:
        trained = answer(replace(request, joining=choose(request.address, os.environ)))
        directory = None if trained.directory is None else str(trained.directory)
        report, code = {"kind": "end", "code": trained.exit_code, "directory": directory}, trained.exit_code
    except RlexpError as error:
        report, code = {"kind": "error", **described(error)}, error.exit_code
    print(json.dumps(report), file=sender, flush=True)
    sys.exit(code)


def _end_with_program() -> None:
    """Ask this process to save and end once the other end of stdin is closed."""
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
