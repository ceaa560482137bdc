from __future__ import annotations

from tests.unit.agents.conftest import one_torch_thread

__all__ = ["one_torch_thread"]
