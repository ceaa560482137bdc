"""``rlexp export``: a checkpoint's policy as an ONNX file."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated, Final

import typer

from rlexp.commands.completion import complete_run
from rlexp.commands.output_options import AsJson, Debug
from rlexp.commands.trust import AllowClass, AllowEnv, AllowStorage, ImportsOfRun, trusted_code
from rlexp.errors import UsageError
from rlexp.files import refuse_other_than_file
from rlexp.terminal.exports import print_export

_NEEDED: Final = ("onnx", "onnxscript", "onnxruntime")
"""Modules of the extra ``[onnx]``."""


def export(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH", help="A run, a trial or a checkpoint.", show_default=False, autocompletion=complete_run
        ),
    ],
    onnx: Annotated[Path, typer.Option("--onnx", metavar="FILE", help="The file to write; needs rlexp[onnx].")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace FILE if it exists.")] = False,
    imports: ImportsOfRun = None,
    allow_env: AllowEnv = None,
    allow_class: AllowClass = None,
    allow_storage: AllowStorage = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Write the greedy policy of a checkpoint to an ONNX file.

    Of a run or a trial it is the best checkpoint. The observation filter is part of it, and its actions are what
    the env takes. Before the file is written, it is compared with the checkpoint on 1000 observations. Modules and
    classes that you have not trained with have to be allowed.
    """
    _require_extra()
    _check_target(onnx, overwrite)
    from rlexp.runs.checkpoints.kept import find_checkpoint

    trusted = trusted_code(imports, allow_env, allow_class, allow_storage)
    checkpoint = find_checkpoint(path, trusted)
    from rlexp.agents.export.export import export_checkpoint

    print_export(export_checkpoint(checkpoint, onnx, trusted), as_json)


def _require_extra() -> None:
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise UsageError(
            f"export needs {' and '.join(missing)}, which {verb} not installed", "pip install 'rlexp[onnx]'"
        )


def _check_target(file: Path, overwrite: bool) -> None:
    """Raise UsageError where a file cannot be written: before a checkpoint is read for it."""
    try:
        refuse_other_than_file(file)
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror}", "name a file, for example policy.onnx") from error
    if not file.parent.is_dir():
        raise UsageError(f"there is no directory {file.parent}", "create it, or name a file elsewhere")
    if file.exists() and not overwrite:
        raise UsageError(f"{file} exists", "--overwrite replaces it")
