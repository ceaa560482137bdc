"""The process that trains for a program: ``python -m rlexp.api.training_process FD``.

Reads a request (a line of JSON) from stdin, trains as the commands do, and writes lines of JSON to the descriptor FD:
pictures of the live display if a notebook shows them, then one answer, ``end`` with the exit code and the directory, or
``error``. When stdin ends, the program has ended: then trials save and stop, as by SIGTERM.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from dataclasses import replace

from rlexp.api.client import described
from rlexp.cluster.session import choose
from rlexp.commands.answers import answer
from rlexp.errors import RlexpError
from rlexp.processes import child
from rlexp.tuning.request import TrainingRequest


def _serve(content: child.Message, send: child.Send) -> None:
    """Answer the one request; the exit code is the exit code of the command."""
    request = TrainingRequest.from_json(content)

    def draw(html: str, text: str) -> None:
        send("picture", html=html, text=text)

    threading.Thread(target=_end_with_program, daemon=True).start()
    try:
        trained = answer(
            replace(request, joining=choose(request.address, os.environ), draw=draw if request.draws else None)
        )
        code, directory = trained.exit_code, trained.directory
        send("end", code=code, directory=None if directory is None else str(directory))
    except RlexpError as error:
        code = error.exit_code
        send("error", **described(error))
    sys.exit(code)


def _end_with_program() -> None:
    """Ask this process to save and end once the other end of stdin is closed."""
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    child.answer(_serve, ends_with_command=False)
