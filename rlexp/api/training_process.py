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
from pathlib import Path

from rlexp.api.client import described
from rlexp.cluster.quick_start.fork_server import prepared
from rlexp.cluster.session import Joining, choose
from rlexp.commands.options import load_options
from rlexp.commands.training import RunFlags, Trained, train_plan
from rlexp.config.load import LoadOptions, load_plan
from rlexp.config.plan import only_sweep
from rlexp.config.yaml.python_values import ExperimentDict
from rlexp.errors import RlexpError
from rlexp.tuning.request import TrainingRequest
from rlexp.user_code.trusted_code import TrustedCode


def main() -> None:
    """Answer the one request; the exit code is that of the command."""
    sender = os.fdopen(int(sys.argv[1]), "w", encoding="utf-8")
    request = TrainingRequest.of(json.loads(sys.stdin.buffer.readline()))
    threading.Thread(target=_end_with_program, daemon=True).start()
    try:
        trained = train(request)
        directory = None if trained.directory is None else str(trained.directory)
        answer, code = {"kind": "end", "code": trained.exit_code, "directory": directory}, trained.exit_code
    except RlexpError as error:
        answer, code = {"kind": "error", **described(error)}, error.exit_code
    print(json.dumps(answer), file=sender, flush=True)
    sys.exit(code)


def train(request: TrainingRequest) -> Trained:
    """Answer a request as the command of the same name does; raises what that shows as errors."""
    with prepared(choose(request.address, os.environ), request.debug) as joining:
        return _resume(request, joining) if request.kind == "resume" else _run(request, joining)


def _run(request: TrainingRequest, joining: Joining) -> Trained:
    source = request.source
    sources = [*map(Path, source.files)] if source.data is None else [ExperimentDict(source.data)]
    plan = load_plan(sources, request.overrides, request.seed, _load_options(request, joining))
    flags = RunFlags(
        out=Path(request.out),
        name=request.name,
        overwrite=request.overwrite,
        quiet=request.quiet,
        debug=request.debug,
        joining=joining,
        command=request.command,
    )
    if request.kind == "run":
        return train_plan(plan, flags)
    only_sweep(plan)
    return train_plan(plan, flags, request.allow_failures)


def _load_options(request: TrainingRequest, joining: Joining) -> LoadOptions:
    is_sweep = request.kind == "sweep"
    options = load_options(list(request.imports), request.allow_unknown, request.fit, is_sweep, joining=joining)
    if request.source.data is None:
        return options
    return replace(options, module_folders=tuple(request.source.folders))


def _resume(request: TrainingRequest, joining: Joining) -> Trained:
    from rlexp.terminal.displays import choose_display
    from rlexp.tuning.resume import resume_run

    path = Path(request.path)
    trusted = TrustedCode.of(request.imports, request.allow_env, request.allow_class, request.allow_storage)
    with choose_display(sys.stdout, sys.stderr, os.environ, json=False, quiet=request.quiet) as display:
        code = resume_run(path, request.overrides, display, request.debug, joining, trusted=trusted)
    return Trained(code, path)


def _end_with_program() -> None:
    """Ask this process to save and end once the other end of stdin is closed."""
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
