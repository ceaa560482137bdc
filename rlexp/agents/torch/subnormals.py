"""Subnormal floats: numbers so close to 0 (in float32, below 1.2e-38) that a processor takes far longer for them."""

from __future__ import annotations

from types import TracebackType
from typing import Final

import torch

SMALLEST: Final = 5e-324
"""The smallest positive Python float, a subnormal one."""


class SubnormalsAsZero:
    """While entered, this thread computes with 0 where a number is subnormal; it is used by one thread at a time.

    The threads of torch's own pool are not affected. Where the processor cannot do it, nothing changes.
    """

    def __enter__(self) -> None:
        self._was_on = are_zero()
        torch.set_flush_denormal(True)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if not self._was_on:  # the same thread may step envs, whose numbers stay as they are
            torch.set_flush_denormal(False)


def are_zero(number: float = SMALLEST) -> bool:
    """Return whether this thread computes with 0 where a number is subnormal, as ``number`` is."""
    return number * 1.0 == 0.0
