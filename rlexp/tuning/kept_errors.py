"""Errors of a trial, kept among its files."""

from __future__ import annotations

import traceback
from collections.abc import Callable

from ray.exceptions import RayTaskError

from rlexp.errors import RlexpError
from rlexp.runs.files import TrialFiles
from rlexp.user_code.raised import named


class KeptErrors:
    """A context that keeps the error of its body among the files of a trial, and lets it pass."""

    def __init__(self, files: TrialFiles, on_error: Callable[[], None]) -> None:
        self._files, self._on_error = files, on_error

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception):
            self._on_error()
            self._files.write_error(f"{summary(error)}\n\n{''.join(traceback.format_exception(error))}")


def summary(error: BaseException) -> str:
    """Return an error in one line: the first cause, not the layers that carried it."""
    if isinstance(error, RayTaskError):
        error = error.cause or error
    if isinstance(error, RlexpError):
        return error.message + (f" ({error.hint})" if error.hint else "")
    return named(error)
