"""Parts of Ray that are replaced for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType


@contextmanager
def replaced(module: ModuleType, name: str, value: object) -> Iterator[None]:
    """Replace what a module has by that name in the body; nothing where it has nothing."""
    if not hasattr(module, name):
        yield
        return
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)
